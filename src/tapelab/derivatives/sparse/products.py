"""Dependences through products of matrices and other sums of products."""

import math
from collections.abc import Mapping, Sequence

from tapelab.derivatives.sparse.dependence import NoRule, applied, grouped, pairs, union
from tapelab.derivatives.sparse.rules import Matrix, Step
from tapelab.graphs.operations import known

import numpy as np
from scipy import sparse


def _matrices(step: Step) -> list[Matrix]:
    """MatMul and its batched forms, as sums over letters."""
    first, second = map(step.op.get_attr, known(step.op.type).transposed_by)
    ranks = [len(one.sizes) for one in step.known]
    batch = "abcdefghij"[: max(ranks) - 2]
    sides = ("xy" if first else "yx", "zx" if second else "xz")
    terms = [batch[len(batch) - rank + 2 :] + own for rank, own in zip(ranks, sides, strict=True)]
    return _summed(step, terms, batch + "yz")


def _einsum(step: Step) -> list[Matrix]:
    terms, out = step.op.get_attr("equation").decode().split("->")
    terms = terms.split(",")
    # Ranks of what the ellipses stand for; upper-case Greek letters are not allowed in an equation otherwise.
    hidden = [
        len(one.sizes) - len(term.replace("...", "")) if "..." in term else 0
        for one, term in zip(step.known, terms, strict=True)
    ]
    letters = "".join(chr(0x391 + index) for index in range(max(hidden)))
    terms = [term.replace("...", letters[len(letters) - count :]) for term, count in zip(terms, hidden, strict=True)]
    return _summed(step, terms, out.replace("...", letters))


def _summed(step: Step, terms: Sequence[str], out: str) -> list[Matrix]:
    """The result is a sum of products of elements of the inputs, by the letters of their axes."""
    if any(len(set(term)) < len(term) for term in [*terms, out]):
        raise NoRule("a letter is there twice")
    terms, sizes = list(terms), dict[str, int]()
    for index, (term, one) in enumerate(zip(terms, step.known, strict=True)):
        sizes |= {letter: size for letter, size in zip(term, one.sizes, strict=True) if size != 1}
        # An axis of size 1 is broadcast, or sums over nothing.
        terms[index] = "".join(letter for letter, size in zip(term, one.sizes, strict=True) if size != 1)
    out = "".join(letter for letter in out if letter in sizes)
    parts = []
    for index in step.moving:
        others = [other for other in range(len(terms)) if other != index]
        factor = step.known[others[0]].value if len(others) == 1 else None
        factor = None if factor is None else factor.numpy().reshape([sizes[letter] for letter in terms[others[0]]])
        if factor is not None and (factor == 0).any():
            parts.append(_by_factor(step, index, terms[index], terms[others[0]], out, sizes, factor))
        else:
            kept = "".join(letter for letter in terms[index] if letter in out)
            inputs, outputs = (_places(axes, kept, sizes) for axes in (terms[index], out))
            count = math.prod(sizes[letter] for letter in kept)
            parts.append(grouped(step.known[index].matrix, inputs, outputs, count, step.room))
    return [union(parts)]


def _by_factor(
    step: Step, index: int, own: str, other: str, out: str, sizes: Mapping[str, int], factor: np.ndarray
) -> sparse.csr_array:
    """Only where a constant factor is not zero does an input count."""
    at = dict(zip(other, np.nonzero(factor), strict=True))
    count = int(np.count_nonzero(factor))
    rest = "".join(letter for letter in dict.fromkeys(own + out) if letter not in other)
    grid = {letter: _places(rest, letter, sizes) for letter in rest}
    step.room(count * math.prod(sizes[letter] for letter in rest))

    def places_of(axes: str) -> np.ndarray:
        strides = {letter: math.prod(sizes[after] for after in axes[place + 1 :]) for place, letter in enumerate(axes)}
        fixed = sum((at[letter] * stride for letter, stride in strides.items() if letter in at), np.zeros(count, int))
        free = sum(
            (grid[letter] * stride for letter, stride in strides.items() if letter in grid),
            np.zeros([sizes[letter] for letter in rest], int),
        )
        return fixed[:, None] + np.ravel(free)

    outputs, inputs = (math.prod(sizes[letter] for letter in axes) for axes in (out, own))
    factors = pairs(places_of(out), places_of(own), (outputs, inputs))
    return applied(factors, step.known[index].matrix, step.room)


def _places(axes: str, kept: str, sizes: Mapping[str, int]) -> np.ndarray:
    """For each element of an array with these axes, the number of its place along those that are kept."""
    found = np.zeros([sizes[letter] for letter in axes], int)
    for letter in kept:
        shape = [sizes[letter] if other == letter else 1 for other in axes]
        found = found * sizes[letter] + np.arange(sizes[letter]).reshape(shape)
    return found


def _sparse_matrix(step: Step) -> list[Matrix]:
    """A `tf.SparseTensor` times a matrix."""
    op, entries, dense = step.op, step.known[1], step.known[3]
    where = step.constant(0)
    rows, inner = where[:, 0], where[:, 1]
    if op.get_attr("adjoint_a"):
        rows, inner = inner, rows
    shape = step.out
    columns = np.arange(shape[1])
    outputs = rows[:, None] * shape[1] + columns
    parts = []
    if dense.matrix is not None:
        swapped = op.get_attr("adjoint_b")
        inputs = columns * dense.sizes[1] + inner[:, None] if swapped else inner[:, None] * shape[1] + columns
        used = np.ones(len(rows), bool) if entries.value is None else entries.value.numpy() != 0
        own = pairs(outputs[used], inputs[used], (math.prod(shape), dense.size))
        parts.append(applied(own, dense.matrix, step.room))
    if entries.matrix is not None:
        inputs = np.broadcast_to(np.arange(len(rows))[:, None], outputs.shape)
        parts.append(applied(pairs(outputs, inputs, (math.prod(shape), len(rows))), entries.matrix, step.room))
    return [union(parts)]


PRODUCTS = {
    **dict.fromkeys(["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"], _matrices),
    "Einsum": _einsum,
    "SparseTensorDenseMatMul": _sparse_matrix,
}
