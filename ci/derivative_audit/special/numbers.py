"""Functions of single numbers: 0 times infinity, kinks, boundaries, branches not taken, huge and tiny numbers."""

from special.case import at

import keras
import numpy as np
import tensorflow as tf

tnp = tf.experimental.numpy
TWO = tf.constant(2.0, tf.float64)
log2 = np.log(2.0)

# 0 times infinity
kind = "0 times infinity"
at(kind, "xlogy(x, 2) at 0", lambda x: tf.math.xlogy(x, TWO), [0.0, 0.7])
at(kind, "xlogy(x, y) at x = 0", tf.math.xlogy, [0.0, 0.7], [2.0, 3.0])
at(kind, "xlog1py(x, 2) at 0", lambda x: tf.math.xlog1py(x, TWO), [0.0, 0.7])
at(kind, "xlog1py(x, y) at x = 0", tf.math.xlog1py, [0.0, 0.7], [2.0, 3.0])
at(kind, "xdivy(x, 2) at 0", lambda x: tf.math.xdivy(x, TWO), [0.0, 0.7])
at(kind, "xdivy(x, y) at x = 0", tf.math.xdivy, [0.0, 0.7], [2.0, 3.0])
at(kind, "multiply_no_nan(x, y) at y = 0", tf.math.multiply_no_nan, [1.5, 0.7], [0.0, 2.0])
at(kind, "multiply_no_nan(x, y) at x = 0", tf.math.multiply_no_nan, [0.0, 0.7], [3.0, 2.0])
at(kind, "divide_no_nan(x, y) at x = 0", tf.math.divide_no_nan, [0.0, 0.7], [3.0, 2.0])
at(kind, "x + abs(x)² at 0", lambda x: x + tf.abs(x) ** 2, [0.0, 0.7], same=lambda x: x + x**2)
at(kind, "x² by pow at 0", lambda x: x + tf.pow(x, TWO), [0.0, -2.0], same=lambda x: x + x**2)
at(kind, "x to the power of a tensor of 2 at 0 and below", lambda x: x + x ** (0 * x + 2), [0.0, -2.0])
at(kind, "x to the power of 1 at 0", lambda x: tf.pow(x, tf.constant(1.0, tf.float64)), [0.0])
at(kind, "0 to the power of x", lambda x: tf.constant(0.0, tf.float64) ** x + x * x, [2.0], same=lambda x: x * x)
at(kind, "sqrt(x⁴) at 0", lambda x: x + tf.sqrt(x**4), [0.0, 0.7], same=lambda x: x + x**2)
at(kind, "exp(-1 / x²) by where at 0", lambda x: x + tf.where(x != 0.0, tf.exp(-1 / x**2), 0.0), [0.0],
   same=lambda x: x + np.exp(-1 / np.maximum(x**2, 1e-300)))  # fmt: skip
at(kind, "norm(x)² at 0", lambda x: x[0] + tf.norm(x) ** 2, [0.0, 0.0])
at(kind, "reduce_euclidean_norm(x)² at 0", lambda x: x[0] + tf.math.reduce_euclidean_norm(x) ** 2, [0.0, 0.0])
at(kind, "abs(x + iy)² at 0", lambda x, y: x + tf.abs(tf.complex(x, y)) ** 2, [0.0], [0.0])
at(kind, "hypot(x, y)² at 0", lambda x, y: x + tnp.hypot(x, y) ** 2, [0.0], [0.0])
at(kind, "cross entropy -p log p - q log q by xlogy at a corner", lambda p: -tf.math.xlogy(p, 0.5 + p), [0.0])
at(kind, "kl_divergence where y_true is 0", lambda p: keras.losses.kl_divergence(tf.constant([0.0, 1.0], p.dtype), p),
   [0.3, 0.7])  # fmt: skip
at(kind, "log_poisson_loss of targets 0 and 1", lambda x: tf.nn.log_poisson_loss(tf.constant([0.0, 1.0], x.dtype), x,
   compute_full_loss=True), [0.3, 0.0])  # fmt: skip
