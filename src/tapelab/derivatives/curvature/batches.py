"""A data set in batches, and the check that a loss over it is what its batches' losses add up to."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tapelab.derivatives.machinery.arguments.checks import require_positive
from tapelab.derivatives.machinery.arguments.structures import Description, flatten, names, unflatten
from tapelab.derivatives.machinery.errors import CoupledExamplesError
from tapelab.process.tensorflow import Tensors, tf

import numpy as np
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too


class Batch(NamedTuple):
    """One batch.

    Attributes:
        size: how many examples it has.
        args: (x, y), or (x,).
    """

    size: int
    args: tuple


class Batches:
    """A data set that can be gone through again and again.

    Args:
        data: a `tf.data.Dataset` of batches, each a pair (x, y) or x alone; or a pair (x, y) of arrays. Either may be
            nested; the first axis of every tensor is the examples'.
        batch_size: into how many examples to cut arrays; None for all at once.

    Raises:
        TypeError: for anything else.
        ValueError: for a data set without end, a batch_size with a Dataset, or arrays without examples.
    """

    def __init__(self, data: Any, batch_size: int | None):
        require_positive(batch_size=1 if batch_size is None else batch_size)
        if isinstance(data, tf.data.Dataset):
            if batch_size is not None:
                raise ValueError("batch_size is for arrays; a Dataset has its own batches: use data.batch(batch_size)")
            if data.cardinality() == tf.data.INFINITE_CARDINALITY:
                raise ValueError("the Dataset has no end; use data.take(number of batches), before .repeat()")
            self._batches = data
        elif isinstance(data, tuple) and len(data) == 2:
            self._batches = list(_cut(data, batch_size))
        else:
            raise TypeError(
                f"data is a {type(data).__name__}; expected a tf.data.Dataset of batches, or a pair of arrays (x, y)"
            )

    def __iter__(self) -> Iterator[Batch]:
        found = False
        for args in self._batches:
            if not isinstance(args, tuple):
                args = (args,)
            if len(args) > 2:
                raise ValueError(
                    f"a batch has {len(args)} parts; expected (x, y). Sample weights and the like belong into y, for "
                    "the loss to take apart"
                )
            size = _size(args)
            if size:
                found = True
                yield Batch(size, args)
        if not found:
            raise ValueError("the data set has no example")


def require_additive(model: Callable, loss: Callable | None, reduction: str, batch: Batch) -> None:
    """Raise unless what the model and the loss make of a batch is made of what they make of its two parts.

    Args:
        model: takes x, returns outputs whose first axis is the examples'.
        loss: called as ``loss(y, outputs)``; None to look at the model alone.
        reduction: "mean" or "sum", what the loss is over its examples.
        batch: of any size.

    Raises:
        CoupledExamplesError: if an example's outputs depend on the others, or on chance.
        ValueError: if the outputs do not have the examples first, or the loss is not the mean, or the sum, over them.
    """
    args = [_rows(part, [0, 0]) for part in batch.args] if batch.size == 1 else batch.args
    size = max(batch.size, 2)
    first = (size + 2) // 3
    parts, sizes = (slice(None, first), slice(first, None)), (first, size - first)
    whole, description = _flat(model(args[0]))
    if any(output.shape[:1] != (size,) for output in whole):
        shapes = ", ".join(str(tuple(output.shape)) for output in whole)
        raise ValueError(
            f"the model returned shapes {shapes} for {size} examples; expected them along the first axis of each "
            "output. If that is meant, pass check_independence=False: each batch then counts as it is"
        )
    for output, alone in zip(whole, _flat(model(_rows(args[0], parts[0])))[0], strict=True):
        if not _close(output[:first], alone, output.dtype):
            raise CoupledExamplesError(
                f"the outputs of the first {first} of {size} examples are others in a batch of their own: examples "
                "depend on each other, as by batch normalisation in training mode, or on chance, as by dropout. Call "
                "the model with training=False; check_independence=False takes each batch as it is"
            )
    if loss is None:
        return

    def value(outputs: Tensors, part: slice) -> tf.Tensor:
        return tf.convert_to_tensor(loss(*[_rows(y, part) for y in args[1:]], unflatten(description, iter(outputs))))

    for shift in (0, 1):  # a loss of zero, as of a perfect fit, does not tell a mean from a sum
        outputs = [output + tf.cast(shift, output.dtype) for output in whole]
        total = value(outputs, slice(None))
        values = [float(value([output[part] for output in outputs], part)) for part in parts]
        if any(values):
            break
    # A Keras loss computes in float32 unless it is told otherwise.
    dtype = max((total.dtype, whole[0].dtype), key=lambda dtype: finfo(dtype.as_numpy_dtype).eps)
    expected = {"mean": np.average(values, weights=sizes), "sum": sum(values)}
    fitting = [name for name, found in expected.items() if _close(total, found, dtype)]
    if reduction not in fitting and np.isfinite([total, *values]).all():  # NaN says nothing
        advice = (
            f'It is their {fitting[0]}: pass reduction="{fitting[0]}"'
            if fitting
            else "A penalty that is added to a sum would count once for each batch, and a mean over what is not masked "
            "gives examples different weights. Change the loss; check_independence=False takes each batch as it is"
        )
        raise ValueError(
            f"the loss is not the {reduction} over the examples: it is {values[0]:.6g} and {values[1]:.6g} for the two "
            f"parts of a batch, of {sizes[0]} and {sizes[1]} examples, and {total:.6g} for both together. {advice}"
        )


def _cut(data: Sequence[Any], batch_size: int | None) -> Iterator[tuple[Any, ...]]:
    size = _size(data)
    if not size:
        raise ValueError("the arrays hold no example")
    for start in range(0, size, batch_size or size):
        yield tuple(_rows(part, slice(start, start + (batch_size or size))) for part in data)


def _size(args: Any) -> int:
    """The number of examples in (x, y)."""
    leaves: list[Any] = []
    labels = names(flatten(args, leaves, numbers=True), "the batch")
    shapes = [tuple(np.shape(leaf)) for leaf in leaves]
    sizes: set[Any] = {shape[0] if shape else None for shape in shapes}
    if len(sizes) != 1 or None in sizes:
        found = ", ".join(f"{label} {shape}" for label, shape in zip(labels, shapes, strict=True)) or "none"
        raise ValueError(
            f"the tensors of a batch need one first axis, the examples', and have shapes {found}. A Dataset of single "
            "examples becomes one of batches by .batch(size)"
        )
    return sizes.pop()


def _rows(value: Any, part: slice | list[int]) -> Any:
    """Some of the examples of nested tensors: a slice, or a list of their numbers."""
    leaves: list[Any] = []
    description = flatten(value, leaves, numbers=True)
    tensors = map(tf.convert_to_tensor, leaves)
    taken = [tensor[part] if isinstance(part, slice) else tf.gather(tensor, part) for tensor in tensors]
    return unflatten(description, iter(taken))


def _flat(outputs: Any) -> tuple[list[tf.Tensor], Description]:
    leaves: list[Any] = []
    description = flatten(outputs, leaves, numbers=True)
    return [tf.convert_to_tensor(leaf) for leaf in leaves], description


def _close(found: Any, expected: Any, dtype: tf.DType) -> bool:
    """Whether two tensors or numbers differ by rounding, relative to the largest."""
    if not dtype.is_floating:
        return True
    found, expected = (np.asarray(value).astype(np.float64) for value in (found, expected))
    if found.shape != expected.shape:
        return False
    difference = np.nan_to_num(np.abs(found - expected), nan=0.0)
    largest = np.max(np.nan_to_num(np.abs(found)), initial=0.0)
    return bool(np.all(difference <= float(finfo(dtype.as_numpy_dtype).eps) ** 0.5 * largest))
