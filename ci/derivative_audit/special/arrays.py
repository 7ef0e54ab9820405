"""Arrays: products with zeros, ties, indices that stand twice, segments with gaps, empty and single axes."""

# ruff: noqa: B008 (a default argument fixes what a loop goes over)

from special.case import at

import keras
import tensorflow as tf

kind = "a product with a zero"
points = {"one zero": [0.0, 1.0, 2.0], "two zeros": [0.0, 0.0, 2.0, 3.0], "a zero at the end": [1.5, 2.0, 0.0]}
products = {
    "reduce_prod": tf.reduce_prod,
    "cumprod": tf.math.cumprod,
    "exclusive cumprod": lambda x: tf.math.cumprod(x, exclusive=True),
    "reversed cumprod": lambda x: tf.math.cumprod(x, reverse=True),
    "segment_prod": lambda x: tf.math.segment_prod(x, [0] * (x.shape[0] - 1) + [1]),
    "unsorted_segment_prod": lambda x: tf.math.unsorted_segment_prod(x, [0] * x.shape[0], 1),
}
for name, f in products.items():
    for where, point in points.items():
        at(kind, f"{name} with {where}", lambda x, f=f: tf.reduce_sum(x) + f(x), point)
at(kind, "reduce_prod of rows with zeros", lambda x: tf.reduce_prod(x, 1), [[0.0, 1.0, 2.0], [3.0, 0.0, 1.0]])
at(kind, "reduce_prod of all axes", lambda x: tf.reduce_prod(x) + x[0], [[0.0, 1.5], [3.0, 2.0]])
at(kind, "keras.ops.prod with one zero", lambda x: keras.ops.prod(x), points["one zero"])
at(kind, "keras.ops.cumprod with one zero", lambda x: keras.ops.cumprod(x), points["one zero"])
at(kind, "the last of cumprod with one zero", lambda x: tf.math.cumprod(x)[-1], points["one zero"])
at(kind, "reduce_prod with a zero that depends on x",
   lambda x: tf.reduce_prod(tf.concat([x, x[:1] - 1.5], 0)), [1.5, 2.0])  # fmt: skip
at(kind, "scan of a product with a zero", lambda x: tf.scan(lambda a, y: a * y, x), points["one zero"])

kind = "a tie"
two = [0.7, 0.7, 0.2]
for name, f in {
    "reduce_max": tf.reduce_max, "reduce_min": lambda x: -tf.reduce_min(-x), "sort": tf.sort,
    "top_k of 1": lambda x: tf.math.top_k(x, 1)[0], "keras.ops.max": keras.ops.max,
    "keras.ops.median": keras.ops.median, "norm(ord=inf)": lambda x: tf.norm(x, float("inf")),
    "segment_max": lambda x: tf.math.segment_max(x, [0, 0, 1]),
    "unsorted_segment_max": lambda x: tf.math.unsorted_segment_max(x, [0, 0, 1], 2),
    "segment_min": lambda x: tf.math.segment_min(x, [0, 0, 1]),
    "max_pool1d": lambda x: tf.nn.max_pool1d(tf.reshape(x, [1, 3, 1]), 2, 1, "VALID"),
    "max_pool2d": lambda x: tf.nn.max_pool2d(tf.reshape(x, [1, 1, 3, 1]), [1, 2], 1, "VALID"),
    "dilation2d": lambda x: tf.nn.dilation2d(tf.reshape(x, [1, 1, 3, 1]), tf.zeros([1, 2, 1], x.dtype), (1, 1, 1, 1),
                                             "VALID", "NHWC", (1, 1, 1, 1)),
    "abs of a difference": lambda x: tf.abs(x[0] - x[1]),
}.items():  # fmt: skip
    at(kind, f"{name} at a tie", f, two, derivatives=0)
at(kind, "maximum(x, y) at a tie", tf.maximum, [0.7], [0.7], derivatives=0)
at(kind, "minimum(x, y) at a tie", tf.minimum, [0.7], [0.7], derivatives=0)
at(kind, "keras.ops.maximum at a tie", keras.ops.maximum, [0.7], [0.7], derivatives=0)
at(kind, "tensor_scatter_nd_max at a tie", lambda x, u: tf.tensor_scatter_nd_max(x, [[0]], u), [0.7, 0.2], [0.7],
   derivatives=0)  # fmt: skip