at(kind, "tf.experimental.numpy.sinc at 0", lambda x: x + tnp.sinc(x), [0.0], same=lambda x: x + np.sinc(x))
at(kind, "clip_by_norm at the zero vector", lambda x: tf.clip_by_norm(x, 1.0), [0.0, 0.0])
at(kind, "clip_by_global_norm at zero vectors", lambda x, y: tf.clip_by_global_norm([x, y], 1.0)[0], [0.0, 0.0], [0.0])
at(kind, "l2_normalize with epsilon 1 at the zero vector", lambda x: tf.math.l2_normalize(x, epsilon=1.0), [0.0, 0.0])
at(kind, "special.bessel_j1(x) at 0", tf.math.special.bessel_j1, [0.0])
at(kind, "bessel_i1(x) at 0", tf.math.bessel_i1, [0.0])
at(kind, "bessel_i1e(x) near 0", lambda x: tf.math.bessel_i1e(x), [1e-3])
at(kind, "atan2(y, x) at x = 0", tf.math.atan2, [1.0, -2.0], [0.0, 0.0])
at(kind, "erfinv at 0", tf.math.erfinv, [0.0])
at(kind, "lbeta, digamma and lgamma at 1 and 2", lambda x: tf.math.lgamma(x) + x, [1.0, 2.0])
at(kind, "igamma(1, x)", lambda x: tf.math.igamma(tf.constant(1.0, x.dtype), x), [0.8])

# Kinks in code that is stable, of functions that have none
kind = "a kink in stable code"
binary = tf.constant([1.0, 0.0], tf.float64)
at(kind, "weighted_cross_entropy_with_logits at 0",
   lambda z: tf.nn.weighted_cross_entropy_with_logits(binary, z, 2.0), [0.0, 0.0])  # fmt: skip
at(kind, "weighted_cross_entropy_with_logits at 0, of the labels and the weight too",
   tf.nn.weighted_cross_entropy_with_logits, [0.3, 0.8], [0.0, 0.0], [2.0, 3.0])  # fmt: skip
at(kind, "sigmoid_cross_entropy_with_logits at 0", lambda z: tf.nn.sigmoid_cross_entropy_with_logits(binary, z),
   [0.0, 0.0])  # fmt: skip
at(kind, "keras binary_crossentropy from logits at 0",
   lambda z: keras.losses.binary_crossentropy(binary, z, from_logits=True), [0.0, 0.0])  # fmt: skip
at(kind, "keras binary_focal_crossentropy from logits at 0",
   lambda z: keras.losses.binary_focal_crossentropy(binary, z, from_logits=True), [0.0, 0.0])  # fmt: skip
at(kind, "keras.ops.logaddexp at a tie", lambda x, y: keras.ops.logaddexp(x, y), [0.7, 0.7], [0.7, -0.2])
at(kind, "tf.experimental.numpy.logaddexp at a tie", tnp.logaddexp, [0.7, 0.7], [0.7, -0.2])
at(kind, "tf.experimental.numpy.logaddexp2 at a tie", tnp.logaddexp2, [0.7, 0.7], [0.7, -0.2])
at(kind, "keras.ops.logaddexp2 at a tie", lambda x, y: keras.ops.logaddexp2(x, y), [0.7, 0.7], [0.7, -0.2])
at(kind, "reduce_logsumexp at a tie", lambda x: tf.reduce_logsumexp(x), [0.7, 0.7, -0.2])
at(kind, "cumulative_logsumexp at a tie", lambda x: tf.math.cumulative_logsumexp(x), [0.7, 0.7, -0.2])
at(kind, "softmax at a tie", tf.nn.softmax, [0.7, 0.7, 0.7])
at(kind, "log_softmax at a tie", tf.nn.log_softmax, [0.7, 0.7, 0.7])
at(kind, "softplus at 0", tf.nn.softplus, [0.0])
at(kind, "log_sigmoid at 0", tf.math.log_sigmoid, [0.0])
at(kind, "log_cosh at 0", lambda x: x + keras.losses.log_cosh(0 * x, x), [0.0])
at(kind, "asinh at 0", tf.math.asinh, [0.0])
at(kind, "log(1 + exp(-|x|)) + max(x, 0) at 0", lambda x: tf.math.log1p(tf.exp(-tf.abs(x))) + tf.nn.relu(x), [0.0],
   same=lambda x: np.log1p(np.exp(x)), cancels=True)  # fmt: skip
