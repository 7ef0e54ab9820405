"""One tensor as several inputs of an operation, and intermediate results that are used twice."""

from special.case import at

import keras
import tensorflow as tf

kind = "one tensor as several inputs"
x2, S = [0.7, 0.2], [[2.0, 0.4], [0.6, 1.9]]
for name, f, point in (
    ("xlogy", tf.math.xlogy, x2), ("xlog1py", tf.math.xlog1py, x2), ("multiply_no_nan", tf.math.multiply_no_nan, x2),
    ("multiply", tf.multiply, x2), ("pow", tf.pow, x2), ("maximum", tf.maximum, x2), ("minimum", tf.minimum, x2),
    ("matmul", tf.matmul, S), ("solve", lambda a, b: a + tf.linalg.solve(a, b), S),
    ("add", tf.add, x2), ("igamma", tf.math.igamma, [1.3, 0.8]),
    ("logaddexp", lambda a, b: keras.ops.logaddexp(a, b), x2), ("hypot", tf.experimental.numpy.hypot, x2),
    ("tensordot", lambda a, b: tf.tensordot(a, b, 1), S), ("einsum", lambda a, b: tf.einsum("ij,kj->ik", a, b), S),
    ("weighted_cross_entropy_with_logits", lambda a, b: tf.nn.weighted_cross_entropy_with_logits(a, b, 2.0), x2),
    ("sigmoid_cross_entropy_with_logits", tf.nn.sigmoid_cross_entropy_with_logits, x2),
    ("log_poisson_loss", tf.nn.log_poisson_loss, x2),
    ("softmax_cross_entropy_with_logits of its own softmax",
     lambda a, b: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(a), b), x2),
    ("triangular_solve", lambda a, b: a + tf.linalg.triangular_solve(a, b), S),
):  # fmt: skip
    at(kind, f"{name}(x, x)", lambda x, f=f: f(x, x), point)
for name, f in (("xdivy", tf.math.xdivy), ("divide", tf.divide), ("divide_no_nan", tf.math.divide_no_nan),
                ("squared_difference", tf.math.squared_difference), ("atan2", tf.math.atan2),
                ("subtract", tf.subtract)):  # fmt: skip
    at(kind, f"x + {name}(x, x)", lambda x, f=f: x + f(x, x), x2)
at(kind, "xlogy(x, x) of a softmax", lambda x: -tf.reduce_sum((lambda p: tf.math.xlogy(p, p))(tf.nn.softmax(x))), x2)
at(kind, "xlogy(x, x) + xlogy(1 - x, 1 - x)", lambda x: tf.math.xlogy(x, x) + tf.math.xlogy(1 - x, 1 - x), x2)
at(kind, "xlogy(0 x, x)", lambda x: x + tf.math.xlogy(tf.zeros_like(x) * x, x), x2)
at(kind, "where(x > 0, x, x)", lambda x: tf.where(x > 0, x, x) ** 2, [0.7, -0.2])
at(kind, "add_n([x, x, x])", lambda x: tf.add_n([x, x, x]) ** 2, x2)
at(kind, "concat([x, x])", lambda x: tf.concat([x, x], 0) ** 2, x2)
at(kind, "stack([x, x])", lambda x: tf.math.reduce_prod(tf.stack([x, x]), 0), x2)
at(kind, "stack([x, x]) at 0", lambda x: x + tf.math.reduce_prod(tf.stack([x, x]), 0), [0.0, 0.2])
at(kind, "batch_normalization by its own moments", lambda x: x + tf.nn.batch_normalization(
   x, tf.reduce_mean(x), tf.math.reduce_variance(x), x, x, 0.1), x2)  # fmt: skip
at(kind, "conv2d of an image with itself", lambda x: tf.nn.conv2d(tf.reshape(x, [1, 2, 2, 1]), tf.reshape(
   x, [2, 2, 1, 1]), 1, "VALID"), S)  # fmt: skip
at(kind, "cosine_similarity(x, x²)", lambda x: x + keras.losses.cosine_similarity(x, x**2), x2)
at(kind, "clip_by_value(x, x, x + 1)", lambda x: tf.clip_by_value(2 * x, x, x + 3), x2)
at(kind, "bias_add(x, x)", lambda x: tf.nn.bias_add(x[None], x) ** 2, x2)
at(kind, "cross(x, x²)", lambda x: tf.linalg.cross(x, x**2), [0.7, 0.2, 0.4])

kind = "an intermediate used twice"
for name, make in (("identity(x)", tf.identity), ("sin(x)", tf.sin), ("x + 1", lambda x: x + 1),
                   ("exp(x)", tf.exp)):  # fmt: skip
    at(kind, f"(m m) m with m = {name}", lambda x, make=make: (lambda m: (m * m) * m)(make(x)), [0.7])
at(kind, "(m @ m) @ m with m = [[x, 1], [-1, x]]", lambda x: (lambda m: tf.matmul(tf.matmul(m, m), m))(
   tf.stack([tf.stack([x, tf.ones_like(x)]), tf.stack([-tf.ones_like(x), x])])), 0.7)  # fmt: skip
at(kind, "m / (m m + 1) with m = sin(x)", lambda x: (lambda m: m / (m * m + 1))(tf.sin(x)), [0.7])
at(kind, "m² m with m = sin(x)", lambda x: (lambda m: tf.square(m) * m)(tf.sin(x)), [0.7])
at(kind, "tanh(m) m with m = sin(x)", lambda x: (lambda m: tf.tanh(m) * m)(tf.sin(x)), [0.7])
at(kind, "x³", lambda x: x**3, [0.7])
at(kind, "x x x", lambda x: x * x * x, [0.7])
at(kind, "segment_mean of m m with m = sin(x)",
   lambda x: (lambda m: tf.math.segment_mean(m * m, [0, 0, 1]))(tf.sin(x)), [0.7, 0.2, 0.4])  # fmt: skip
at(kind, "a layer twice: tanh(w tanh(w x))", lambda w: tf.tanh(w * tf.tanh(w * 0.8)), [0.7])
at(kind, "expm(x)", lambda x: tf.linalg.expm(x), [[0.7, 1.0], [-1.0, 0.7]])
at(kind, "cumulative_logsumexp, reversed, at -40",
   lambda x: tf.math.cumulative_logsumexp(tf.stack([x[0], 0 * x[0], -2 * x[0]]), reverse=True)[:2], [-4.0])  # fmt: skip
