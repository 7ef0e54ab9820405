"""A value with its channels, and what all channels have in common.

A channel has one axis more than its value, the first: lanes. After it comes the shape of the value, where an axis may
have length 1 although the value's is longer: "the same for all" (lazy). Unit directions are so for a whole batch, and
the first product of a network is made once rather than for each example. A channel that is zero is None.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tapelab.derivatives.machinery.vectorized import vectorized
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

Channel: TypeAlias = tf.Tensor | None
Weights: TypeAlias = tf.Tensor | np.ndarray | None  # a number for each lane; None for ones


class NoRule(Exception):
    """An operation whose channels cannot be computed, or not this way: the function is differentiated another way.

    Attributes:
        placed: whether the message names the operation and its line.
    """

    placed = False


class Val:
    """A value and its channels.

    Attributes:
        v: the value, a tensor.
        ch: a tuple of its channels; empty where it does not depend on the sources.
    """

    __slots__ = ("ch", "v")

    def __init__(self, v: tf.Tensor, ch: Sequence[Channel] = ()):
        self.v = v
        self.ch = () if all(c is None for c in ch) else tuple(ch)

    def channels(self, count: int) -> tuple[Channel, ...]:
        """The channels, None for each if there are none."""
        return self.ch or (None,) * count

    def over(self, v: tf.Tensor) -> list[Channel]:
        """The channels divided by a tensor."""
        return [None if c is None else c / v for c in self.padded(v.shape.rank)]

    def padded(self, rank: int) -> list[Channel]:
        """The channels with this rank behind the lanes at least."""
        return [None if c is None else padded(c, rank) for c in self.ch]

    def filled(self, *, lazy_batch: bool = False) -> "Val":
        """Return the same with channels of the value's full shape, the first axis apart if that may stay lazy."""
        return Val(self.v, [full(c, self.v, lazy_batch=lazy_batch) for c in self.ch])


def full(c: Channel, v: tf.Tensor, *, lazy_batch: bool = False) -> Channel:
    """Give a channel the full shape of its value."""
    if c is None:
        return None
    if not v.shape.is_fully_defined():
        raise NoRule(f"a shape on the way is not known in a graph, {v.shape}")
    c = padded(c, v.shape.rank)
    shape = [c.shape[0], *v.shape]
    if lazy_batch and len(shape) > 1:
        shape[1] = c.shape[1]
    return c if c.shape == shape else tf.broadcast_to(c, shape)


def padded(c: tf.Tensor, rank: int) -> tf.Tensor:
    """Insert axes of length 1 behind the lanes, until this rank follows: what broadcasting does to the value."""
    missing = rank - (c.shape.rank - 1)
    return c if missing <= 0 else tf.reshape(c, [c.shape[0], *[1] * missing, *c.shape[1:]])


def replaced(condition: tf.Tensor, a: Val, v: tf.Tensor) -> Val:
    """Return a, with the elements of v, which do not depend on the sources, where the condition holds."""
    channels = a.padded(v.shape.rank)
    channels = [None if c is None else tf.where(condition, tf.zeros([], c.dtype), c) for c in channels]
    return Val(tf.where(condition, v, a.v), channels)


def zeros_if_none(c: Channel, lanes: int, v: tf.Tensor) -> tf.Tensor:
    """Return a channel of its value's full shape, zeros where it is None."""
    return tf.zeros([lanes, *v.shape], v.dtype) if c is None else full(c, v)


def plus(*parts: Channel) -> Channel:
    """Add those that are not zero."""
    found = [part for part in parts if part is not None]
    total = found[0] if found else None
    for part in found[1:]:
        total = total + part
    return total


def times(*parts: tf.Tensor | float | None) -> Channel:
    """Multiply; zero if one of them is."""
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    product = found[0]
    for part in found[1:]:
        product = product * part
    return product


def total(c: Channel, weights: Weights = None) -> Channel:
    """Sum over lanes, weighted; one lane remains."""
    if c is None:
        return None
    return tf.reduce_sum(weighted(c, weights), 0, keepdims=True)


def weighted(c: tf.Tensor, weights: Weights) -> tf.Tensor:
    """Multiply each lane by its weight."""
    if weights is None:
        return c
    return c * tf.reshape(tf.cast(weights, c.dtype), [-1, *[1] * (c.shape.rank - 1)])


def over_lanes(run: Callable, channels: Tensors) -> list[tf.Tensor]:
    """Apply a function of one lane of each channel to every lane. It takes and returns lists."""
    if channels[0].shape[0] == 1:
        return [result[None] for result in run([c[0] for c in channels])]
    return vectorized(run, list(channels))