for name, activation in {
    "gelu": tf.nn.gelu, "approximate gelu": lambda x: tf.nn.gelu(x, True), "silu": tf.nn.silu,
    "mish": keras.activations.mish, "tanh": tf.tanh, "sigmoid": tf.sigmoid,
    "tanh_shrink": lambda x: x + keras.activations.tanh_shrink(x),
    "squareplus": keras.activations.squareplus,
}.items():  # fmt: skip
    at(kind, f"{name} at 0", activation, [0.0])
for name, activation, where in (
    ("celu", keras.activations.celu, 0.0), ("elu", tf.nn.elu, 0.0), ("softsign", tf.nn.softsign, 0.0),
    ("huber loss at its delta", lambda x: keras.losses.huber(tf.zeros_like(x), x), 1.0),
    ("relu(x)² + x", lambda x: tf.nn.relu(x) ** 2 + x, 0.0), ("x |x| + x", lambda x: x * tf.abs(x) + x, 0.0),
    ("squared hinge loss at its margin", lambda x: x[0] + keras.losses.squared_hinge(tf.ones_like(x), x), 1.0),
    ("sparse_plus at 1", keras.activations.sparse_plus, 1.0),
):  # fmt: skip
    at(kind, f"{name}, where the slope has a kink", activation, [where], derivatives=1)

kind = "labels that do not sum to 1"
for name, labels in {"none": [0.0, 0.0, 0.0], "a weight of 3": [0.0, 3.0, 0.0], "two of 1": [1.0, 1.0, 0.0]}.items():
    labels = tf.constant(labels, tf.float64)
    at(
        kind,
        f"softmax_cross_entropy_with_logits, {name}",
        lambda x, y=labels: tf.nn.softmax_cross_entropy_with_logits(y, x),
        [0.0, 0.1, 0.0],
        zero=name == "none",
    )
    at(
        kind,
        f"keras categorical_crossentropy, {name}",
        lambda x, y=labels: keras.losses.categorical_crossentropy(y[None], x[None], from_logits=True),
        [0.0, 0.1, 0.0],
        zero=name == "none",
    )

# Kinks: no derivative; what comes out is named
kind = "a kink"
for name, activation, where in (
    ("relu", tf.nn.relu, 0.0), ("relu6 at 6", tf.nn.relu6, 6.0), ("leaky_relu", tf.nn.leaky_relu, 0.0),
    ("selu", tf.nn.selu, 0.0), ("abs", tf.abs, 0.0), ("maximum(x, 0)", lambda x: tf.maximum(x, 0.0), 0.0),
    ("minimum(x, 0)", lambda x: tf.minimum(x, 0.0), 0.0),
    ("max(0, x) by where", lambda x: tf.where(x > 0, x, 0.0), 0.0),
    ("clip_by_value at its edge", lambda x: tf.clip_by_value(x, -1.0, 1.0), 1.0),
    ("hard_sigmoid at 3", keras.activations.hard_sigmoid, 3.0), ("hard_tanh at 1", keras.activations.hard_tanh, 1.0),
    ("hard_shrink's neighbour soft_shrink at 0.5", keras.activations.soft_shrink, 0.5),
    ("keras.ops.relu", keras.ops.relu, 0.0), ("keras.ops.clip at its edge", lambda x: keras.ops.clip(x, -1, 1), 1.0),
    ("hinge loss at its margin", lambda x: keras.losses.hinge(tf.ones_like(x), x), 1.0),
    ("mean_absolute_error of what is right", lambda x: keras.losses.mean_absolute_error(tf.zeros_like(x), x), 0.0),
    ("hard_silu at 3", keras.activations.hard_silu, 3.0), ("sqrt(x²)", lambda x: tf.sqrt(x**2), 0.0),
    ("floormod(x, 1) + abs(x - 0.5)", lambda x: tf.abs(x - 0.5) + tf.math.floormod(x, 1.0), 0.5),
):  # fmt: skip
    at(kind, f"{name} at {where:g}" if " at " not in name else name, activation, [where], derivatives=0)
