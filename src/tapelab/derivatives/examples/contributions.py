"""The gradients of one variable for all examples, in the smallest form that gives norms and weighted sums."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tapelab.derivatives import costs
from tapelab.derivatives.examples.variable_uses import (
    BUILT,
    DEPTHWISE,
    FILTER,
    LOOKUP,
    SUM,
    SWAPPED,
    TRANSPOSED,
    Use,
    form_of,
)
from tapelab.process.tensorflow import Tensors, tf


class Factors(NamedTuple):
    """Gradients Σ_t left_tᵀ right_t.

    Attributes:
        left: shape (batch, T, rows).
        right: shape (batch, T, columns).
    """

    left: tf.Tensor
    right: tf.Tensor

    def squares(self) -> tf.Tensor:
        """Return the squared norms, shape (batch,)."""
        if self.left.shape[1] == 1:
            return tf.reduce_sum(self.left**2, [1, 2]) * tf.reduce_sum(self.right**2, [1, 2])
        # Where the sum over t cancels, the sum over pairs loses twice as many digits.
        grams = [tf.matmul(x, x, transpose_b=True) for x in (tf.cast(part, tf.float64) for part in self)]
        squares = tf.reduce_sum(grams[0] * grams[1], [1, 2])
        return tf.cast(tf.maximum(squares, 0), self.left.dtype)

    def weighted(self, weights: tf.Tensor) -> tf.Tensor:
        """Return the sum of the gradients times their weights, flat."""
        right = self.right * weights[:, tf.newaxis, tf.newaxis]
        left, right = (tf.reshape(part, [-1, part.shape[2]]) for part in (self.left, right))
        return tf.reshape(tf.matmul(left, right, transpose_a=True), [-1])


class Built(NamedTuple):
    """Gradients as they are, shape (batch, elements)."""

    gradients: tf.Tensor

    def squares(self) -> tf.Tensor:
        return tf.reduce_sum(self.gradients**2, 1)

    def weighted(self, weights: tf.Tensor) -> tf.Tensor:
        return tf.linalg.matvec(self.gradients, weights, transpose_a=True)


class Rows(NamedTuple):
    """Gradients that are zero but for some rows of a table.

    Attributes:
        numbers: of the rows, shape (batch, T); one may come several times.
        cotangents: what each adds to its row, shape (batch, T, columns).
        height: how many rows the table has.
    """

    numbers: tf.Tensor
    cotangents: tf.Tensor
    height: int

    def squares(self) -> tf.Tensor:
        batch = self.numbers.shape[0]
        numbers = tf.cast(self.numbers, tf.int64)
        example = tf.range(batch, dtype=tf.int64)[:, tf.newaxis]
        rows, places = tf.unique(tf.reshape(example * self.height + numbers, [-1]))
        flat = tf.reshape(self.cotangents, [-1, self.cotangents.shape[2]])
        sums = tf.math.unsorted_segment_sum(flat, places, tf.size(rows))
        return tf.math.unsorted_segment_sum(tf.reduce_sum(sums**2, 1), rows // self.height, batch)

    def weighted(self, weights: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(self.cotangents * weights[:, tf.newaxis, tf.newaxis], [-1, self.cotangents.shape[2]])
        return tf.reshape(tf.math.unsorted_segment_sum(flat, tf.reshape(self.numbers, [-1]), self.height), [-1])


def in_turn(compute: Sequence[Callable[[], tf.Tensor]], order: Sequence[int]) -> list[tf.Tensor]:
    """Call functions in an order, each of which starts in a graph when the one before it has its result.

    Returns:
        The list of their results, in the order of the functions.
    """
    found: dict[int, tf.Tensor] = {}
    for index in order:
        with tf.control_dependencies([*found.values()][-1:]):
            found[index] = compute[index]()
    return [found[index] for index in range(len(compute))]


def contribution(uses: Sequence[Use], cotangents: Tensors, batch: int, dtype: tf.DType) -> Factors | Built | Rows:
    """Hold the gradients of one variable.

    Args:
        uses: all of its uses.
        cotangents: the derivatives of the sum of the losses by the uses' outputs.
        batch: how many examples.
        dtype: to compute in.
    """
    pairs = [(use, tf.cast(d, dtype)) for use, d in zip(uses, cotangents, strict=True)]
    form = form_of(uses, batch)
    if form == BUILT:
        return Built(tf.add_n([_in_place(use, _built(use, d, batch)) for use, d in pairs]))
    if uses[0].kind == LOOKUP:
        numbers = tf.concat([tf.reshape(use.met, [batch, -1]) for use in uses], axis=1)
        columns = math.prod(uses[0].shape[1:])
        parts = [tf.reshape(d, [batch, -1, columns]) for _, d in pairs]
        return Rows(numbers, tf.concat(parts, axis=1), uses[0].shape[0])
    factors = [_factors(use, d, batch) for use, d in pairs]
    return Factors(*(tf.concat(parts, axis=1) for parts in zip(*factors, strict=True)))


def _factors(use: Use, cotangents: tf.Tensor, batch: int) -> list[tf.Tensor]:
    met = tf.cast(use.met, cotangents.dtype)
    if use.kind == TRANSPOSED:
        met, cotangents = patches(use, cotangents), met
    elif use.kind == FILTER:
        met = patches(use, met)
    pair = [tf.reshape(part, [batch, -1, part.shape[-1]]) for part in (met, cotangents)]
    return pair[::-1] if use.kind == SWAPPED else pair


def _built(use: Use, cotangents: tf.Tensor, batch: int) -> tf.Tensor:
    if use.kind == DEPTHWISE:
        *taps, channels, copies = use.shape
        seen = patches(use, tf.cast(use.met, cotangents.dtype))
        seen = tf.reshape(seen, [batch, -1, math.prod(taps), channels])
        cotangents = tf.reshape(cotangents, [batch, -1, channels, copies])
        return tf.reshape(tf.einsum("btkc,btcm->bkcm", seen, cotangents), [batch, -1])
    if use.kind == SUM:
        found = cotangents if use.is_offset else cotangents * tf.cast(use.met, cotangents.dtype)
        return without_broadcast(use, found, [batch])
    left, right = _factors(use, cotangents, batch)
    return tf.reshape(tf.matmul(left, right, transpose_a=True), [batch, -1])


def without_broadcast(use: Use, found: tf.Tensor, lead: Sequence[int]) -> tf.Tensor:
    """Return what an elementwise use's source gets, (*lead, elements), of what its results get, (*lead, units).

    That is their sum over what the source was broadcast to, or minus that where it is subtracted.
    """
    shape = use.shape[1:] if len(use.shape) == use.output.shape.rank else use.shape
    found = tf.reshape(-found if use.is_subtracted else found, [*lead, -1, *use.output.shape[1:]])
    missing = found.shape.rank - len(shape)
    summed = [axis for axis in range(len(lead), found.shape.rank) if axis < missing or shape[axis - missing] == 1]
    return tf.reshape(tf.reduce_sum(found, summed), [*lead, -1])


def _in_place(use: Use, gradients: tf.Tensor) -> tf.Tensor:
    """The gradients of a part of a variable as those of the whole variable, shape (batch, elements)."""
    if use.part is None:
        return gradients
    first, count = use.part
    return tf.pad(gradients, [[0, 0], [first, count - first - gradients.shape[1]]])


def patches(use: Use, images: tf.Tensor) -> tf.Tensor:
    """What a convolution's filter meets at each position: shape (batch, y, x, elements of the filter)."""
    padding = use.op.get_attr("padding").decode()
    if padding == "EXPLICIT":
        pairs = use.op.get_attr("explicit_paddings")
        images, padding = tf.pad(images, [pairs[:2], pairs[2:4], pairs[4:6], pairs[6:]]), "VALID"
    count = math.prod(use.shape[:3])
    if count <= costs.GATHERED:
        one_hot = tf.reshape(tf.eye(count, dtype=images.dtype), [*use.shape[:3], count])
        strides, dilations = use.op.get_attr("strides"), use.op.get_attr("dilations")
        return tf.nn.conv2d(images, one_hot, strides[1:3], padding, dilations=dilations[1:3])
    sizes = [1, *use.shape[:2], 1]
    return tf.image.extract_patches(images, sizes, use.op.get_attr("strides"), use.op.get_attr("dilations"), padding)
