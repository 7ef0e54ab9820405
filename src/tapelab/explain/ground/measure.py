"""What one tensor's values are like: finite, zero, how large. Also for tensor lists and IndexedSlices."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices  # what a tape returns, where there is one
Cotangents: TypeAlias = Sequence[tf.Tensor | None]
Attributes: TypeAlias = tuple[Any, ...]  # of an operation: alternating names and values

_EMPTY = np.zeros(0)


def dense(tensor: Gradient | None) -> tf.Tensor | None:
    """Return a tensor, where this is `tf.IndexedSlices` too; None for None."""
    return tf.convert_to_tensor(tensor) if isinstance(tensor, tf.IndexedSlices) else tensor


def array(tensor: Gradient | None) -> np.ndarray:
    """Return the values of a tensor as a real or complex array.

    Args:
        tensor: a tensor, `tf.IndexedSlices` or None. Of a tensor list, in which loops keep their values, all items.

    Returns:
        An array of float64 or complex128; empty for None, strings, booleans and handles, which carry no numbers.
    """
    if tensor is None or tensor.dtype in (tf.resource, tf.string, tf.bool):
        return _EMPTY
    if tensor.dtype == tf.variant:
        return _items(tensor)
    values = np.asarray(dense(tensor))
    if values.dtype.kind == "c":
        return values.astype(np.complex128, copy=False)
    return values.astype(np.float64, copy=False)


def _items(tensor_list: tf.Tensor) -> np.ndarray:
    """The numbers in a TensorFlow tensor list, a variant."""
    get = functools.partial(tf.raw_ops.TensorListGetItem, input_handle=tensor_list)
    for dtype in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
        try:
            shape = tf.raw_ops.TensorListElementShape(input_handle=tensor_list, shape_type=tf.int32)
            places = range(int(tf.raw_ops.TensorListLength(input_handle=tensor_list)))
            items = [get(index=i, element_shape=shape, element_dtype=dtype) for i in places]
            return np.concatenate([array(item).ravel() for item in items] or [_EMPTY])
        except (tf.errors.OpError, ValueError):
            continue  # the list holds another dtype, or the variant is no list
    return _EMPTY


@dataclasses.dataclass(frozen=True)
class NotFinite:
    """A part of a batch that is not finite.

    Attributes:
        part: what to call it: "x", "x['age']", "y", "sample_weight".
        index: of the first number that is not finite, a tuple; its first entry is the row.
        is_nan: whether that number is NaN, rather than infinite.
        rows: of all such numbers, a list of integers in order.
        count, size: how many numbers are not finite, and how many there are.
    """

    part: str
    index: tuple
    is_nan: bool
    rows: list
    count: int
    size: int

    def __str__(self) -> str:
        place = ", ".join(map(str, self.index))
        feature = ", ".join(map(str, self.index[1:]))
        text = f"{self.part}[{place}] is {'NaN' if self.is_nan else 'infinite'} (row {self.index[0]} of the batch"
        text += f", feature {feature})" if feature else ")"
        if self.count > 1:
            text += f", and {self.count - 1} more of its {self.size} numbers, in {len(self.rows)} of the rows"
        return text

    @classmethod
    def of(cls, name: str, value: Any) -> "NotFinite | None":
        """Look at a value, also a ragged or sparse one; None where all of it is finite. It has one axis or more."""
        if not tf.as_dtype(value.dtype).is_floating:
            return None
        if isinstance(value, tf.RaggedTensor):
            value = value.to_tensor()
        if isinstance(value, tf.SparseTensor):
            indices, numbers = value.indices.numpy(), np.asarray(value.values)
        else:
            numbers = np.asarray(value)
            numbers, indices = numbers.ravel(), np.indices(numbers.shape).reshape(numbers.ndim, -1).T
        bad = np.flatnonzero(~np.isfinite(numbers))
        if not bad.size or not indices.shape[1]:
            return None
        rows = [int(row) for row in np.unique(indices[bad, 0])]
        is_nan = bool(np.isnan(numbers[bad[0]]))
        return cls(name, tuple(map(int, indices[bad[0]])), is_nan, rows, len(bad), numbers.size)


class Measures:
    """Answers about tensors, each worked out once. The tensors must stay alive as long as this does."""

    def __init__(self):
        self._known = {}

    def _remember(self, question: str, tensor: Gradient | None, answer: Callable[[np.ndarray], Any]) -> Any:
        key = (question, id(tensor))
        if key not in self._known:
            self._known[key] = answer(array(tensor))
        return self._known[key]

    def not_finite(self, tensor: Gradient | None) -> bool:
        """Whether there is a NaN or an infinity."""
        return self._remember("not finite", tensor, lambda a: bool(a.size) and not np.isfinite(a).all())

    def nan(self, tensor: Gradient | None) -> bool:
        """Whether there is a NaN."""
        return self._remember("nan", tensor, lambda a: bool(np.isnan(a).any()))

    def zero(self, tensor: Gradient | None) -> bool:
        """Whether all elements are zero. False of a tensor without elements: nothing in it was made zero."""
        return self._remember("zero", tensor, lambda a: bool(a.size) and not a.any())

    def share_of_zeros(self, tensor: Gradient | None) -> float:
        """The share of elements that are zero; 0 where there are none."""
        return self._remember("share", tensor, lambda a: float((a == 0).mean()) if a.size else 0.0)


def rounding(tensor: Gradient) -> float:
    """Return the relative rounding error of a tensor's dtype; 0 for whole numbers."""
    dtype = tensor.dtype.real_dtype
    return float(finfo(dtype.as_numpy_dtype).eps) if dtype.is_floating else 0.0


