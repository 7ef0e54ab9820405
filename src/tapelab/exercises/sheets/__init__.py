"""The exercises and predictions of the collection, one module for each notebook, and the progress through them.

A module has the notebook's name without its number. Its exercises and predictions are module-level names. The two of
the clinic are folders, with a module for each case.
"""

import functools
import importlib
import sys

from tapelab.exercises import progress
from tapelab.exercises.exercise import Exercise
from tapelab.exercises.prediction import Prediction

from IPython.display import Markdown, display

# In the notebooks' order: the first is notebook 00's.
ORDER = (
    "start_here",
    "gradient_tape_basics",
    "training_with_a_tape",
    "when_the_gradient_is_none",
    "when_the_gradient_is_wrong",
    "recording_control",
    "stop_gradient",
    "custom_gradients",
    "clipping",
    "multiple_tapes",
    "higher_order_gradients",
    "jacobians",
    "forward_mode",
    "hessians_and_newton",
    "without_the_matrix",
    "batch_jacobians",
    "what_derivatives_cost",
    "gradient_of_the_input",
    "step_of_your_own_in_keras",
    "fit_and_error_bars",
    "derivative_of_a_solution",
    "edge_of_stability",
    "influence_functions",
    "differentiate_the_training",
    "an_equation_and_no_data",
    "control_and_the_horizon_of_chaos",
    "gradient_of_an_expectation",
    "generative_model_from_a_trace",
    "first_aid",
    "hard_cases",
)


def __getattr__(name):
    if name not in ORDER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    sheet = importlib.import_module(f"{__name__}.{name}")
    for loaded in ORDER:  # a sheet that another one takes a helper from is loaded with it, and never asked for here
        if module := sys.modules.get(f"{__name__}.{loaded}"):
            module.__getattr__ = functools.partial(_refuse, loaded)
    return sheet


def _refuse(sheet, name):
    """Say what to do where a copy of an earlier version asks for an exercise or a prediction that is no more."""
    if name.startswith("_"):
        raise AttributeError(f"module '{__name__}.{sheet}' has no attribute {name!r}")
    raise AttributeError(
        f"Notebook {ORDER.index(sheet):02} has no exercise or prediction {name!r}. This copy may be of an earlier "
        "version: `make lab`, or `tapelab lab`, lays the present one beside it."
    )


def sheets():
    """Return a dict from a notebook's number, such as "04", to the module with its exercises, in order."""
    here = importlib.import_module(__name__)
    return {f"{number:02}": getattr(here, name) for number, name in enumerate(ORDER)}


def exercises_of(module):
    """Return a module's exercises, in the order in which they are written."""
    return [value for value in vars(module).values() if isinstance(value, Exercise)]


def predictions_of(module):
    """Return a module's predictions, in the order in which they are written."""
    return [value for value in vars(module).values() if isinstance(value, Prediction)]


def show_progress():
    """Show which exercises of the collection you have solved, and which of yours it no longer has."""
    solved = progress.solved()
    left = set(solved)
    rows, found, total, space = [], 0, 0, "\N{NO-BREAK SPACE}"  # a mark stays on its title's line
    for number, module in sheets().items():
        ours = exercises_of(module)
        marks = [
            f"{'✓' if one.identifier in solved else '○'}{space}{one.title} ({one.minutes}{space}min)" for one in ours
        ]
        rows.append(f"| {number} | {' · '.join(marks)} |")
        found += sum(one.identifier in solved for one in ours)
        left -= {one.identifier for one in ours}
        total += len(ours)
    table = "\n".join(["| | Exercises: ✓ solved, ○ not yet |", "|---|---|", *rows])
    gone = f" Solved, and no longer in the collection: {', '.join(sorted(left))}." if left else ""
    display(Markdown(f"{table}\n\nSolved: {found} of {total}.{gone}"))
