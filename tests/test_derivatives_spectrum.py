"""Lanczos's method and spectral densities, on matrices whose eigenvalues are known."""

from tapelab.derivatives.curvature import Run, Spectrum, lanczos

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def matrix_with(eigenvalues):
    q, _ = np.linalg.qr(RNG.standard_normal((len(eigenvalues), len(eigenvalues))))
    return (q * eigenvalues) @ q.T


def exact(eigenvalues):
    """The spectrum that has every eigenvalue as a node."""
    n = len(eigenvalues)
    return Spectrum([Run(np.sort(eigenvalues), np.full(n, 1 / n), np.zeros(n))], n)


@pytest.fixture(scope="module")
def large():
    """As a network's: many eigenvalues near zero, on both sides, and a few far away. n is 2000."""
    values = np.concatenate([RNG.standard_normal(1600) ** 3 / 40, RNG.exponential(0.3, 390), np.linspace(5, 20, 10)])
    runs = [lanczos(lambda v: values * v, RNG.standard_normal(2000), 40) for _ in range(10)]
    return values, Spectrum(runs, 2000)


def test_the_density_is_within_a_twentieth_of_the_exact_one(large):
    """In the L₁ norm, both smoothed by 1 % of the spectrum's width."""
    values, found = large
    width = 0.01 * (values.max() - values.min())
    grid = np.linspace(values.min() - 8 * width, values.max() + 8 * width, 2001)
    density = found.density(grid, width)
    assert density.shape == grid.shape
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=1e-6)
    assert np.trapezoid(np.abs(density - exact(values).density(grid, width)), grid) < 0.05
    np.testing.assert_allclose(found.weights.sum(), 1)
    assert (found.weights >= 0).all()


def test_the_quadrature_is_exact_for_polynomials(large):
    """qᵀ p(A) q = Σ weights p(values) up to degree 2 steps - 1: for one start of five steps, degree 9."""
    values = np.linspace(-1, 2, 12)
    A, start = matrix_with(values), RNG.standard_normal(12)
    run = lanczos(lambda v: A @ v, start, 5)
    q = start / np.linalg.norm(start)
    for degree in range(10):
        expected = q @ np.linalg.matrix_power(A, degree) @ q
        assert run.weights @ run.values**degree == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert run.weights @ run.values**10 != pytest.approx(q @ np.linalg.matrix_power(A, 10) @ q, rel=1e-9)


def test_outermost_eigenvalues_and_their_errors():
    values = np.concatenate([np.linspace(-1, 1, 290), [-9, -4, -3, 3, 4, 5, 6, 7, 8, 9]])
    A = matrix_with(values)
    found = Spectrum([lanczos(lambda v: A @ v, RNG.standard_normal(300), 60) for _ in range(2)], 300)
    np.testing.assert_allclose(found.top(7).values, [9, 8, 7, 6, 5, 4, 3], rtol=1e-10)
    np.testing.assert_allclose(found.bottom(3).values, [-9, -4, -3], rtol=1e-10)
    rough = Spectrum([lanczos(lambda v: A @ v, RNG.standard_normal(300), 12)], 300).top(8)
    assert rough.errors.max() > 1e-3
    for value, error in zip(*rough, strict=True):
        assert np.abs(values - value).min() <= error + 1e-12


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_eigenvalue_is_found_twice(dtype):
    """Without reorthogonalisation the largest appears several times among 120 Ritz values."""
    values = np.concatenate([np.linspace(0, 1, 395), [10, 20, 40, 80, 160]])
    run = lanczos(lambda v: (values * v).astype(dtype), RNG.standard_normal(400).astype(dtype), 120)
    rounding = 400 * 160 * np.finfo(dtype).eps
    np.testing.assert_allclose(run.values[-5:], [10, 20, 40, 80, 160], atol=rounding)
    assert run.values[-6] < 1 + rounding


def test_it_stops_where_the_space_is_used_up():
    values = np.array([0.0] * 30 + [2.0] * 5 + [7.0])
    A = matrix_with(values)
    run = lanczos(lambda v: A @ v, RNG.standard_normal(36), 20)
    np.testing.assert_allclose(run.values, [0, 2, 7], atol=1e-12)  # each once, however often it occurs
    np.testing.assert_allclose(run.errors, 0, atol=1e-12)
    assert lanczos(lambda v: 0 * v, np.ones(5), 4).values == [0.0]
    assert lanczos(lambda v: 3 * v, np.ones(1), 4).values == [3.0]


def test_what_is_refused(large):
    _, found = large
    for k in (0, 41, 2.0):
        with pytest.raises(ValueError, match=f"k is {k}; expected 1 to 40"):
            found.top(k)
    with pytest.raises(ValueError, match="width is 0"):
        found.density([0.0], 0)
