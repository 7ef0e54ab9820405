"""One operation of a graph, met on the way of a batch's examples through it."""

from typing import NamedTuple

from tapelab.graphs.batch.states import ROWS
from tapelab.process.tensorflow import tf

import numpy as np

Axes = list[int | None]


class Step(NamedTuple):
    """One operation.

    Attributes:
        op: it.
        axes: of each input the axis of the examples, `ROWS`, or None where it is fixed.
        batch: how many examples.
    """

    op: tf.Operation
    axes: Axes
    batch: int

    @property
    def along(self) -> dict[int, int]:
        """The axis of the examples in each input that depends on them, by its number."""
        return {i: axis for i, axis in enumerate(self.axes) if axis is not None}

    @property
    def moving(self) -> list[int]:
        """The numbers of those inputs."""
        return list(self.along)

    @property
    def in_rows(self) -> bool:
        """Whether the examples are along no one axis of an input."""
        return ROWS in self.axes

    @property
    def is_defined(self) -> bool:
        """Whether the shapes are known on which rules look."""
        tensors = [self.op.inputs[i] for i in self.moving] + list(self.op.outputs[:1])
        return all(tensor.shape.is_fully_defined() for tensor in tensors)

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return tuple(self.op.outputs[0].shape)

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an input."""
        return tuple(self.op.inputs[index].shape)


def static_axes(op: tf.Operation, index: int) -> set[int] | None:
    """Return the axes of the first input that another one names, counted from 0; None if they are not known."""
    value, rank = tf.get_static_value(op.inputs[index]), op.inputs[0].shape.rank
    if value is None or rank is None:
        return None
    return {int(axis) % max(rank, 1) for axis in np.ravel(value)}