kind = "an index twice"
x3 = [1.0, 2.0, 3.0]
at(kind, "gather", lambda x: tf.gather(x, [0, 0, 2]) ** 2, x3)
at(kind, "gather_nd", lambda x: tf.gather_nd(x, [[0], [0], [2]]) ** 2, x3)
at(kind, "embedding_lookup", lambda x: tf.nn.embedding_lookup(x, [1, 1]) ** 2, [[1.0, 2.0], [3.0, 4.0]])
at(kind, "scatter_nd", lambda x: tf.scatter_nd([[0], [0], [2]], x, [4]), x3)
at(kind, "tensor_scatter_nd_add", lambda x, u: tf.tensor_scatter_nd_add(x, [[0], [0]], u), x3, [0.5, 0.7])
at(kind, "tensor_scatter_nd_sub", lambda x, u: tf.tensor_scatter_nd_sub(x, [[0], [0]], u), x3, [0.5, 0.7])
at(kind, "tensor_scatter_nd_update", lambda x, u: tf.tensor_scatter_nd_update(x, [[0], [0]], u), x3, [0.5, 0.7])
at(kind, "tensor_scatter_nd_max, no tie", lambda x, u: tf.tensor_scatter_nd_max(x, [[0], [0]], u), x3, [1.5, 1.7])
at(kind, "dynamic_stitch", lambda x, u: tf.dynamic_stitch([[0, 1], [1]], [x, u]), [1.0, 2.0], [0.5])
at(kind, "unsorted_segment_sum", lambda x: tf.math.unsorted_segment_sum(x, [1, 1, 0], 2), x3)
at(kind, "bincount with weights", lambda x: tf.math.bincount([1, 1, 0], weights=x), x3)
at(kind, "keras.ops.take", lambda x: keras.ops.take(x, [0, 0, 2]) ** 2, x3)
at(kind, "keras.ops.scatter_update", lambda x, u: keras.ops.scatter_update(x, [[0], [0]], u), x3, [0.5, 0.7])
at(kind, "sparse_dense_matmul", lambda v: tf.sparse.sparse_dense_matmul(
   tf.SparseTensor([[0, 0], [0, 0], [1, 1]], v, [2, 2]), tf.constant([[2.0], [3.0]], v.dtype)), x3)  # fmt: skip

kind = "segments with gaps"
x4 = [1.0, 2.0, 3.0, 4.0]
for word in ("sum", "mean", "prod", "max", "min"):
    at(kind, f"segment_{word}", lambda x, f=getattr(tf.math, f"segment_{word}"): tf.gather(f(x, [0, 0, 2, 2]), [0, 2])
       ** 2, x4)  # fmt: skip
for word in ("sum", "mean", "prod", "max", "min", "sqrt_n"):
    at(kind, f"unsorted_segment_{word}", lambda x, f=getattr(tf.math, f"unsorted_segment_{word}"):
       tf.gather(f(x, [2, 0, 2, 0], 4), [0, 2]) ** 2, x4)  # fmt: skip
for word in ("sum", "mean", "sqrt_n"):
    at(kind, f"sparse.segment_{word}", lambda x, f=getattr(tf.sparse, f"segment_{word}"):
       f(x, [0, 1, 3], [0, 0, 2], num_segments=4) ** 2, x4)  # fmt: skip
at(kind, "segment_mean and the gap itself", lambda x: tf.math.segment_mean(x, [0, 0, 2, 2]) ** 2, x4)
at(kind, "segment_prod and the gap itself", lambda x: tf.math.segment_prod(x, [0, 0, 2, 2]) ** 2, x4)
at(kind, "segment_prod with a zero and a gap", lambda x: tf.math.segment_prod(x, [0, 0, 2, 2]) + x[0], [0.0, 2, 3, 4])
at(kind, "unsorted_segment_prod, a negative id", lambda x: tf.math.unsorted_segment_prod(x, [0, -1, 0, 1], 2), x4)
at(kind, "unsorted_segment_mean, a negative id", lambda x: tf.math.unsorted_segment_mean(x, [0, -1, 0, 1], 2), x4)
at(kind, "keras.ops.segment_sum", lambda x: keras.ops.segment_sum(x, tf.constant([0, 0, 2, 2]),
   num_segments=4) ** 2, x4)  # fmt: skip

