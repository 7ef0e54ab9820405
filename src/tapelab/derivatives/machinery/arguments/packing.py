"""Several tensors as one vector, and back: the order of the rows and columns of a packed Hessian."""

import math
from collections.abc import Sequence
from typing import Any

from tapelab.derivatives.machinery.arguments.structures import flatten, names, unflatten
from tapelab.process.tensorflow import tf


def pack(structure: Any) -> tf.Tensor:
    """Concatenate a nested structure of tensors into one vector.

    The order is that of the structure (dictionaries by sorted key), and within a tensor row by row.

    Args:
        structure: tensors, arrays or variables of one dtype, nested.

    Returns:
        A tensor of shape (n,), n the number of all elements.

    Raises:
        ValueError: if there is no tensor.
        TypeError: if the dtypes differ.
    """
    leaves: list[Any] = []
    flatten(structure, leaves, numbers=True)
    if not leaves:
        raise ValueError("there is no tensor to pack; pass at least one")
    tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
    require_one_dtype([tensor.dtype for tensor in tensors])
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(vector: tf.Tensor, like: Any) -> Any:
    """Cut a vector into tensors of the shapes and the structure of another value: the inverse of `pack`.

    Args:
        vector: tensor of shape (n,).
        like: tensors, arrays or variables with n elements in all, nested.

    Returns:
        The structure of ``like`` with tensors of its shapes and of the vector's dtype.

    Raises:
        ValueError: if ``vector`` is not a vector of n elements.
    """
    leaves: list[Any] = []
    description = flatten(like, leaves, numbers=True)
    shapes = [tuple(tf.convert_to_tensor(leaf).shape) for leaf in leaves]
    vector = tf.convert_to_tensor(vector)
    sizes = [math.prod(shape) for shape in shapes]
    if vector.shape != (sum(sizes),):
        parts = ", ".join(f"{name} {shape}" for name, shape in zip(names(description, "like"), shapes, strict=True))
        raise ValueError(f"vector has shape {tuple(vector.shape)}; expected ({sum(sizes)},), for {parts}")
    return unflatten(description, iter(split(vector, shapes)))


def split(vector: tf.Tensor, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Cut a vector into tensors of these shapes, in order."""
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def require_one_dtype(dtypes: Sequence[tf.DType]) -> None:
    """Raise TypeError if these dtypes cannot share one vector."""
    if len(set(dtypes)) > 1:
        found = ", ".join(sorted({dtype.name for dtype in dtypes}))
        raise TypeError(f"one vector has one dtype, but these are {found}; cast them to one, or use packed=False")