at(kind, "norm at the zero vector", tf.norm, [0.0, 0.0], derivatives=0)
at(kind, "norm(ord=1) with a zero", lambda x: tf.norm(x, 1), [0.0, 2.0], derivatives=0)
at(kind, "reduce_euclidean_norm at the zero vector", tf.math.reduce_euclidean_norm, [0.0, 0.0], derivatives=0)
at(kind, "hypot at 0", tnp.hypot, [0.0], [0.0], derivatives=0)
at(kind, "abs of a complex 0", lambda x, y: tf.abs(tf.complex(x, y)), [0.0], [0.0], derivatives=0)
at(kind, "reduce_std of equal numbers", tf.math.reduce_std, [1.0, 1.0, 1.0], derivatives=0)
at(kind, "clip_by_norm at its norm", lambda x: tf.clip_by_norm(x, 5.0), [3.0, 4.0], derivatives=0)

kind = "kinks that cancel"
at(kind, "relu(x) - relu(-x) at 0", lambda x: tf.nn.relu(x) - tf.nn.relu(-x), [0.0], cancels=True)
at(kind, "max(x, y) min(x, y) at a tie", lambda x, y: tf.maximum(x, y) * tf.minimum(x, y), [0.7], [0.7], cancels=True)
at(kind, "max(x, y) + min(x, y) at a tie", lambda x, y: tf.maximum(x, y) + tf.minimum(x, y), [0.7], [0.7], cancels=True)
at(kind, "Σ sort(x)² at ties", lambda x: tf.reduce_sum(tf.sort(x) ** 2), [0.7, 0.7, 0.2], cancels=True)
at(kind, "sign(x) abs(x) at 0", lambda x: tf.sign(x) * tf.abs(x), [0.0], cancels=True)

kind = "the boundary of a domain"
for name, f, where in (
    ("sqrt", tf.sqrt, 0.0), ("acos", tf.acos, 1.0), ("asin", tf.asin, -1.0), ("acosh", tf.acosh, 1.0),
    ("xlogy(x, x)", lambda x: tf.math.xlogy(x, x), 0.0), ("pow(x, 0.5)", lambda x: tf.pow(x, 0.5), 0.0),
    ("sqrt of relu", lambda x: tf.sqrt(tf.nn.relu(x)), 0.0), ("x ** 1.5", lambda x: tf.pow(x, 1.5), 0.0),
    ("log1p(sqrt)", lambda x: tf.math.log1p(tf.sqrt(x)), 0.0),
):  # fmt: skip
    at(kind, f"{name} at {where:g}", f, [where], derivatives=0)
at(kind, "x sqrt(x)² at 0", lambda x: x * tf.sqrt(x) ** 2 + x, [0.0], same=lambda x: x * x + x)
at(kind, "sqrt(x² + y²) at y = 0", lambda x, y: tf.sqrt(x**2 + y**2), [1.0], [0.0])
at(kind, "log(sigmoid(x)) far out", lambda x: tf.math.log_sigmoid(x) - [-800.0, 0.0], [-800.0, 800.0])
at(kind, "betainc at x = 0.5, a = b = 1", lambda x: tf.math.betainc(tf.ones_like(x), tf.ones_like(x), x), [0.5])
at(kind, "sin(acos(x))² at 0", lambda x: tf.sin(tf.acos(x)) ** 2 + x, [0.0])
at(kind, "exp(log(x)) at 1e-3", lambda x: tf.exp(tf.math.log(1e-3 * x)), [1.0])

