"""The exercises and predictions of the collection, one module for each notebook, and the progress through them.

A module has the notebook's name without its number. Its exercises and predictions are module-level names.
"""

import importlib
import pkgutil

from tapelab.exercises import progress
from tapelab.exercises.exercise import Exercise
from tapelab.exercises.prediction import Prediction

from IPython.display import Markdown, display


def sheets():
    """Return a dict from a notebook's number to the module with its exercises, in the order of the numbers."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for one in exercises_of(module):
            found[one.identifier.partition(".")[0]] = module
    return dict(sorted(found.items()))


def exercises_of(module):
    """Return a module's exercises, in the order in which they are written."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def predictions_of(module):
    """Return a module's predictions, in the order in which they are written."""
    return [value for value in vars(module).values() if isinstance(value, Prediction)]


def show_progress():
    """Show which exercises of the collection you have solved."""
    solved = progress.solved()
    rows = []
    for number, module in sheets().items():
        marks = [
            f"{'✓' if one.identifier in solved else '○'} {one.title} ({one.minutes} min)"
            for one in exercises_of(module)
        ]
        rows.append(f"| {number} | {' · '.join(marks)} |")
    known = {one.identifier for module in sheets().values() for one in exercises_of(module)}
    table = "\n".join(["| | Exercises: ✓ solved, ○ not yet |", "|---|---|", *rows])
    display(Markdown(f"{table}\n\nSolved: {len(solved & known)} of {len(known)}."))
