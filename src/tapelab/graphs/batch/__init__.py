"""Whether the examples of a batch stay apart in a program: proved operation by operation (`Examples`).

Of each tensor it is known whether it is *fixed* (it depends on no example), keeps the examples *apart* along an axis,
is a *sum* over examples of what each has alone, or is *lost*, because of an operation at a line.
"""

from tapelab.graphs.batch.examples import Examples, refuse_custom
from tapelab.graphs.batch.states import APART, FIXED, LOST, SUMMED, State, Unproven, apart, fixed, lost, summed

__all__ = [
    "APART",
    "FIXED",
    "LOST",
    "SUMMED",
    "Examples",
    "State",
    "Unproven",
    "apart",
    "fixed",
    "lost",
    "refuse_custom",
    "summed",
]
