"""Exercises and predictions of the notebook "Hard cases": a module for each case, a folder for each part of the page.

The imports put the exercises in the order of their cases.
"""

from tapelab.exercises import Prediction
from tapelab.exercises.sheets.hard_cases.part_1.case_01 import counted_pixels
from tapelab.exercises.sheets.hard_cases.part_1.case_02 import inner_step
from tapelab.exercises.sheets.hard_cases.part_2.case_03 import soft_margin
from tapelab.exercises.sheets.hard_cases.part_2.case_04 import relative_error
from tapelab.exercises.sheets.hard_cases.part_2.case_05 import spread
from tapelab.exercises.sheets.hard_cases.part_2.case_06 import empty_mask
from tapelab.exercises.sheets.hard_cases.part_2.case_07 import attention
from tapelab.exercises.sheets.hard_cases.part_3.case_08 import starts_outside
from tapelab.exercises.sheets.hard_cases.part_3.case_09 import accumulated
from tapelab.exercises.sheets.hard_cases.part_4.case_10 import schedule
from tapelab.exercises.sheets.hard_cases.part_4.case_11 import retraced
from tapelab.exercises.sheets.hard_cases.part_4.case_12 import held_batches
from tapelab.exercises.sheets.hard_cases.part_5.case_13 import equation
from tapelab.exercises.sheets.hard_cases.part_5.case_14 import angle
from tapelab.exercises.sheets.hard_cases.part_5.case_15 import sinc
from tapelab.exercises.sheets.hard_cases.part_5.case_16 import half_rms
from tapelab.exercises.sheets.hard_cases.part_5.case_17 import normalised_rows

__all__ = [
    "accumulated",
    "angle",
    "attention",
    "clamped",
    "counted_pixels",
    "empty_mask",
    "equation",
    "half_rms",
    "held_batches",
    "inner_step",
    "normalised_rows",
    "relative_error",
    "retraced",
    "schedule",
    "second_at_zero",
    "silenced",
    "sinc",
    "soft_margin",
    "spread",
    "starts_outside",
    "three_losses",
    "very_negative",
]

silenced = Prediction(
    "hard_cases.silenced",
    remarks=(
        (
            0.0,
            "0 is where a mended gradient takes it. The silenced one is 0 from the first step on: what does it move?",
        ),
        (float("nan"), "The NaN has been replaced before the step. What has it been replaced by?"),
    ),
)

very_negative = Prediction(
    "hard_cases.very_negative",
    options=("zeros", "NaN", "the mean of all values"),
    remarks=(
        ("zeros", "That is what you would want. A softmax's weights add up to 1 for finite scores, though."),
        (
            "NaN",
            "−1e9 is finite, and a softmax subtracts the largest score first. What is left of equal scores?",
        ),
    ),
)

clamped = Prediction(
    "hard_cases.clamped",
    options=("0", "0.0001", "0.014"),
    remarks=(
        ("0", "The cosine can no longer be 1. What is the angle whose cosine is 0.9999?"),
        ("0.0001", "Near 1 the cosine falls with the square of the angle: 1 − θ²/2 = 0.9999."),
    ),
)

three_losses = Prediction(
    "hard_cases.three_losses",
    options=("1, 6, 11", "1, 1, 1", "an error"),
    remarks=(
        (
            "1, 6, 11",
            "That is what the Python code says, and what it gives without `tf.function`. When does Python run?",
        ),
        ("an error", "There is none. Python's `penalty` is found at the first call, and what becomes of it then?"),
    ),
)

second_at_zero = Prediction(
    "hard_cases.second_at_zero",
    remarks=(
        (-1 / 3, "That is the truth, from sin(x)/x = 1 − x²/6 + …. Which branch does the tape differentiate at 0?"),
        (float("nan"), "The double where keeps the NaN out, also of the second derivative."),
    ),
)
