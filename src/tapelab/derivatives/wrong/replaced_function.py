"""What a family of cures says of a library function that it replaces."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tapelab.derivatives.wrong.gaps import Needs
from tapelab.runtime import tf


class Replacement(NamedTuple):
    """A library function that composes operations so that derivatives come out wrong, and ours in its place.

    Attributes:
        owners: returns the modules in which the function is looked up.
        name: of the attribute there.
        function: ours, with the same signature. The first line of its docstring is the note for the `Plan`.
        needs: the first kind of derivative that is wrong without it.
        what: what it computes, for the sentence "f computes … in a graph that was traced before".
        traced: whether a graph (its library of functions included) was traced from the original.
    """

    owners: Callable[[], Sequence[Any]]
    name: str
    function: Callable
    needs: Needs
    what: str
    traced: Callable[[tf.compat.v1.GraphDef], bool]