def rms(values: np.ndarray) -> float:
    """Return the root mean square of an array, a float, without overflow on the way."""
    if not values.size:
        return 0.0
    largest = float(np.abs(values).max())
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * float(np.linalg.norm(values / largest)) / values.size**0.5


def number(value: float | complex | np.number) -> str:
    """Write a number with at most four significant digits."""
    if np.iscomplexobj(value):
        return f"{value:.3g}"
    real = float(np.real(value))
    if np.isnan(real):
        return "NaN"
    text = f"{real + 0.0:.4g}"  # no -0
    if "e" in text:
        digits, exponent = text.split("e")
        return f"{digits}e{int(exponent)}"
    return text


def value_text(values: np.ndarray) -> str:
    """Describe a forward value.

    Args:
        values: an array.

    Returns:
        The number; of several elements the shape and the range: "(3, 2)  -1 … 4"; and how many are not finite.
    """
    if not values.size:
        return f"{values.shape}  empty"
    if values.size == 1:
        return number(values.ravel()[0])
    bad = _not_finite(values)
    finite = values[np.isfinite(values)]
    if not finite.size or np.iscomplexobj(finite):
        return f"{values.shape}  {bad or 'complex'}"
    low, high = number(finite.min()), number(finite.max())
    between = f"all {low}" if low == high else f"{low} … {high}"
    return f"{values.shape}  {between}" + (f", {bad}" if bad else "")


def cotangent_text(values: np.ndarray) -> str:
    """Describe a cotangent.

    Args:
        values: an array.

    Returns:
        The number; of several elements the Euclidean norm, the share of zeros, and how many are not finite.
    """
    if not values.size:
        return "empty"
    if values.size == 1:
        return number(values.ravel()[0])
    if bad := _not_finite(values):
        return bad
    zeros = int((values == 0).sum())
    if zeros == values.size:
        return "all 0"
    text = f"norm {number(np.linalg.norm(values.ravel()))}"
    return text + (f", {round(100 * zeros / values.size)} % zeros" if zeros else "")


def shortened(text: str, longest: int) -> str:
    """Cut a text off that has more than so many characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _not_finite(values: np.ndarray) -> str:
    """Count NaN and infinities: "2 of 6 NaN"; empty where all are finite."""
    counts = ((int(np.isnan(values).sum()), "NaN"), (int(np.isinf(values).sum()), "inf"))
    return ", ".join(f"{count} of {values.size} {word}" for count, word in counts if count)
