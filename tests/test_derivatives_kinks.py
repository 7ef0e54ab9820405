"""Smooth functions that a library computes with kinks, labels of any sum, gradients that have no gradient."""

from tapelab.derivatives import hessian, hvp, jvp, laplacian, taylor, value_and_gradient
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest
from tensorflow.experimental.numpy import logaddexp as imported_by_name
from tensorflow.nn import weighted_cross_entropy_with_logits as weighted_by_name

NUMPY, OPS = tf.experimental.numpy, tf.keras.ops
LABELS = tf.constant([1.0, 0.0, 0.3], tf.float64)
LOG2 = np.log(2.0)
WEIGHTED = ([0.0, 0.0, 0.0], [-1.0, 0.5, (1.3 / 2 - 0.6)], np.diag([0.5, 0.25, 1.3 / 4]))
TIE = ([0.7, 0.7], [0.5, 0.5], np.array([[1, -1], [-1, 1]]) / 4)
TIE2 = (*TIE[:2], TIE[2] * LOG2)
SINC = ([0.0, 0.0], [0.0, 0.0], np.diag([-(np.pi**2) / 3] * 2))


def weighted(function):
    return lambda z: tf.reduce_sum(function(LABELS, z, 2.0))


def of_two(function):
    return lambda z: function(z[0], z[1])


def summed(function):
    return lambda z: tf.reduce_sum(function(z))


layer = tf.keras.layers.Activation("celu", dtype="float64")
# A function, a point, and its gradient and Hessian there; None where there is none.
KINKS = {
    "weighted_cross_entropy_with_logits": (weighted(tf.nn.weighted_cross_entropy_with_logits), *WEIGHTED),
    "the same, imported by name": (weighted(weighted_by_name), *WEIGHTED),
    "the same of compat.v1": (weighted(tf.compat.v1.nn.weighted_cross_entropy_with_logits), *WEIGHTED),
    "keras.ops.logaddexp": (of_two(OPS.logaddexp), *TIE),
    "keras.ops.logaddexp2": (of_two(OPS.logaddexp2), *TIE2),
    "tf.experimental.numpy.logaddexp": (lambda z: tf.experimental.numpy.logaddexp(z[0], z[1]), *TIE),
    "tf.experimental.numpy.logaddexp2": (lambda z: tf.experimental.numpy.logaddexp2(z[0], z[1]), *TIE2),
    "keras.activations.celu": (summed(tf.keras.activations.celu), [0.0, 1.0], [1.0, 1.0], None),
    "keras.ops.celu": (lambda z: tf.reduce_sum(OPS.celu(z, 0.5)), [0.0, 1.0], [1.0, 1.0], None),
    "a celu layer": (lambda z: tf.reduce_sum(layer(z[None])), [0.0, 1.0], [1.0, 1.0], None),
    "keras.ops.sinc": (summed(OPS.sinc), *SINC),
    "tf.experimental.numpy.sinc": (summed(NUMPY.sinc), *SINC),
    "keras.ops.hypot": (of_two(OPS.hypot), [3.0, 3.0], [0.5**0.5] * 2, np.array([[1, -1], [-1, 1]]) / 72**0.5),
    "keras.ops.hypot at 0": (of_two(OPS.hypot), [3.0, 0.0], [1.0, 0.0], np.diag([0, 1 / 3])),
}


