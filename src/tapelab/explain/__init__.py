"""A tape that says why a gradient is None, and draws what it recorded.

::

    with ExplainTape() as tape:          # in place of tf.GradientTape()
        y = tf.round(x) * 2.0
    explain(tape, y, x)                  # the cause, the line, the fix

`CAUSES`, `REMARKS`, `VALUES` and `RETRACING` list every answer with its meaning, an example and the fix: `causes` has
them as tables.

How it works, room by room, in the order in which to read it.

- `causes`: what there is to say.
- `ground`: `hooks` shows what runs, `log` keeps it and replays what the tape records, `explain_tape` is the tape;
  `lines` finds the learner's own line, `expressions` what it says, `rendering` makes text and Markdown of an answer.
- `values`, why a gradient is NaN, infinite, zero, huge or tiny: `rerun` computes what ran once more, forwards and
  backwards; `not_finite`, `zeros`, `magnitude`, `structure` and `special_points` read the mechanism from it; `study`
  puts these together, and `fixes` rewrites the line to blame, by the patterns that the cause's row has.
- `missing`, why a gradient is None: `inside_functions` tells whether an operation, or the inside of a tf.function,
  passes a gradient, `paths` puts the ways together. `cut_path` judges where values flow from source to target,
  `no_path` where they do not, and `judgement` holds this against the tape.
- `asking` asks both, and `explanation` is the answer.
- `drawing`: `sketch` decides what a drawing shows, `layout` where, and `draw` draws it; `numbered_table` is a table,
  also one to go through row by row.
- `models`: of a whole Keras model, `model_step` runs one step, `diagnose` examines every gradient in it, `diagnosis` is
  the answer, and `watch` does so while fit runs; `rate` tells whether a step was too long.
- `retracing`, why a tf.function was traced again: `traces` reads what TensorFlow keeps, `causes` says what differs and
  what to write, `answer` answers.
"""

from typing import TYPE_CHECKING, Any

import tapelab.process.tensorflow  # noqa: F401  its import of TensorFlow is the quiet one
from tapelab.explain.asking import NoGradientError, explain, gradient_or_explain
from tapelab.explain.causes import CAUSES, REMARKS, RETRACING, VALUES
from tapelab.explain.drawing.numbered_table import Steps, Table, step_through, table
from tapelab.explain.explanation import Explanation, Explanations
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.models.diagnose import diagnose
from tapelab.explain.models.diagnosis import Diagnosis
from tapelab.explain.models.watch import Watch
from tapelab.explain.retracing.answer import Retracing, Retracings, explain_retracing

if TYPE_CHECKING:
    from tapelab.explain.drawing.draw import draw

__all__ = [
    "CAUSES",
    "REMARKS",
    "RETRACING",
    "VALUES",
    "Diagnosis",
    "ExplainTape",
    "Explanation",
    "Explanations",
    "NoGradientError",
    "Retracing",
    "Retracings",
    "Steps",
    "Table",
    "Watch",
    "diagnose",
    "draw",
    "explain",
    "explain_retracing",
    "gradient_or_explain",
    "step_through",
    "table",
]


def __getattr__(name: str) -> Any:
    """Import `draw` when it is asked for: it needs Matplotlib, and the first answer needs TensorFlow alone."""
    if name == "draw":
        from tapelab.explain.drawing.draw import draw

        return draw
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