kind = "NaN in the branch not taken"
x0 = [-0.7, 0.6]
at(kind, "where(x > 0, log(x), x)", lambda x: tf.where(x > 0, tf.math.log(x), x), x0)
at(kind, "where(x > 0, sqrt(x), x)", lambda x: tf.where(x > 0, tf.sqrt(x), x), x0)
at(kind, "where(x > 0, x^1.5, x)", lambda x: tf.where(x > 0, tf.pow(x, 1.5), x), x0)
at(kind, "where(x != 0, sin(x) / x, 1) at 0", lambda x: x + tf.where(x != 0, tf.sin(x) / x, 1.0), [0.0, 0.6],
   same=lambda x: x + np.sinc(x / np.pi))  # fmt: skip
at(kind, "where(y > 0, x / y, 0) at y = 0", lambda x: x**2 + tf.where(tf.constant([0.0, 2.0], x.dtype) > 0,
   x / tf.constant([0.0, 2.0], x.dtype), 0.0), [0.7, 0.6])  # fmt: skip
at(kind, "where(x < 1, asin(x), x)", lambda x: tf.where(x < 1, tf.asin(x), x), [2.0, 0.6])
at(kind, "where(x > 50, x, log(1 + exp(x))) at 800",
   lambda x: tf.where(x > 50, x, tf.math.log(1 + tf.exp(x))) - [800.0, 0.0], [800.0, 0.6])  # fmt: skip
at(kind, "keras.ops.where(x > 0, log(x), x)", lambda x: keras.ops.where(x > 0, keras.ops.log(x), x), x0)
at(kind, "tf.experimental.numpy.where(x > 0, log(x), x)", lambda x: tnp.where(x > 0, tnp.log(x), x), x0)
at(kind, "cond(x > 0, log(x), x)", lambda x: tf.map_fn(lambda y: tf.cond(y > 0, lambda: tf.math.log(y), lambda: y), x),
   x0)  # fmt: skip
at(kind, "where of a safe argument", lambda x: tf.where(x > 0, tf.math.log(tf.where(x > 0, x, 1.0)), x), x0)
at(kind, "boolean_mask before the logarithm", lambda x: tf.math.log(tf.boolean_mask(x, [False, True])) + x[0], x0)
at(kind, "multiply_no_nan(log(x), x > 0)", lambda x: x + tf.math.multiply_no_nan(tf.math.log(x), tf.cast(x > 0,
   x.dtype)), x0)  # fmt: skip
at(kind, "divide_no_nan(x, y) at y = 0", lambda x: x + tf.math.divide_no_nan(x, tf.constant([0.0, 2.0], x.dtype)), x0)
at(kind, "mean of what is not NaN", lambda x: tf.reduce_mean(tf.boolean_mask(tf.math.log(x), ~tf.math.is_nan(
   tf.math.log(x)))) + x, x0)  # fmt: skip
at(kind, "softmax with a mask of -inf", lambda x: tf.nn.softmax(tf.where([True, True, False], x, -np.inf)),
   [0.1, 0.2, 0.3])  # fmt: skip
at(kind, "reduce_logsumexp with a mask of -inf", lambda x: tf.reduce_logsumexp(tf.where([True, True, False], x,
   tf.constant(-np.inf, x.dtype))), [0.1, 0.2, 0.3])  # fmt: skip
at(kind, "keras.layers.Softmax with a mask", lambda x: keras.layers.Softmax(dtype="float64")(x, mask=tf.constant(
   [[True, True, False]])), [[0.1, 0.2, 0.3]])  # fmt: skip
at(kind, "linalg.norm under where(all zero)", lambda x: tf.where(tf.reduce_all(x == 0), x[0], tf.norm(x)), [0.0, 0.0],
   derivatives=0)  # fmt: skip

kind = "huge or tiny"
# What is subtracted leaves the derivatives as they are; beside values of 800 they would count as rounding.
at(kind, "softplus at 800", lambda x: tf.nn.softplus(x) - [800.0, 0.0], [800.0, 0.5])
at(kind, "log_softmax of logits 1000 apart", lambda x: tf.nn.log_softmax(x) - [0.0, -1000.0, 0.0],
   [1000.0, 0.0, 999.0])  # fmt: skip
