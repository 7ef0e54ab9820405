"""Of each element of a tensor, the elements of the sources that it depends on: one row of a boolean matrix each.

A dependence holds for every value of the arguments, so it may say too much and never too little.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tapelab.derivatives.machinery.errors import MemoryLimitError
from tapelab.derivatives.machinery.memory import human
from tapelab.process.tensorflow import tf

import numpy as np
from scipy import sparse

Room = Callable[[float], None]  # raises MemoryLimitError if a matrix of so many entries is too large

_BYTES = 16  # of an entry: while it is sorted, its index is there twice, with its place


class NoRule(Exception):
    """An operation for which nothing better is known than that all of it depends on all of its inputs."""


@dataclass(frozen=True)
class Dependence:
    """What is known of a tensor.

    Attributes:
        shape: None if it is not known; then `matrix` has one row, which is that of every element.
        matrix: shape (elements, elements of the sources), boolean; None if it depends on no source.
        value: an eager tensor, if it is the same at every call.
        items: for a list of tensors, or a box for one, what is known of each of them; None for an empty place.
    """

    shape: tuple[int, ...] | None
    matrix: sparse.csr_array | None = None
    value: tf.Tensor | None = None
    items: tuple["Dependence | None", ...] | None = None

    @property
    def depends(self) -> bool:
        return self.matrix is not None or any(item is not None and item.depends for item in self.items or ())

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where it has to be known."""
        return known_shape(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.sizes)


def known_shape(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return a shape that a rule needs; raises `NoRule` if it is not known."""
    if shape is None:
        raise NoRule("a shape is not known in a graph")
    return shape


def room_for(name: str, limit: float) -> Room:
    """Return a function that raises if a matrix of dependences with so many entries does not fit the limit."""

    def room(entries: float) -> None:
        if entries * _BYTES > limit:
            raise MemoryLimitError(
                f"{name}: on the way to the result there is a tensor whose elements depend on {entries:.3g} elements "
                f"of the sources in all; to follow them takes about {human(entries * _BYTES)}, and the limit is "
                f"{human(limit)}. This derivative is not sparse: use jacobian or hessian, jvp or hvp; or raise the "
                "limit with memory_limit="
            )

    return room


def numbers(shape: Sequence[int], start: int = 0) -> np.ndarray:
    """Return an array of this shape with the numbers of its elements."""
    return np.arange(start, start + math.prod(shape)).reshape(tuple(shape))


def identity(count: int, start: int, total: int) -> sparse.csr_array:
    """The dependence of a source: its elements are those from ``start`` on."""
    columns = np.arange(start, start + count, dtype=np.int32)
    return sparse.csr_array((np.ones(count, bool), columns, np.arange(count + 1)), shape=(count, total))


def union(matrices: Sequence[sparse.csr_array]) -> sparse.csr_array:
    """What depends on either; all have one shape."""
    found = matrices[0]
    for matrix in matrices[1:]:
        if matrix is not found:
            found = found + matrix
    return found


def take(matrix: sparse.csr_array, index: np.ndarray | np.integer, room: Room) -> sparse.csr_array:
    """Return the rows of these numbers, an empty one for -1."""
    index = np.asarray(index).ravel()
    if len(index) == matrix.shape[0] and np.array_equal(index, np.arange(len(index))):
        return matrix
    lengths = np.append(np.diff(matrix.indptr), 0)
    room(lengths[index].sum(dtype=float))
    if (index < 0).any():
        matrix = sparse.vstack([matrix, sparse.csr_array((1, matrix.shape[1]), dtype=bool)], format="csr")
        index = np.where(index < 0, matrix.shape[0] - 1, index)
    return matrix[index]


def applied(own: sparse.csr_array, matrix: sparse.csr_array, room: Room) -> sparse.csr_array:
    """Return what the results of an operation depend on, from what each takes of its input, and what that depends on.

    Args:
        own: shape (elements of the result, elements of the input), boolean.
    """
    lengths = np.diff(matrix.indptr)
    room(own.nnz + lengths[own.indices].sum(dtype=float))
    found = own @ matrix
    found.sort_indices()
    return found


def pairs(outputs: np.ndarray, inputs: np.ndarray, shape: tuple[int, int]) -> sparse.csr_array:
    """The matrix for `applied` in which output ``outputs[i]`` takes input ``inputs[i]``, for all i."""
    outputs, inputs = np.ravel(outputs), np.ravel(inputs)
    return sparse.csr_array((np.ones(len(inputs), bool), (outputs, inputs)), shape=shape)


def grouped(
    matrix: sparse.csr_array, inputs: np.ndarray, outputs: np.ndarray, count: int, room: Room
) -> sparse.csr_array:
    """Return a row for each element of ``outputs``: what any row of the same group has.

    Args:
        inputs: the group of each row of the matrix, from 0 to ``count`` - 1.
        outputs: the group of each row of the result.
    """
    inputs = np.ravel(inputs)
    own = pairs(inputs, np.arange(len(inputs)), (count, len(inputs)))
    return take(applied(own, matrix, room), outputs, room)


def everything(known: Sequence[Dependence], shape: tuple[int, ...] | None, room: Room) -> Dependence:
    """What depends, in each of its elements, on all that these depend on."""
    rows = [
        sparse.csr_array(matrix.max(axis=0, explicit=False).reshape(1, -1)).astype(bool)
        for matrix in _matrices(known)
        if matrix.shape[0]
    ]
    if not rows:
        return Dependence(shape)
    row = union(rows)
    return Dependence(shape, row if shape is None else take(row, np.zeros(math.prod(shape), int), room))


def _matrices(known: Iterable[Dependence | None]) -> Iterator[sparse.csr_array]:
    for one in known:
        if one is None:
            continue
        if one.matrix is not None:
            yield one.matrix
        yield from _matrices(one.items or ())
