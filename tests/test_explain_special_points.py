"""`explain` at the special points of the audit: it names what TensorFlow's gradient misses, and is quiet elsewhere."""

import functools

from tapelab.explain import ExplainTape, explain
from tapelab.explain.values import special_points
from tapelab.gradcheck import numerical_jacobian

import by_tape
import numpy as np
import pytest
import tensorflow as tf

keras = tf.keras
LABELS = np.array([1.0, 0.0])
WEIGHTS = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
S = tf.reduce_sum


def root(x):
    values, vectors = tf.linalg.eigh(x)
    return S(WEIGHTS * tf.matmul(vectors * tf.sqrt(values), vectors, transpose_b=True))


def polar(x):
    _, u, v = tf.linalg.svd(x)
    return S(np.triu(WEIGHTS) * tf.matmul(u, v, transpose_b=True))


def weighted(z):
    return S(tf.nn.weighted_cross_entropy_with_logits(LABELS, z, 2.0))


def stable_softplus(z):
    return S(tf.math.log1p(tf.exp(-tf.abs(z))) + tf.nn.relu(z))


MISSED = {
    "weighted cross-entropy": (weighted, [0.0, 0.0], "kinks_meet", "Abs Relu"),
    "weighted cross-entropy at one of two": (weighted, [0.0, 0.7], "kinks_meet", "Abs Relu"),
    "stable softplus": (stable_softplus, [0.0, -1.0], "kinks_meet", "Abs"),
    "logaddexp": (lambda x: S(keras.ops.logaddexp(x, x[::-1])[:1]), [0.7, 0.7], "kinks_meet", "Abs Maximum"),
    "celu": (lambda x: S(keras.activations.celu(x)), [0.0, 0.5], "kinks_meet", "Maximum Minimum"),
    "xlogy": (lambda x: S(tf.math.xlogy(x, 2.0 + x)), [0.0, 0.5], "zero_coefficient", "Xlogy"),
    "xlogy of zeros": (lambda x: S(tf.math.xlogy(x, [2.0, 3.0])), [0.0, 0.0], "zero_coefficient", "Xlogy"),
    "xlog1py": (lambda x: S(tf.math.xlog1py(x, [2.0, 3.0])), [0.0, 0.5], "zero_coefficient", "Xlog1py"),
    "xdivy": (lambda x: S(tf.math.xdivy(x, [2.0, 3.0])), [0.0, 0.5], "zero_coefficient", "Xdivy"),
    "cumprod": (lambda x: S(tf.math.cumprod(x)), [0.5, 0.0, 0.7], "wrong_at_zero", "Cumprod"),
    "square root by eigh": (root, np.eye(3), "equal_eigenvalues", "SelfAdjointEigV2"),
    "polar factor by svd": (polar, np.eye(3), "equal_eigenvalues", "Svd"),
}
SOUND = {
    "weighted cross-entropy elsewhere": (weighted, [0.3, -0.7]),
    "sigmoid cross-entropy at 0": (lambda z: S(tf.nn.sigmoid_cross_entropy_with_logits(LABELS, z)), [0.0, 0.0]),
    "relu at 0 has a kink": (lambda x: S(tf.nn.relu(x) * [1.0, 2.0]), [0.0, 0.5]),
    "relu and abs at 0 have a kink": (lambda x: S(tf.nn.relu(x) + 3.0 * tf.abs(x) + x), [0.0, 0.5]),
    "a maximum at a tie": (lambda x: S(tf.maximum(x, x[::-1]) * [1.0, 3.0]) + S(tf.abs(x)), [0.7, 0.7]),
    "entropy by xlogy": (lambda p: -S(tf.math.xlogy(p, p)), [0.3, 0.7]),
    "xlogy where its y is 0 too": (lambda p: S(tf.math.xlogy(p, p)), [0.0, 0.7]),
    "xlogy of constant labels": (lambda y: S(tf.math.xlogy(LABELS, y)), [0.5, 0.7]),
    "first derivative of a product": (tf.reduce_prod, [0.0, 1.0, 2.0]),
    "cumprod elsewhere": (lambda x: S(tf.math.cumprod(x)), [0.5, 0.2, 0.7]),
    "eigenvalues alone": (lambda x: S(tf.linalg.eigvalsh(x) ** 2), np.eye(3)),
    "singular values alone": (lambda x: S(tf.linalg.svd(x, compute_uv=False) ** 2), np.eye(3)),
    "square root of other eigenvalues": (root, np.diag([1.0, 2.0, 3.0])),
}


