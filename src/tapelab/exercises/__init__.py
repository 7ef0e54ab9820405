"""Exercises that answer back, and predictions.

A notebook's exercises are in the module of `tapelab.exercises.sheets` that has the notebook's name::

    from tapelab.exercises.sheets import recording_control as exercises

    exercises.metric_off.check(answer)     # says what is right or wrong, and why
    exercises.metric_off.hint()            # each call reveals one more
    exercises.metric_off.solution()

    exercises.size_in_block.guess(7.0)    # before the run
    exercises.size_in_block.reveal(dz_dx) # after it: the guess beside the result

How it works, in the order in which to read it. `compare` holds an answer against what was expected and names the
difference; `checks` judges values, functions on several inputs, and repairs with their diagnosis; `deadline` stops an
answer that does not return; `feedback` is what the learner is told; `source` makes a cell's text from a sheet's
function; `exercise` and `prediction` are what the notebooks use. `session` tells a person from a batch run, `progress`
keeps what was solved. `WRITING.md` says how an exercise is written.
"""

import tapelab.process.tensorflow  # noqa: F401  its import of TensorFlow is the quiet one
from tapelab.exercises.checks import Function, Mistake, Repair, Value
from tapelab.exercises.exercise import Exercise
from tapelab.exercises.prediction import Prediction

__all__ = ["Exercise", "Function", "Mistake", "Prediction", "Repair", "Value"]
