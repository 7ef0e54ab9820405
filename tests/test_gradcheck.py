"""The oracle against closed forms."""

from tapelab import gradcheck

import numpy as np
import pytest


def test_a_scalar_function_of_a_scalar():
    assert gradcheck.numerical_jacobian(lambda x: x**3, 2.0) == pytest.approx(12.0, rel=1e-9)


def test_the_jacobian_of_a_linear_map_is_its_matrix():
    a = np.arange(6.0).reshape(2, 3)
    jacobian = gradcheck.numerical_jacobian(lambda x: a @ x, np.array([0.3, -2.0, 5.0]))
    assert jacobian.shape == (2, 3)
    np.testing.assert_allclose(jacobian, a, atol=1e-8)


def test_the_targets_axes_come_first():
    jacobian = gradcheck.numerical_jacobian(lambda x: np.stack([x.sum(axis=0)] * 4), np.ones((2, 3)))
    assert jacobian.shape == (4, 3, 2, 3)
    np.testing.assert_allclose(jacobian[1, 2, :, 2], 1.0, atol=1e-9)
    np.testing.assert_allclose(jacobian[1, 2, :, 1], 0.0, atol=1e-9)


def test_large_arguments_get_a_proportionate_step():
    assert gradcheck.numerical_jacobian(lambda x: x**2, 1e8) == pytest.approx(2e8, rel=1e-8)


def test_an_empty_argument():
    assert gradcheck.numerical_jacobian(lambda x: np.float64(x.sum()), np.zeros((0, 3))).shape == (0, 3)


def test_a_tensorflow_function_in_float64():
    from tapelab.runtime import tf

    np.testing.assert_allclose(gradcheck.numerical_jacobian(tf.math.sin, [0.0, 1.0]).diagonal(), np.cos([0.0, 1.0]))


def quadratic(x):
    return np.float64(np.sum(x**2))


def test_a_right_gradient_passes_and_its_error_is_small():
    x = np.array([[1.0, -2.0], [0.5, 4.0]])
    assert gradcheck.check_gradient(quadratic, 2 * x, x) < 1e-8


@pytest.mark.parametrize(
    "wrong",
    [lambda x: -2 * x, lambda x: 2.001 * x, lambda x: 2 * x.T, lambda x: np.zeros_like(x), lambda x: x * np.nan],
    ids=["sign", "factor", "transpose", "zero", "nan"],
)
def test_a_wrong_gradient_fails(wrong):
    x = np.array([[1.0, -2.0], [0.5, 4.0]])
    with pytest.raises(AssertionError, match="along a random direction"):
        gradcheck.check_gradient(quadratic, wrong(x), x)
