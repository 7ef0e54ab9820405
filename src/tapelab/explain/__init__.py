"""A tape that says why a gradient is None, and draws what it recorded.

::

    with ExplainTape() as tape:          # in place of tf.GradientTape()
        y = tf.round(x) * 2.0
    explain(tape, y, x)                  # the cause, the line, the fix

`tapelab.explain.causes` lists every answer with its meaning, an example and the fix.

How it works, in the order in which to read it. `hooks` shows what runs, `log` keeps it and replays what the tape
records, `tape` is the tape. `conduct` tells whether one operation passes a gradient, `bodies` the same for the inside
of a tf.function, `flow` puts the ways together. `presence` judges where values flow from source to target, `absence`
where they do not, and `judge` holds the judgement against the tape. `explanation` puts it into words, `telling` makes
text and Markdown of these. `sketch` decides what a drawing shows, `layout` where, and `drawing` draws it.

Of a whole Keras model, `model_step` runs one step, `diagnose` examines every gradient in it, `diagnosis` is the answer,
and `watch` does so while fit runs. Why a tf.function was traced again is another question: `traces` reads what
TensorFlow keeps, `retracing_causes` says what differs, `retracing_fixes` what to write, `retracing` answers.
"""

from typing import TYPE_CHECKING, Any

from tapelab import runtime  # noqa: F401  its import of TensorFlow is the quiet one
from tapelab.explain.causes import CAUSES, REMARKS
from tapelab.explain.causes_of_values import VALUES
from tapelab.explain.diagnose import diagnose
from tapelab.explain.diagnosis import Diagnosis
from tapelab.explain.explanation import Explanation, Explanations
from tapelab.explain.judge import NoGradientError, explain, gradient_or_explain
from tapelab.explain.retracing import Retracing, Retracings, explain_retracing
from tapelab.explain.retracing_causes import RETRACING
from tapelab.explain.table import Table, table
from tapelab.explain.tape import ExplainTape
from tapelab.explain.watch import Watch

if TYPE_CHECKING:
    from tapelab.explain.drawing import draw

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
    "Table",
    "Watch",
    "diagnose",
    "draw",
    "explain",
    "explain_retracing",
    "gradient_or_explain",
    "table",
]


def __getattr__(name: str) -> Any:
    """Import `draw` when it is asked for: it needs Matplotlib, and the first answer needs TensorFlow alone."""
    if name == "draw":
        from tapelab.explain.drawing import draw

        return draw
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
