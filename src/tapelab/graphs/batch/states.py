"""What is known of a tensor: where the examples of a batch are in it."""

from typing import NamedTuple

FIXED, APART, SUMMED, LOST = "fixed", "apart", "summed", "lost"

ROWS = -1  # in place of an axis: the elements, row by row, are one block for each example, and along no one axis


class Unproven(Exception):
    """What is to be proved of a function does not follow from its graph."""


class State(NamedTuple):
    """What is known of a tensor.

    Attributes:
        kind: FIXED: it depends on no example. APART: along an axis it has one block of rows for each example, in order
            and of one size, and no block depends on another example. SUMMED: it is a sum over examples of what each
            has alone, times and plus what is fixed. LOST: none of these is proved.
        axis: the axis of what is APART, or `ROWS`.
        why: of what is LOST, because of which operation, and its line; of what is SUMMED, which one sums.
    """

    kind: str
    axis: int | None = None
    why: str = ""


fixed = State(FIXED)


def apart(axis: int) -> State:
    """Return the state of a tensor with the examples along an axis."""
    return State(APART, axis)


def summed(where: str) -> State:
    """Return the state of a sum over examples, made by an operation."""
    return State(SUMMED, why=where)


def lost(why: str) -> State:
    """Return the state of a tensor of which nothing is proved, because of this."""
    return State(LOST, why=why)


def joined(one: State, other: State, why: str) -> State:
    """Return what is known of a tensor that is one of two; ``why`` nothing is, if they do not fit."""
    if LOST in (one.kind, other.kind):
        return one if one.kind == LOST else other
    if one.kind == FIXED or one == other or one.kind == other.kind == SUMMED:
        return other if one.kind == FIXED else one
    return one if other.kind == FIXED else lost(why)