at(kind, "reduce_logsumexp of numbers near 10000", lambda x: tf.reduce_logsumexp(1e4 + x) - 1e4, [0.7, 0.2])
at(kind, "softmax_cross_entropy of logits 800 apart", lambda x: tf.nn.softmax_cross_entropy_with_logits([0.0, 1.0],
   x) - 800, [800.0, 0.0])  # fmt: skip
at(kind, "sigmoid_cross_entropy at ±800", lambda x: tf.nn.sigmoid_cross_entropy_with_logits(binary, x) - 800,
   [-800.0, 800.0])  # fmt: skip
at(kind, "norm of 1e-150 x", lambda x: tf.norm(1e-150 * x) * 1e150, [3.0, 4.0])
at(kind, "1e-200 / (1e-200 x)", lambda x: tf.math.divide(tf.constant(1e-200, x.dtype), 1e-200 * x), [0.7])
at(kind, "reciprocal(1e-200 x)", lambda x: tf.math.reciprocal(1e-200 * x) * 1e-200, [0.7])
at(kind, "(1e200 x) / (1e200 y)", lambda x, y: (1e200 * x) / (1e200 * y), [0.7], [0.9])
at(kind, "sqrt(1e-300 x)", lambda x: tf.sqrt(1e-300 * x) * 1e150, [0.7])
at(kind, "rsqrt(1e-200 x)", lambda x: tf.math.rsqrt(1e-200 * x) * 1e-100, [0.7])
at(kind, "rsqrt(1e-250 x)", lambda x: tf.math.rsqrt(1e-250 * x) * 1e-125, [0.7])
at(kind, "log(1e-300 x)", lambda x: tf.math.log(1e-300 * x), [0.7])
at(kind, "xlogy(1e-300 x, x)", lambda x: tf.math.xlogy(1e-300 * x, x + 1) * 1e300, [0.7])
at(kind, "log1p(1e-20 x)", lambda x: tf.math.log1p(1e-20 * x) * 1e20, [0.7])
at(kind, "expm1(1e-20 x)", lambda x: tf.math.expm1(1e-20 * x) * 1e20, [0.7])
at(kind, "pow(1e-200 x, 0.5)", lambda x: tf.pow(1e-200 * x, 0.5) * 1e100, [0.7])
at(kind, "pow(1e150 x, 2)", lambda x: tf.pow(1e150 * x, 2.0) * 1e-300, [0.7])
at(kind, "reduce_variance of numbers near 1e6", lambda x: tf.math.reduce_variance(1e6 + x), [0.1, 0.7, -0.4])
at(kind, "l2_normalize of 1e-3 x", lambda x: tf.math.l2_normalize(1e-3 * x), [0.7, -0.4])
at(kind, "l2_normalize of 1e100 x", lambda x: tf.math.l2_normalize(1e100 * x), [0.7, -0.4])
at(kind, "keras cosine_similarity of 1e-3 x", lambda x, y: keras.losses.cosine_similarity(1e-3 * x, 1e-3 * y),
   [0.7, -0.4], [0.1, 0.9])  # fmt: skip
at(kind, "reduce_prod of 1e-160, 1e-160 and 1e300", lambda x: tf.reduce_prod(x * [1e-160, 1e-140, 1e300]), [0.7, 0.4,
   0.9])  # fmt: skip
at(kind, "erfc(5) scaled", lambda x: tf.math.erfc(x) * 1e11, [5.0])
at(kind, "lgamma at 1e6", lambda x: tf.math.lgamma(1e6 * x) * 1e-6, [0.7])
at(kind, "tanh at 18", lambda x: x + tf.tanh(18 * x), [1.0])
at(kind, "hypot of 1e200 x", lambda x, y: keras.ops.hypot(1e200 * x, 1e200 * y) * 1e-200, [0.7], [0.9])
