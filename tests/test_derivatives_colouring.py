"""Colourings of sparse patterns: valid, small, and every entry read from a product."""

from tapelab.derivatives.sparse.colouring import colour, colour_columns, colour_rows, colour_symmetric

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import sparse


def banded(n, width, periodic=False):
    rows = np.repeat(np.arange(n), 2 * width + 1)
    columns = rows + np.tile(np.arange(-width, width + 1), n)
    inside = np.ones(len(rows), bool) if periodic else (columns >= 0) & (columns < n)
    found = sparse.csr_array((np.ones(inside.sum(), bool), (rows[inside], columns[inside] % n)), shape=(n, n))
    found.sum_duplicates()
    return found


def arrow(n):
    dense = np.eye(n, dtype=bool)
    dense[0] = dense[:, 0] = True
    return sparse.csr_array(dense)


def five_points(side):
    """The Laplacian on a square grid."""
    line = banded(side, 1)
    one = sparse.eye_array(side, dtype=bool)
    found = sparse.csr_array(sparse.kron(line, one) + sparse.kron(one, line)).astype(bool)
    found.sum_duplicates()
    return found


def pattern_of(dense):
    found = sparse.csr_array(dense)
    found.sum_duplicates()
    return found


def numbered(pattern):
    """A matrix of this pattern, of entries that are all different."""
    return pattern.toarray() * (1.0 + np.arange(np.prod(pattern.shape)).reshape(pattern.shape))


PATTERNS = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=16)).map(pattern_of)
SYMMETRIC = st.integers(1, 14).flatmap(lambda n: arrays(bool, (n, n))).map(lambda half: pattern_of(half | half.T))
slow = HealthCheck.too_slow  # as a machine is that does other work beside
quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[slow])


def products(matrix, colouring):
    """Multiply by the sum of the columns, or rows, of each colour."""
    seeds = (np.arange(colouring.count)[:, None] == colouring.colours).astype(float)
    return seeds @ (matrix if colouring.by == "rows" else matrix.T)


def recovered(pattern, colouring, matrix):
    """Read every entry of a matrix from its products."""
    found = products(matrix, colouring)[colouring.product, colouring.place]
    rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
    return sparse.csr_array((found, (rows, pattern.indices)), shape=pattern.shape).toarray()


@quick
@given(PATTERNS, st.sampled_from([colour_columns, colour_rows, colour]))
def test_columns_of_one_colour_share_no_row_and_every_entry_is_read(pattern, by):
    colouring, matrix = by(pattern), numbered(pattern)
    turned = pattern if colouring.by == "columns" else pattern.T
    for number in range(colouring.count):
        assert turned[:, np.flatnonzero(colouring.colours == number)].sum(axis=1).max() == 1
    np.testing.assert_allclose(recovered(pattern, colouring, matrix), matrix)


def two_coloured_path(pattern, colours):
    """A path of four vertices in two colours, or two neighbours in one; None if there is none."""
    near = [set(pattern.indices[a:b]) - {v} for v, (a, b) in enumerate(zip(pattern.indptr, pattern.indptr[1:]))]  # noqa: B905
    for w, around in enumerate(near):
        for x in around:
            if colours[w] == colours[x]:
                return w, x
            for v in around - {x}:
                for y in near[x] - {w, v}:
                    if colours[v] == colours[x] and colours[y] == colours[w]:
                        return v, w, x, y
    return None


@quick
@given(SYMMETRIC)
def test_symmetric_colourings_are_star_colourings_and_every_entry_is_read(pattern):
    matrix = numbered(pattern) + numbered(pattern).T
    np.testing.assert_allclose(recovered(pattern, colour_symmetric(pattern), matrix), matrix)
    whole = (pattern + sparse.eye_array(pattern.shape[0], dtype=bool)).tocsr()  # so that no colour is left out
    assert two_coloured_path(whole, colour_symmetric(whole).colours) is None


@pytest.mark.parametrize(
    ("pattern", "columns", "symmetric"),
    [
        (banded(50, 1), 3, 3),
        (banded(50, 2), 5, 5),
        (banded(48, 1, periodic=True), 3, 3),
        (arrow(30), 30, 2),
        (sparse.eye_array(9, dtype=bool, format="csr"), 1, 1),
        (sparse.csr_array(np.ones([5, 5], bool)), 5, 5),
        (sparse.csr_array((4, 4), dtype=bool), 0, 0),
    ],
    ids=["tridiagonal", "pentadiagonal", "periodic", "arrow", "diagonal", "dense", "empty"],
)
def test_counts_on_known_patterns(pattern, columns, symmetric):
    assert colour_columns(pattern).count == columns
    assert colour_symmetric(pattern).count == symmetric


def test_rows_are_taken_where_they_need_fewer():
    pattern = sparse.lil_array((12, 6), dtype=bool)
    pattern[0] = True  # one dense row: all columns meet
    pattern[np.arange(1, 7), np.arange(6)] = True
    found = colour(pattern.tocsr())
    assert (found.by, found.count) == ("rows", 2)
    assert colour_columns(pattern.tocsr()).count == 6


def test_grids_take_few_colours():
    # Five is the least for columns, as a point and its four neighbours meet; six were ever needed for stars.
    assert colour_columns(five_points(8)).count <= 7
    assert colour_symmetric(five_points(8)).count <= 6


def test_a_colour_that_no_entry_is_read_from_is_left_out():
    # One hub and leaves, without a diagonal: the product with the hub's column holds all.
    pattern = arrow(9).tolil()
    pattern.setdiag(False)
    pattern = pattern.tocsr()
    pattern.eliminate_zeros()
    found = colour_symmetric(pattern)
    assert found.count == 1
    assert (found.colours == -1).sum() == 8
