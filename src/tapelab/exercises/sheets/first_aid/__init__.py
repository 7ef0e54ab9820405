"""Exercises and predictions of the notebook "First aid": a module for each case, a folder for each part of the notebook.

The imports put the exercises in the order of their cases.
"""

from tapelab.exercises import Prediction
from tapelab.exercises.sheets.first_aid.part_1.case_01 import left_tensorflow
from tapelab.exercises.sheets.first_aid.part_1.case_02 import predicted
from tapelab.exercises.sheets.first_aid.part_1.case_03 import after_the_block
from tapelab.exercises.sheets.first_aid.part_1.case_04 import unwatched
from tapelab.exercises.sheets.first_aid.part_1.case_05 import second_step
from tapelab.exercises.sheets.first_aid.part_1.case_06 import whole_numbers
from tapelab.exercises.sheets.first_aid.part_2.case_07 import used_twice
from tapelab.exercises.sheets.first_aid.part_2.case_08 import list_of_losses
from tapelab.exercises.sheets.first_aid.part_3.case_09 import one_unit
from tapelab.exercises.sheets.first_aid.part_3.case_10 import two_shapes
from tapelab.exercises.sheets.first_aid.part_4.case_11 import shifted
from tapelab.exercises.sheets.first_aid.part_4.case_12 import untouched_head
from tapelab.exercises.sheets.first_aid.part_4.case_13 import counted_hits
from tapelab.exercises.sheets.first_aid.part_4.case_14 import zero_start
from tapelab.exercises.sheets.first_aid.part_4.case_15 import wrong_mode

__all__ = [
    "after_the_block",
    "counted_hits",
    "left_tensorflow",
    "list_of_losses",
    "nothing_raised",
    "one_unit",
    "predicted",
    "second_step",
    "shifted",
    "still_moving",
    "trained_on",
    "two_shapes",
    "untouched_head",
    "unwatched",
    "used_twice",
    "whole_numbers",
    "wrong_mode",
    "zero_start",
]

nothing_raised = Prediction(
    "first_aid.nothing_raised",
    options=("the line of the loss", "the line of the gradient", "the line of the step"),
    remarks=(
        (
            "the line of the loss",
            "NumPy takes a variable as it takes any array, and the loss comes out right. Who notices first?",
        ),
        ("the line of the gradient", "The tape is asked, and answers: `None`, without an error. Who has to use that?"),
    ),
)

trained_on = Prediction(
    "first_aid.trained_on",
    remarks=(
        (0.0, "That is where training ought to lead. What does the gradient say about the direction?"),
        (1.0, "That is the worst it could be: every example wrong. Is there a reason for the loss to move at all?"),
    ),
)

still_moving = Prediction(
    "first_aid.still_moving",
    options=("neither", "the one with None", "the one with zeros", "both"),
    remarks=(
        ("neither", "So it would be without momentum. What does momentum add to a gradient of 0?"),
        ("the one with None", "Keras leaves a variable with `None` out of the step. What does it do with zeros?"),
        ("both", "Keras leaves a variable with `None` out of the step, momentum and all."),
    ),
)