def answered(f, x, dtype):
    x = tf.Variable(x, dtype=dtype)
    with ExplainTape() as tape:
        y = f(x)
    return explain(tape, y, x)


def typed(f, dtype):
    """f with the constants of this module in a dtype."""

    @functools.wraps(f)
    def function(x):
        return f(tf.cast(x, "float64"))

    return f if dtype == "float64" else function


def slopes(f, x):
    """The gradient by central differences, in float64."""
    return numerical_jacobian(lambda x: f(tf.constant(x)), np.asarray(x, np.float64))


@pytest.mark.thorough(keep=8)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MISSED)
def test_what_the_gradient_misses_is_named_with_operation_line_and_cure(name, dtype):
    f, x, code, op = MISSED[name]
    gradient = by_tape.gradient(f, np.asarray(x, np.float64))
    assert not np.allclose(gradient, slopes(f, x), rtol=1e-3, atol=1e-3)  # so it is wrong in this TensorFlow
    explanation = answered(typed(f, dtype), x, dtype)
    assert (explanation.code, explanation.healthy) == (code, False), str(explanation)
    assert explanation.op in op.split()
    assert explanation.line is not None
    assert explanation.fix


@pytest.mark.thorough(keep=5)
@pytest.mark.parametrize("name", SOUND)
def test_what_has_its_derivative_or_none_is_left_alone(name):
    explanation = answered(*SOUND[name], "float64")
    assert explanation.code not in special_points.SPECIAL_POINTS, str(explanation)


def test_second_derivative_of_a_product_with_a_zero():
    def gradient(x):
        return S(by_tape.gradient(tf.reduce_prod, x) * [1.0, 2.0, 3.0])

    found = answered(gradient, [0.0, 1.0, 2.0], "float32")
    assert (found.code, found.healthy) == ("product_with_zero", False), str(found)
    assert "tf.multiply" in found.fix
    assert answered(gradient, [0.5, 1.0, 2.0], "float32").code == "exists"


def test_a_custom_gradient_is_not_taken_for_a_fault():
    @tf.custom_gradient
    def straight_through(x):
        return tf.abs(x) + tf.nn.relu(x), lambda dy: dy

    assert answered(lambda x: S(straight_through(x)), [0.0, 1.0], "float32").healthy


def test_without_differences_the_table_would_accuse_a_kink(monkeypatch):
    """The row holds at a kink: it is the differences that keep the answer quiet."""
    kink = SOUND["relu and abs at 0 have a kink"]
    monkeypatch.setattr(special_points, "_is_missed", lambda evidence, nodes, at_edge: True)
    assert answered(*kink, "float64").code == "kinks_meet"


def test_the_cures_of_the_fixes_are_right():
    for cure, missed in (
        (lambda z: S((1.0 - LABELS) * z + (1.0 + LABELS) * tf.nn.softplus(-z)), "weighted cross-entropy"),
        (lambda x: tf.reduce_logsumexp(tf.stack([x, x[::-1]]), 0)[0], "logaddexp"),
        (lambda x: S(tf.nn.elu(x)), "celu"),
        (lambda x: S(x * tf.math.log([2.0, 3.0] + 0 * x)), "xlogy of zeros"),
    ):
        f, x, *_ = MISSED[missed]
        x = tf.constant(x, tf.float64)
        np.testing.assert_allclose(cure(x), f(x), rtol=1e-12)
        np.testing.assert_allclose(by_tape.gradient(cure, x), slopes(f, x), rtol=1e-4, atol=1e-4)
    found = by_tape.hessian(lambda x: functools.reduce(tf.multiply, tf.unstack(x)), [0.0, 1.0, 2.0])
    assert found.tolist() == [[0, 2, 1], [2, 0, 0], [1, 0, 0]]
