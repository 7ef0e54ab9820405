"""Operators of second order by nested tapes: reverse mode over reverse mode, one direction after the other."""

from collections.abc import Sequence

from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.rows import map_rows
from tapelab.runtime import tf


def nested(
    problem: Problem,
    tensors: Sequence[tf.Tensor],
    directions: Sequence[tf.Tensor],
    weights: tf.Tensor | None,
    drift: Sequence[tf.Tensor] | None,
    *,
    batched: bool,
    how: str,
    chunk: int,
) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
    """Compute Σ_r w_r (v_r·∇)² f + b·∇f, for each element of f's results.

    Args:
        directions: for each source, (directions, *its shape), where the batch may have length 1.
        weights: (directions,), None for ones.
        drift: for each source, of its shape or with a batch of 1; None for none.
        how, chunk: as for `map_rows`.

    Returns:
        Three lists, an entry for each result: values, of f's shapes; the operator, of f's shapes; and derivatives along
        the directions, (directions, *shape).
    """
    count = directions[0].shape[0]
    if drift is not None:  # one direction more, whose second derivative has no weight
        directions = [_joined(v, b) for v, b in zip(directions, drift, strict=True)]
    lanes = directions[0].shape[0]
    values = problem.evaluate(tensors)
    sums, slopes = [], []
    for number, value in enumerate(values):
        lead = list(value.shape[:1]) if batched else []
        size = value.shape[len(lead) :].num_elements()

        def row(index, number=number, lead=lead, size=size):
            element, lane = index // lanes, index % lanes
            with tf.GradientTape(watch_accessed_variables=False) as outer:
                outer.watch(problem.sources(tensors))
                tape, sources, outputs = recorded(problem, tensors)
                output = outputs[number]
                seed = tf.broadcast_to(tf.one_hot(element, size, dtype=output.dtype), [*lead, size])
                gradients = tape.gradient(output, sources, output_gradients=tf.reshape(seed, output.shape))
                gradients = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            tangents = [tf.broadcast_to(tf.gather(v, lane), x.shape) for v, x in zip(directions, sources, strict=True)]
            used = [(g, v) for g, v in zip(gradients, tangents, strict=True) if g is not None]
            bends = dense_gradient(outer, [g for g, _ in used], sources, [v for _, v in used]) if used else []
            return [
                _inner(bends, tangents if used else [], lead, output.dtype),
                _inner([g for g, _ in used], [v for _, v in used], lead, output.dtype),
            ]

        specs = [tf.TensorSpec(lead, value.dtype)] * 2
        bends, along = (
            tf.reshape(part, [size, lanes, *lead]) for part in map_rows(row, specs, size * lanes, how, chunk)
        )
        w = tf.ones([count], value.dtype) if weights is None else tf.cast(weights, value.dtype)
        operator = tf.tensordot(bends[:, :count], w, [[1], [0]])
        if drift is not None:
            operator += along[:, count]
        sums.append(_shaped(operator, value))
        slopes.append(tf.stack([_shaped(along[:, lane], value) for lane in range(count)]))
    return values, sums, slopes


def _joined(v, b):
    shape = tf.broadcast_static_shape(v.shape[1:], b.shape)
    return tf.concat([tf.broadcast_to(v, [v.shape[0], *shape]), tf.broadcast_to(b, shape)[None]], 0)


def _inner(left, right, lead, dtype):
    """The inner product over all sources, for each example."""
    products = [
        tf.cast(tf.reduce_sum(tf.reshape(a * b, [*lead, -1]), -1), dtype) for a, b in zip(left, right, strict=True)
    ]
    return tf.add_n(products) if products else tf.zeros(lead, dtype)


def _shaped(rows, value):
    """(elements, *batch) to the value's shape."""
    return tf.reshape(tf.transpose(rows, [*range(1, rows.shape.rank), 0]), value.shape)
