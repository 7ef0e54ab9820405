"""Stacking what a function returns for 0, 1, 2, …: the loop inside every Jacobian, in three ways.

VECTORIZED  `tf.vectorized_map`: one operation for all rows at once. Fastest, and does not know every operation.
LOOP        `tf.map_fn`: a loop in the graph. Knows what the graph knows.
EAGER       a Python loop, outside any graph. Knows everything.
"""

from collections.abc import Callable
from functools import partial

from tapelab.derivatives.machinery.recipe import Way
from tapelab.derivatives.machinery.vectorized import vectorized
from tapelab.process.tensorflow import Tensors, tf

VECTORIZED, LOOP, EAGER = "vectorised", "loop", "eager"


def map_rows(
    row: Callable[[int | tf.Tensor], list[tf.Tensor]],
    specs: list[tf.TensorSpec],
    count: int,
    how: str,
    chunk: int | None = None,
) -> list[tf.Tensor]:
    """Call ``row(0)``, …, ``row(count - 1)`` and stack the results.

    Args:
        row: takes an integer, a scalar tensor in the first two ways; returns a list of tensors.
        specs: the `tf.TensorSpec` of each of those tensors, of fixed shape.
        count: how many, at least 0.
        how: VECTORIZED, LOOP or EAGER.
        chunk: how many rows are vectorised at once; None for all. The other ways work on one at a time.

    Returns:
        The list of the stacked tensors, each with ``count`` as its first axis.
    """
    if count == 0:
        return [tf.zeros([0, *spec.shape], spec.dtype) for spec in specs]
    if how == EAGER:
        return [tf.stack(parts) for parts in zip(*[row(index) for index in range(count)], strict=True)]
    if how == LOOP:
        return _loop(row, specs, tf.range(count))
    if chunk is None or chunk >= count:
        return vectorized(row, tf.range(count))
    whole = count // chunk
    batches = [tf.TensorSpec([chunk, *spec.shape], spec.dtype) for spec in specs]
    stacked = _loop(lambda start: vectorized(row, start + tf.range(chunk)), batches, chunk * tf.range(whole))
    stacked = [tf.reshape(part, [whole * chunk, *spec.shape]) for part, spec in zip(stacked, specs, strict=True)]
    if whole * chunk == count:
        return stacked
    rest = vectorized(row, tf.range(whole * chunk, count))
    return [tf.concat(pair, axis=0) for pair in zip(stacked, rest, strict=True)]


def row_ways(label: str, compute: Callable[[str, Tensors], list[tf.Tensor]], chunk: int) -> list[Way]:
    """Return a `Way` for each of the three: ``compute`` takes how, and then the flat list of tensors."""
    return [
        Way(f"{label}, {how}", partial(compute, how), eager=how == EAGER, chunk=chunk if how == VECTORIZED else 1)
        for how in (VECTORIZED, LOOP, EAGER)
    ]


def _loop(
    row: Callable[[tf.Tensor], list[tf.Tensor]], specs: list[tf.TensorSpec], indices: tf.Tensor
) -> list[tf.Tensor]:
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        return tf.map_fn(row, indices, fn_output_signature=specs, parallel_iterations=1)
    finally:
        # `map_fn` sets this for its loop and forgets it where `row` raises; a distribution strategy then fails later.
        if scope.caching_device is not before:
            scope.set_caching_device(before)
