"""Which columns, or rows, of a sparse matrix can share one product.

Columns without a common row can: the product with their sum holds the entries of all of them, each in its own place
(Curtis, Powell and Reid, "On the estimation of sparse Jacobian matrices", 1974). That is a colouring in which columns
that meet in a row have different colours. A symmetric matrix needs less, as each entry is there twice: neighbours have
different colours, and so do at least three of any four that lie on a path (a star colouring; Gebremedhin, Manne and
Pothen, "What color is your Jacobian?", 2005).

Both are found greedily: one after the other, each takes the first colour that is free. Sets of colours are the bits of
an integer, so that one pass takes time in proportion to the entries. Several orders are tried, until a lower bound is
met.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tapelab.derivatives import costs

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Colouring:
    """Colours of columns, of rows, or of both.

    Attributes:
        by: "columns", "rows" or "symmetric".
        colours: shape (columns,) or (rows,), from 0; -1 where there is no entry to find.
        count: how many colours there are.
        product: for each entry of the pattern, row by row, which product holds it: the number of a colour.
        place: for each entry, at which element of that product it is.
    """

    by: str
    colours: np.ndarray
    count: int
    product: np.ndarray
    place: np.ndarray


def colour_columns(pattern: sparse.csr_array) -> Colouring:
    """Colour columns, so that no two with an entry in one row have one colour."""
    colours = _best(pattern, _distance_two, int(np.diff(pattern.indptr).max(initial=0)))
    rows, columns = _coordinates(pattern)
    return Colouring("columns", colours, int(colours.max(initial=-1)) + 1, colours[columns], rows)


def colour_rows(pattern: sparse.csr_array) -> Colouring:
    """Colour rows, so that no two with an entry in one column have one colour."""
    turned = colour_columns(pattern.T.tocsr())
    rows, columns = _coordinates(pattern)
    return Colouring("rows", turned.colours, turned.count, turned.colours[rows], columns)


def colour_symmetric(pattern: sparse.csr_array) -> Colouring:
    """Star-colour a symmetric pattern; a product of any colour also holds what is below the diagonal."""
    candidates = [_best(pattern, _star, 1), _best(pattern, _distance_two, int(np.diff(pattern.indptr).max(initial=0)))]
    found = [_read(pattern, colours) for colours in candidates]
    return min(found, key=lambda colouring: colouring.count)


def colour(pattern: sparse.csr_array) -> Colouring:
    """Colour columns or rows, whichever takes fewer colours; columns if both take as many."""
    columns, rows = colour_columns(pattern), colour_rows(pattern)
    return columns if columns.count <= rows.count else rows


def _coordinates(pattern: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """The rows and the columns of the entries, row by row."""
    return np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)), pattern.indices


def _best(pattern: sparse.csr_array, greedy: Callable, least: int) -> np.ndarray:
    """The colours of the columns, by the order that needs the fewest; ``least`` are needed in any case."""
    turned = pattern.T.tocsr()
    neighbours = _lists(turned)
    used = np.flatnonzero(np.diff(turned.indptr))
    found: list[np.ndarray] = []
    quick = pattern.nnz > costs.COLOURED_QUICKLY
    for order in _orders(pattern, turned, used):
        found.append(greedy(neighbours, pattern.shape, order))
        if found[-1].max(initial=-1) < least or quick:
            break
    return min(found, key=lambda colours: colours.max(initial=-1))


def _lists(matrix: sparse.csr_array) -> list[list[int]]:
    """The column numbers of each row, as lists of Python integers: faster one by one."""
    indices, ends = matrix.indices.tolist(), matrix.indptr.tolist()
    return [indices[start:end] for start, end in itertools.pairwise(ends)]


def _orders(pattern: sparse.csr_array, turned: sparse.csr_array, used: np.ndarray) -> Iterator[np.ndarray]:
    """Orders of the columns: those that meet most others first, as they are, and the smallest last."""
    # How many meet a column in a row, counted once for each row.
    degrees = turned.astype(np.int64) @ np.diff(pattern.indptr)
    yield used[np.argsort(-degrees[used], kind="stable")]
    yield used
    yield _smallest_last(turned, used)


def _smallest_last(turned: sparse.csr_array, used: np.ndarray) -> np.ndarray:
    """Take away, one after the other, the column with the fewest entries in rows that are still met by others."""
    rows = _lists(turned)
    columns = _lists(turned.T.tocsr())
    degree = {j: sum(len(columns[r]) - 1 for r in rows[j]) for j in used.tolist()}
    buckets: dict[int, list[int]] = {}
    for j, d in degree.items():
        buckets.setdefault(d, []).append(j)
    left = [len(column) for column in columns]
    removed: set[int] = set()
    order: list[int] = []
    lowest = 0
    while len(order) < len(degree):
        while not buckets.get(lowest):
            lowest += 1
        j = buckets[lowest].pop()
        if j in removed or degree[j] != lowest:
            continue
        removed.add(j)
        order.append(j)
        for r in rows[j]:
            left[r] -= 1
            # Beyond some columns in a row, its part of their degrees is the same for all: it orders nothing.
            if len(columns[r]) <= costs.COLOURED_ROW:
                for other in columns[r]:
                    if other not in removed:
                        degree[other] -= 1
                        buckets.setdefault(degree[other], []).append(other)
                        lowest = min(lowest, degree[other])
    return np.array(order[::-1], int)


def _first_free(taken: int) -> int:
    return (~taken & (taken + 1)).bit_length() - 1


def _distance_two(rows_of: Sequence[Sequence[int]], shape: tuple[int, int], order: np.ndarray) -> np.ndarray:
    """Give each column the first colour that none has with which it shares a row."""
    colours = np.full(shape[1], -1)
    in_row = [0] * shape[0]  # the colours in each row, as bits
    for j in order.tolist():
        taken = 0
        for r in rows_of[j]:
            taken |= in_row[r]
        colours[j] = c = _first_free(taken)
        for r in rows_of[j]:
            in_row[r] |= 1 << c
    return colours


def _star(neighbours: Sequence[Sequence[int]], shape: tuple[int, int], order: np.ndarray) -> np.ndarray:
    """Give each vertex of a symmetric pattern the first colour that makes no path of four in two colours.

    A path v - w - x - y in two colours has v and x in one, w and y in the other. Giving v the colour of x is wrong if x
    has two neighbours in the colour of w, or v has. The former colours are kept for each w, in `ends`.
    """
    n = shape[0]
    colours = [-1] * n
    around = [0] * n  # the colours of each vertex's neighbours, as bits
    ends = [0] * n  # for a coloured w: the colours of its neighbours x with two neighbours in w's colour
    first: list[dict[int, int]] = [{} for _ in range(n)]  # for each colour around a vertex, a neighbour that has it
    twice = [0] * n  # the colours that two or more neighbours have
    for v in order.tolist():
        taken, own = 0, twice[v]
        for w in neighbours[v]:
            a = colours[w]
            if a >= 0 and w != v:
                taken |= (1 << a) | ends[w] | (around[w] if own >> a & 1 else 0)
        c = _first_free(taken)
        colours[v], bit = c, 1 << c
        for w in neighbours[v]:
            if w == v:
                continue
            a = colours[w]
            if around[w] & bit:
                twice[w] |= bit
                if a >= 0:  # w is in the middle: both of its neighbours with colour c may not meet another of colour a
                    ends[v] |= 1 << a
                    ends[first[w][c]] |= 1 << a
            else:
                around[w] |= bit
                first[w][c] = v
            if a >= 0 and own >> a & 1:
                ends[w] |= bit
    return np.array(colours, np.int64)  # of no rows too


def _read(pattern: sparse.csr_array, colours: np.ndarray) -> Colouring:
    """Decide from which product each entry is read, and leave out the colours that none is read from.

    Entry (i, j) is alone at element i of the product of j's colour, unless another neighbour of i has that colour; then
    it is alone at element j of the product of i's.
    """
    rows, columns = _coordinates(pattern)
    count = int(colours.max(initial=-1)) + 1
    meets = rows.astype(np.int64) * count + colours[columns]
    alone = np.bincount(meets, minlength=pattern.shape[0] * count)[meets] == 1
    # The same for the mirrored entries: by columns, they come in the order of these by rows.
    mirrored = alone[np.lexsort([rows, columns])]
    if not (alone | mirrored).all():
        raise ValueError("this is no star colouring of the pattern")
    needed = np.zeros(count, bool)
    needed[colours[columns[alone & ~mirrored]]] = True
    needed[colours[rows[~alone & mirrored]]] = True
    needed[colours[rows[rows == columns]]] = True
    free = alone & mirrored
    one, other = colours[columns], colours[rows]
    while (open_ := free & ~needed[one] & ~needed[other]).any():
        # The colour that reads most of what is left.
        votes = np.bincount(one[open_], minlength=count) + np.bincount(other[open_], minlength=count)
        needed[votes.argmax()] = True
    from_column = alone & needed[one]
    product = np.where(from_column, one, other)
    place = np.where(from_column, rows, columns)
    numbers = np.where(needed, np.cumsum(needed) - 1, -1)
    kept = np.append(numbers, -1)[colours]  # the last one is for -1
    return Colouring("symmetric", kept, int(needed.sum()), numbers[product], place)