def require(f, x, gradient, second, compile):
    x, ones = tf.constant(x, tf.float64), tf.ones([len(x)], tf.float64)
    value, found = value_and_gradient(f, compile=compile)(x)
    np.testing.assert_allclose(value, f(x), rtol=1e-7)
    np.testing.assert_allclose(found, gradient, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jvp(f, compile=compile)(x, tangents=ones)[1], sum(gradient), rtol=1e-9, atol=1e-12)
    if second is not None:
        np.testing.assert_allclose(hessian(f, compile=compile)(x), second, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(hvp(f, compile=compile)(x, vector=ones), second.sum(1), rtol=1e-9, atol=1e-12)
        if compile != "eager":
            lap = laplacian(f, batched=False, compile=compile)(x)
            np.testing.assert_allclose(lap, np.trace(second), rtol=1e-9, atol=1e-12)
            along = taylor(f, 2, compile=compile)(x, tangents=[ones])[1][1]
            np.testing.assert_allclose(along, second.sum(), rtol=1e-9, atol=1e-12)


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("compile", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", KINKS)
def test_at_the_kink(name, compile):
    require(*KINKS[name], compile)


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("name", KINKS)
def test_in_a_function_that_was_traced_before(name):
    f, x, gradient, second = KINKS[name]
    traced = tf.function(f)
    x = tf.constant(x, tf.float64)
    if second is None or "hypot at 0" not in name:
        assert not np.allclose(by_tape.gradient(traced, x), gradient), "TensorFlow is right here"
    require(traced, x, gradient, second, "graph")


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", ["weighted_cross_entropy_with_logits", "a celu layer", "keras.ops.sinc"])
def test_a_concrete_function_is_refused(name):
    f, x, *_ = KINKS[name]
    concrete = tf.function(f).get_concrete_function(tf.TensorSpec([len(x)], tf.float64))
    with pytest.raises(ValueError, match="in a graph that was traced before"):
        value_and_gradient(lambda z: concrete(z))(tf.constant(x, tf.float64))


def test_a_function_of_tf_numpy_that_was_imported_by_name_is_refused():
    with pytest.raises(ValueError, match=r"logaddexp of tf.experimental.numpy, which it imported by name"):
        value_and_gradient(of_two(imported_by_name))(tf.constant([0.7, 0.7], tf.float64))


INFINITE = [([np.inf, 1.0], [1, 0]), ([1.0, -np.inf], [1, 0]), ([-np.inf, -np.inf], [0.5, 0.5])]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("x", "gradient"), INFINITE)
def test_logaddexp_of_infinities(x, gradient):
    value, found = value_and_gradient(of_two(OPS.logaddexp))(tf.constant(x, tf.float64))
    assert value == np.logaddexp(*x)
    np.testing.assert_allclose(found, gradient)


def cross_entropy(z, labels):
    return tf.nn.softmax_cross_entropy_with_logits(labels, z[None])[0]


def written_out(z, labels):
    return -tf.reduce_sum(labels * tf.nn.log_softmax(z[None]))


LOGITS = np.array([0.0, 0.1, -0.3])
LABELLED = {
    "a distribution": [[0.2, 0.5, 0.3]],
    "weighted": [[0.0, 3.0, 0.0]],
    "no label": [[0.0, 0.0, 0.0]],
    "a sum of zero": [[1.0, -1.0, 0.0]],
}


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("compile", ["eager", "graph", "xla"])
@pytest.mark.parametrize("name", LABELLED)
def test_labels_of_any_sum(name, compile):
    z, labels, v = (tf.constant(each, tf.float64) for each in (LOGITS, LABELLED[name], [1.0, 2.0, -1.0]))
    losses = (cross_entropy, lambda z, y: tf.keras.losses.categorical_crossentropy(y, z[None], from_logits=True)[0])
    both = {"argnums": (0, 1), "compile": compile}
    for loss in losses:
        for transform in (value_and_gradient, hessian):
            found, wanted = (transform(f, **both)(z, labels) for f in (loss, written_out))
            tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, wanted)
        np.testing.assert_allclose(
            *[hvp(f, compile=compile)(z, labels, vector=v) for f in (loss, written_out)], atol=1e-12
        )
        np.testing.assert_allclose(
            *[jvp(f, compile=compile)(z, labels, tangents=v)[1] for f in (loss, written_out)], atol=1e-12
        )


@pytest.mark.dear
@pytest.mark.parametrize("compile", ["eager", "graph"])
def test_labels_and_logits_of_one_source(compile):
    z = tf.constant(LOGITS)
    losses = [lambda z, f=f: f(z, tf.square(z)[None]) for f in (cross_entropy, written_out)]
    np.testing.assert_allclose(*[hessian(f, compile=compile)(z) for f in losses], atol=1e-12)
    found = [float(laplacian(f, batched=False, compile="graph")(z)) for f in losses]
    assert found[0] == pytest.approx(found[1], rel=1e-9)