kind = "an empty or single axis"
E2 = [1.5, 2.0]
empty = lambda x: x[:0]  # noqa: E731
at(kind, "reduce_sum of an empty axis", lambda x: x + tf.reduce_sum(empty(x)), E2)
at(kind, "reduce_prod of an empty axis", lambda x: x * tf.reduce_prod(empty(x)), E2)
at(kind, "matmul over an empty axis", lambda x: x + tf.matmul(empty(x)[None], empty(x)[:, None])[0, 0], E2)
at(kind, "concat with an empty part", lambda x: tf.concat([empty(x), x], 0) ** 2, E2)
at(kind, "reduce_logsumexp of a single axis", lambda x: tf.reduce_logsumexp(x[:, None], 1), E2)
at(kind, "reduce_std of a single axis", lambda x: x + tf.math.reduce_std(x[:, None], 1), E2)
at(kind, "reduce_variance of a single axis", lambda x: x + tf.math.reduce_variance(x[:, None], 1), E2)
at(kind, "moments of a single axis", lambda x: tf.nn.moments(x[:, None], [1]), E2)
at(kind, "softmax of a single axis", lambda x: x * tf.nn.softmax(x[:, None], 1)[:, 0], E2)
at(kind, "cumprod of a single axis", lambda x: tf.math.cumprod(x[:, None], 1), E2)
at(kind, "cumprod of a single zero", lambda x: tf.math.cumprod(x[:, None], 1), [0.0, 2.0])
at(kind, "reduce_prod of a single zero", lambda x: tf.reduce_prod(x[:, None], 1), [0.0, 2.0])
at(kind, "reduce_max of a single axis", lambda x: tf.reduce_max(x[:, None], 1) ** 2, E2)
at(kind, "l2_normalize of a single axis", lambda x: x + tf.math.l2_normalize(x[:, None], 1)[:, 0], E2)
at(kind, "keras layer_normalization of a single axis",
   lambda x: x + keras.ops.layer_normalization(x[:, None], axis=-1)[:, 0], E2)  # fmt: skip
at(kind, "norm of a single axis", lambda x: tf.norm(x[:, None], axis=1), E2)
at(kind, "det of a 1 x 1 matrix", lambda x: tf.linalg.det(x[:, None, None]), E2)
at(kind, "det of a 1 x 1 matrix of 0", lambda x: tf.linalg.det(x[:, None, None]), [0.0, 2.0])
at(kind, "inv, cholesky and sqrtm of 1 x 1 matrices", lambda x: [tf.linalg.inv(x[:, None, None]),
   tf.linalg.cholesky(x[:, None, None]), tf.linalg.sqrtm(x[:, None, None])], E2)  # fmt: skip
at(kind, "svd of a 1 x 1 matrix", lambda x: tf.linalg.svd(x[:, None, None])[0], E2)
at(kind, "eigvalsh of a 1 x 1 matrix", lambda x: tf.linalg.eigvalsh(x[:, None, None]), E2)
at(kind, "segment_mean of single rows", lambda x: tf.math.segment_mean(x, [0, 1]) ** 2, E2)
at(kind, "convolution of a single pixel", lambda x: tf.nn.conv2d(tf.reshape(x[:1], [1, 1, 1, 1]),
   tf.reshape(x[1:], [1, 1, 1, 1]), 1, "SAME"), E2)  # fmt: skip
at(kind, "sparse matrix without values", lambda x: x**2 + tf.sparse.sparse_dense_matmul(
   tf.SparseTensor(tf.zeros([0, 2], tf.int64), empty(x), [2, 2]), x[:, None])[:, 0], E2)  # fmt: skip
