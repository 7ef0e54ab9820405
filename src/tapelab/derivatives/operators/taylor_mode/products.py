"""Products of many elements, by products of two: where some are 0, no division by them is needed."""

from collections.abc import Callable, Sequence

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.bilinear import Product
from tapelab.derivatives.operators.taylor_mode.kinds import bilinear_of
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val, over_lanes, replaced
from tapelab.graphs.program import reissue
from tapelab.process.tensorflow import tf

import numpy as np


def product(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """The product along some axes, half of them times the other half."""
    y = reissue(op, values)[0]
    shape = vals[0].v.shape
    axes = [int(axis) % shape.rank for axis in np.ravel(_known(values[1], "axes"))]
    kept = [axis for axis in range(shape.rank) if axis not in axes]
    sizes = [shape[axis] for axis in kept]
    a = _mapped(vals[0], lambda x: tf.reshape(tf.transpose(x, [*axes, *kept]), [-1, *sizes]))
    while (count := a.v.shape[0]) > 1:
        half = count // 2
        first, second, left = (
            _mapped(a, lambda x, start=start, end=end: x[start:end])
            for start, end in ((0, half), (half, 2 * half), (2 * half, count))
        )
        a = _joined(algebra, [_times(algebra, first, second), left])
    return [_shaped(a if count else Val(tf.ones([1, *sizes], y.dtype)), y)]


def cumulative_product(
    algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]
) -> list[Val]:
    """The products of the first 1, 2, 4 … elements along an axis, each of two that are known."""
    axis, rank = int(_known(values[1], "axis")), vals[0].v.shape.rank
    front = [axis % rank, *[other for other in range(rank) if other != axis % rank]]
    y = reissue(op, values)[0]
    turn = (lambda x: x[::-1]) if op.get_attr("reverse") else (lambda x: x)
    a = _mapped(vals[0], lambda x: turn(tf.transpose(x, front)))
    if op.get_attr("exclusive"):
        a = _later(algebra, a, 1)
    a = _scanned(algebra, a, lambda before, step: before)
    return [Val(y, _mapped(a, lambda x: tf.transpose(turn(x), np.argsort(front))).ch)]


def segment_product(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """The products of the elements of each segment: of each and those before it in its segment; the last is wanted."""
    y = reissue(op, values)[0]
    if y.shape[0] is None:
        y = tf.ensure_shape(y, [int(_known(values[1], "segments")[-1]) + 1, *y.shape[1:]])
    ids = tf.reshape(values[1], [-1])
    count, rest = ids.shape[0], vals[0].v.shape[values[1].shape.rank :]
    order = tf.argsort(ids, stable=True)
    ids = tf.gather(ids, order)
    a = _mapped(vals[0], lambda x: tf.gather(tf.reshape(x, [count, *rest]), order))

    def within(before, step):
        other = tf.concat([tf.fill([min(step, count)], False), ids[step:] == ids[:-step]], 0)
        return replaced(tf.reshape(~other, [count, *[1] * len(rest)]), before, tf.ones_like(before.v))

    a = _scanned(algebra, a, within)
    last = tf.math.unsorted_segment_max(tf.range(count), ids, y.shape[0])
    found = _mapped(a, lambda x: tf.gather(x, tf.maximum(last, 0)))
    empty = tf.reshape(last < 0, [-1, *[1] * len(rest)])
    return [Val(y, replaced(empty, found, tf.ones_like(y)).ch)]


def _scanned(algebra, a, usable: Callable[[Val, int], Val]):
    """The products of each element along the first axis with those before it that may be used."""
    step = 1
    while step < a.v.shape[0]:
        a = _times(algebra, a, usable(_later(algebra, a, step), step))
        step *= 2
    return a


def _later(algebra, a, step):
    """Move elements along the first axis, ones coming in."""
    ones = Val(tf.ones_like(a.v[:step]))
    return _joined(algebra, [ones, _mapped(a, lambda x: x[:-step])])


def _known(tensor, what):
    value = tf.get_static_value(tensor)
    if value is None:
        raise NoRule(f"{what} that are not known while it is traced")
    return value


def _times(algebra, a, b):
    return bilinear_of(algebra, Product(a.v, b.v), a, b, a.v * b.v)


def _mapped(a, run):
    """Apply a function that moves elements to the value and to every lane."""
    a = a.filled()
    return Val(
        run(a.v), a.ch and [None if c is None else over_lanes(lambda parts: [run(parts[0])], [c])[0] for c in a.ch]
    )


def _joined(algebra, parts):
    """Concatenate along the first axis."""
    channels = []
    for k, lanes in enumerate(algebra.lanes):
        own = [part.ch and part.ch[k] for part in parts]
        zeros = [tf.zeros([lanes, *part.v.shape], part.v.dtype) for part in parts]
        none = all(c is None for c in own)
        channels.append(
            None if none else tf.concat([z if c is None else c for c, z in zip(own, zeros, strict=True)], 1)
        )
    return Val(tf.concat([part.v for part in parts], 0), channels)


def _shaped(a, y):
    return Val(y, a.ch and [None if c is None else tf.reshape(c, [c.shape[0], *y.shape]) for c in a.ch])