IMAGES = tf.constant(np.random.default_rng(0).random((1, 3, 3, 4)), tf.float32)
UNDERIVED = {
    "softsign": (tf.nn.softsign, lambda x: x / (1 + tf.abs(x))),
    "local response normalisation": (
        lambda x: tf.nn.local_response_normalization(x, 1, 2.0, 0.5, 0.7),
        lambda x: x / (2 + 0.5 * tf.tensordot(x**2, tf.linalg.band_part(tf.ones([4, 4]), 1, 1), 1)) ** 0.7,
    ),
}


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("name", UNDERIVED)
def test_gradients_that_tensorflow_does_not_differentiate(name):
    losses = [lambda x, f=f: tf.reduce_sum(f(x) ** 2, [1, 2, 3]) for f in UNDERIVED[name]]
    for compile in ("eager", "graph"):
        scalars = [lambda x, f=f: f(x)[0] for f in losses]
        np.testing.assert_allclose(
            *[hvp(f, compile=compile)(IMAGES, vector=IMAGES) for f in scalars], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(*[jvp(f, compile=compile)(IMAGES, tangents=IMAGES)[1] for f in losses], rtol=1e-4)
    np.testing.assert_allclose(*[laplacian(f)(IMAGES) for f in losses], rtol=1e-3)


RESIZED = {
    "bicubic": {"method": "bicubic"},
    "lanczos3": {"method": "lanczos3"},
    "antialiased": {"antialias": True},
}


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("name", RESIZED)
def test_resized_images(name):
    def resized(x):
        return tf.image.resize(x, [5, 5], **RESIZED[name])

    def loss(x):
        return tf.reduce_sum(resized(x) ** 2, [1, 2, 3])

    np.testing.assert_allclose(jvp(resized)(IMAGES, tangents=IMAGES)[1], resized(IMAGES), rtol=1e-5)
    np.testing.assert_allclose(
        hvp(lambda x: loss(x)[0])(IMAGES, vector=IMAGES),
        value_and_gradient(lambda x: loss(x)[0])(IMAGES)[1],
        rtol=1e-4,
        atol=1e-5,
    )
    units = tf.reshape(tf.eye(36), [36, 3, 3, 4])
    np.testing.assert_allclose(laplacian(loss)(IMAGES), [2 * tf.reduce_sum(resized(units) ** 2)], rtol=1e-4)


def test_images_of_float64_are_resized():
    images = tf.cast(IMAGES, tf.float64)

    def loss(x):
        return tf.reduce_sum(tf.cast(tf.image.resize(x, [5, 5], method="lanczos3"), x.dtype))

    found, wanted = (value_and_gradient(loss)(x)[1] for x in (images, IMAGES))
    assert found.dtype == tf.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


S = tf.signal
# A transform that cuts its input off, and the same of what remains.
CUT = {
    "rfft": (lambda z: S.rfft(tf.math.real(z), [3]), lambda z: S.rfft(tf.math.real(z)[:, :3])),
    "rfft to one": (lambda z: S.rfft(tf.math.real(z), [1]), lambda z: S.rfft(tf.math.real(z)[:, :1])),
    "rfft2d": (lambda z: S.rfft2d(tf.math.real(z), [2, 3]), lambda z: S.rfft2d(tf.math.real(z)[:2, :3])),
    "irfft": (lambda z: S.irfft(z, [4]), lambda z: S.irfft(z[:, :3], [4])),
    "irfft2d": (lambda z: S.irfft2d(z, [2, 5]), lambda z: S.irfft2d(z[:2, :3], [2, 5])),
}


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("compile", ["eager", "graph"])
def test_fourier_transforms_that_cut_off(name, compile):
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 3, 4)))

    def loss(f):
        return lambda x: tf.reduce_sum(tf.math.real(tf.cast(f(tf.complex(x[0], x[1])), tf.complex128) * (1 + 2j)) ** 3)

    whole, part = map(loss, CUT[name])
    for derivative in (
        lambda f: value_and_gradient(f, compile=compile)(x)[1],
        lambda f: jvp(f, compile=compile)(x, tangents=x)[1],
        lambda f: hvp(f, compile=compile)(x, vector=x),
    ):
        np.testing.assert_allclose(derivative(whole), derivative(part), rtol=1e-9, atol=1e-9)
