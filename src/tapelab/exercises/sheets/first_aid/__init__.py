"""Exercises and predictions of the notebook "First aid": a module for each case, a folder for each part of the page.

The imports put the exercises in the order of their cases.
"""

from tapelab.exercises import Prediction
from tapelab.exercises.sheets.first_aid.part_1.case_01 import own_loss
from tapelab.exercises.sheets.first_aid.part_1.case_02 import keras_model
from tapelab.exercises.sheets.first_aid.part_1.case_03 import three_lines
from tapelab.exercises.sheets.first_aid.part_1.case_04 import pixels
from tapelab.exercises.sheets.first_aid.part_1.case_05 import second_step
from tapelab.exercises.sheets.first_aid.part_1.case_06 import straight_line
from tapelab.exercises.sheets.first_aid.part_2.case_07 import two_losses
from tapelab.exercises.sheets.first_aid.part_2.case_08 import step_by_keras
from tapelab.exercises.sheets.first_aid.part_3.case_09 import one_unit
from tapelab.exercises.sheets.first_aid.part_3.case_10 import perfect_model
from tapelab.exercises.sheets.first_aid.part_4.case_11 import kept_layer
from tapelab.exercises.sheets.first_aid.part_4.case_12 import second_head
from tapelab.exercises.sheets.first_aid.part_4.case_13 import right_answers
from tapelab.exercises.sheets.first_aid.part_4.case_14 import first_layer
from tapelab.exercises.sheets.first_aid.part_4.case_15 import worse_than_fit

__all__ = [
    "first_layer",
    "kept_layer",
    "keras_model",
    "nothing_raised",
    "one_unit",
    "own_loss",
    "perfect_model",
    "pixels",
    "right_answers",
    "second_head",
    "second_step",
    "step_by_keras",
    "straight_line",
    "three_lines",
    "trained_on",
    "two_losses",
    "with_momentum",
    "worse_than_fit",
]

nothing_raised = Prediction(
    "first_aid.nothing_raised",
    options=("the line of the loss", "the line of the gradient", "the line of the step"),
    remarks=(
        (
            "the line of the loss",
            "NumPy takes this variable as it takes an array, and the loss comes out right. Who notices first?",
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

with_momentum = Prediction(
    "first_aid.with_momentum",
    options=("neither", "the one with None", "the one with zeros", "both"),
    remarks=(
        ("neither", "So it would be without momentum. What does momentum add to a gradient of 0?"),
        ("the one with None", "Keras leaves that variable out of the step. What does it do with zeros?"),
        ("both", "Keras leaves the variable with `None` out of this step, momentum and all."),
    ),
)
