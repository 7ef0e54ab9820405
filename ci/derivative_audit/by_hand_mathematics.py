"""Cases written by hand: tf.math, tf.nn and tf.linalg."""

# ruff: noqa: B008 (a default argument fixes what a loop goes over)

import tensorflow as tf
from by_hand import IMAGE, KERNEL, case, sparse
from cases import definite, symmetric


def operator(kind: str, *arguments, **keywords) -> tf.linalg.LinearOperator:
    return getattr(tf.linalg, f"LinearOperator{kind}")(*arguments, **keywords)


def both(op: tf.linalg.LinearOperator, x: tf.Tensor):
    return op.matmul(x), op.solve(x)


# tf.math
case("tf.math.add_n", lambda a, b: tf.math.add_n([a, b]), "real", "real")
case("tf.math.approx_max_k", lambda x: tf.math.approx_max_k(tf.cast(x, tf.float32), 2)[0], "real")
case("tf.math.bincount", lambda w: tf.math.bincount([0, 1, 1, 2], weights=w), "real 4", how="its weights")
case("tf.math.polygamma", lambda x: tf.math.polygamma(tf.constant(1.0, tf.float64), x), "positive")
case("tf.math.polyval", lambda a, b, x: tf.math.polyval([a, b, x], x), "real", "real", "real")
case("tf.math.scalar_mul", tf.math.scalar_mul, "real .", "real")
case("tf.math.pow of a negative base", lambda x: tf.math.pow(-x, tf.constant(3.0, tf.float64)), "positive")
case("tf.math.reduce_prod with a zero", lambda x: tf.reduce_prod(x, 1), "holed", how="one zero in each row")
case("tf.math.cumprod with a zero", lambda x: tf.math.cumprod(x, 1), "holed", how="one zero in each row")
case("tf.math.zeta", lambda x: tf.math.zeta(x, tf.constant(1.5, tf.float64)), "above", how="its first argument")
case("tf.math.zeta of q", lambda q: tf.math.zeta(tf.constant(2.5, tf.float64), q), "above")
case("tf.math.floormod", tf.math.floormod, "positive", "positive")
case("tf.math.nextafter", tf.math.nextafter, "real", "real")
case("tf.math.abs of complex numbers", lambda a, b: tf.abs(tf.complex(a, b)), "real", "real")
case("tf.math.angle of complex numbers", lambda a, b: tf.math.angle(tf.complex(a, b)), "positive", "real")
for word in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sigmoid", "square", "reciprocal",
     "log1p", "expm1",
             "asinh", "atan", "acosh", "atanh", "asin", "acos", "sinh", "cosh", "sign"):  # fmt: skip
    case(f"tf.math.{word} of complex numbers",
         lambda a, b, f=getattr(tf.math, word): f(tf.complex(a, b)), "positive", "positive")  # fmt: skip
for word in ("multiply", "divide", "pow", "xdivy", "xlogy", "xlog1py", "squared_difference", "divide_no_nan"):
    case(f"tf.math.{word} of complex numbers", lambda a, b, c, d, f=getattr(tf.math, word): f(tf.complex(a, b),
         tf.complex(c, d)), "positive", "positive", "positive", "positive")  # fmt: skip
for word in ("reduce_prod", "cumprod", "reduce_euclidean_norm", "reduce_variance", "reduce_std"):
    case(f"tf.math.{word} of complex numbers",
         lambda a, b, f=getattr(tf.math, word): f(tf.complex(a, b), 1), "positive", "positive")  # fmt: skip

# tf.nn
case("tf.nn.atrous_conv2d", lambda x, k: tf.nn.atrous_conv2d(x, k, 2, "SAME"), IMAGE, KERNEL)
case("tf.nn.atrous_conv2d_transpose", lambda x, k: tf.nn.atrous_conv2d_transpose(x, k, [1, 5, 5, 2], 2, "SAME"),
     IMAGE, KERNEL)  # fmt: skip
case("tf.nn.avg_pool1d", lambda x: tf.nn.avg_pool1d(x, 2, 1, "SAME"), "real 1 5 2")
case("tf.nn.avg_pool3d", lambda x: tf.nn.avg_pool3d(tf.cast(x, tf.float32), 2, 1, "SAME"), "real 1 3 3 3 2")
case("tf.nn.batch_norm_with_global_normalization", lambda x, m, v, b, g: tf.nn.batch_norm_with_global_normalization(
     x, m, v, b, g, 0.01, True), IMAGE, "real 2", "positive 2", "real 2", "real 2")  # fmt: skip
case("tf.nn.batch_normalization", lambda x, m, v, o, s: tf.nn.batch_normalization(x, m, v, o, s, 0.01),
     "real", "real 4", "positive 4", "real 4", "real 4")  # fmt: skip
case("tf.nn.bias_add", tf.nn.bias_add, "real", "real 4")
case("tf.nn.conv1d", lambda x, k: tf.nn.conv1d(x, k, 1, "SAME"), "real 1 5 2", "real 3 2 2")
case(
    "tf.nn.conv1d_transpose",
    lambda x, k: tf.nn.conv1d_transpose(x, k, [1, 10, 2], 2, "SAME"),
    "real 1 5 2",
    "real 3 2 2",
)
case("tf.nn.conv2d", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), IMAGE, KERNEL)
case("tf.nn.conv2d with strides", lambda x, k: tf.nn.conv2d(x, k, 2, [[0, 0], [1, 0], [0, 1], [0, 0]]), IMAGE, KERNEL)
case("tf.nn.conv2d with dilations", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME", dilations=2), IMAGE, KERNEL)
case("tf.nn.conv2d in groups", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), IMAGE, "real 3 3 1 2")
case("tf.nn.conv2d_transpose", lambda x, k: tf.nn.conv2d_transpose(x, k, [1, 10, 10, 2], 2, "SAME"), IMAGE, KERNEL)
case("tf.nn.conv3d", lambda x, k: tf.nn.conv3d(x, k, [1] * 5, "SAME"), "real 1 3 3 3 2", "real 2 2 2 2 2")
case("tf.nn.conv3d_transpose", lambda x, k: tf.nn.conv3d_transpose(x, k, [1, 3, 3, 3, 2], 1, "SAME"),
     "real 1 3 3 3 2", "real 2 2 2 2 2")  # fmt: skip
case("tf.nn.conv_transpose", lambda x, k: tf.nn.conv_transpose(x, k, [1, 10, 10, 2], 2), IMAGE, KERNEL)
case("tf.nn.convolution", lambda x, k: tf.nn.convolution(x, k), IMAGE, KERNEL)
case("tf.nn.ctc_loss", lambda x: tf.nn.ctc_loss(tf.constant([[1, 2], [2, 1]]), tf.cast(x, tf.float32), [2, 2], [5, 5],
     blank_index=0), "real 5 2 4", how="dense labels")  # fmt: skip
case("tf.nn.ctc_loss of sparse labels", lambda x: tf.nn.ctc_loss(tf.sparse.from_dense([[1, 2], [2, 1]]),
     tf.cast(x, tf.float32), None, [5, 5], blank_index=0), "real 5 2 4")  # fmt: skip
case("tf.nn.depth_to_space", lambda x: tf.nn.depth_to_space(x, 2), "real 1 3 3 4")
case("tf.nn.depthwise_conv2d", lambda x, k: tf.nn.depthwise_conv2d(x, k, [1] * 4, "SAME"), IMAGE, KERNEL)
case("tf.nn.depthwise_conv2d_backprop_filter", lambda x, o: tf.nn.depthwise_conv2d_backprop_filter(
     x, [3, 3, 2, 2], o, [1] * 4, "SAME"), IMAGE, "real 1 5 5 4")  # fmt: skip
case("tf.nn.depthwise_conv2d_backprop_input", lambda k, o: tf.nn.depthwise_conv2d_backprop_input(
     [1, 5, 5, 2], k, o, [1] * 4, "SAME"), KERNEL, "real 1 5 5 4")  # fmt: skip
case("tf.nn.dilation2d", lambda x, k: tf.nn.dilation2d(x, k, [1] * 4, "SAME", "NHWC", [1] * 4), IMAGE, "real 2 2 2")
case("tf.nn.embedding_lookup", lambda x: tf.nn.embedding_lookup(x, [0, 2, 2]), "real")
case("tf.nn.embedding_lookup_sparse", lambda x, w: tf.nn.embedding_lookup_sparse(
     x, sparse(tf.constant([0, 1, 2, 1], tf.int64)), sparse(w), combiner="mean"), "real", "positive 4")  # fmt: skip
case("tf.nn.erosion2d", lambda x, k: tf.nn.erosion2d(x, k, [1] * 4, "SAME", "NHWC", [1] * 4), IMAGE, "real 2 2 2")
case("tf.nn.experimental.stateless_dropout", lambda x: tf.nn.experimental.stateless_dropout(x, 0.3, (1, 2)), "real")
case(
    "tf.nn.fractional_avg_pool", lambda x: tf.nn.fractional_avg_pool(x, [1.0, 1.4, 1.4, 1.0], seed=1)[0], "real 1 6 6 2"
)
case(
    "tf.nn.fractional_max_pool", lambda x: tf.nn.fractional_max_pool(x, [1.0, 1.4, 1.4, 1.0], seed=1)[0], "real 1 6 6 2"
)
case("tf.nn.gelu approximate", lambda x: tf.nn.gelu(x, approximate=True), "real")
case("tf.nn.isotonic_regression", lambda x: tf.nn.isotonic_regression(x)[0], "real")
case("tf.nn.local_response_normalization", lambda x: tf.nn.local_response_normalization(tf.cast(x, tf.float32)),
     "real 1 3 3 4")  # fmt: skip
case("tf.nn.max_pool1d", lambda x: tf.nn.max_pool1d(x, 2, 1, "SAME"), "real 1 5 2")
case(
    "tf.nn.max_pool2d of stride 1", lambda x: tf.nn.max_pool2d(tf.sin(x), 2, 1, "SAME"), "real 1 4 4 2", how="of a sine"
)
case("tf.nn.max_pool3d of stride 2", lambda x: tf.nn.max_pool3d(tf.cast(x, tf.float32), 2, 2, "VALID"),
     "real 1 4 4 4 2")  # fmt: skip
case("tf.nn.max_pool3d", lambda x: tf.nn.max_pool3d(tf.cast(x, tf.float32), 2, 1, "SAME"), "real 1 3 3 3 2")
case("tf.nn.moments variance", lambda x: tf.nn.moments(x, [1])[1], "real", how="of the variance alone")
case("tf.nn.weighted_moments variance", lambda x, w: tf.nn.weighted_moments(x, [1], w)[1], "real", "positive")
case("tf.nn.pool", lambda x: tf.nn.pool(x, [2, 2], "AVG"), IMAGE)
case("tf.nn.safe_embedding_lookup_sparse", lambda x, w: tf.nn.safe_embedding_lookup_sparse(
     x, sparse(tf.constant([0, 1, 2, 1], tf.int64)), sparse(w)), "real", "positive 4")  # fmt: skip
case("tf.nn.separable_conv2d", lambda x, d, p: tf.nn.separable_conv2d(x, d, p, [1] * 4, "SAME"),
     IMAGE, "real 3 3 2 1", "real 1 1 2 3")  # fmt: skip
case(
    "tf.nn.sigmoid_cross_entropy_with_logits",
    lambda y, x: tf.nn.sigmoid_cross_entropy_with_logits(y, x),
    "unit",
    "real",
)
case("tf.nn.softmax_cross_entropy_with_logits",
     lambda y, x: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x),
     "real", "real", how="labels are the softmax of the first input")  # fmt: skip
case("tf.nn.softmax_cross_entropy_with_logits unnormalised", lambda y, x: tf.nn.softmax_cross_entropy_with_logits(y, x),
     "positive", "real", how="labels that do not sum to 1")  # fmt: skip
case("tf.nn.space_to_batch", lambda x: tf.nn.space_to_batch(x, [2, 2], [[0, 1], [1, 0]]), IMAGE)
case("tf.nn.sparse_softmax_cross_entropy_with_logits", lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(
     [0, 3, 1], x), "real")  # fmt: skip
case("tf.nn.with_space_to_batch", lambda x: tf.nn.with_space_to_batch(
     x, [2, 2], "VALID", lambda y, *_: tf.nn.avg_pool2d(y, 2, 1, "VALID")), "real 1 6 6 2")  # fmt: skip

# tf.linalg
case("tf.linalg.einsum", lambda a, b: tf.einsum("ij,kj->ik", a, b), "real", "real")
case("tf.linalg.einsum with an ellipsis", lambda a, b: tf.einsum("...ij,...kj->...ik", a, b), "real 2 3 4", "real 3 4")
case("tf.linalg.set_diag", tf.linalg.set_diag, "real", "real 3")
case("tf.linalg.tensordot", lambda a, b: tf.tensordot(a, b, 1), "real", "real 4 2")
case("tf.linalg.eigh", lambda a: (lambda e, v: (e, v**2))(*tf.linalg.eigh(symmetric(a))), "real 3 3",
     how="eigenvalues and squares of the eigenvectors, whose sign is free, of a + aᵀ")  # fmt: skip
case("tf.linalg.eig", lambda a: (lambda e, v: (e, tf.abs(v) ** 2))(*tf.linalg.eig(a + tf.constant([[0.0, 0, 0],
     [0, 9, 0],
     [0, 0, 18]], tf.float64))), "real 3 3", how="eigenvalues and squared sizes of the eigenvectors")  # fmt: skip
case("tf.linalg.eigvals", lambda a: tf.linalg.eigvals(a + tf.constant([[0.0, 0, 0], [0, 9, 0], [0, 0, 18]],
     tf.float64)),
     "real 3 3")  # fmt: skip
case("tf.linalg.eigh_tridiagonal", tf.linalg.eigh_tridiagonal, "rising 4", "positive 3")
case("tf.linalg.svd", lambda a: (lambda s, u, v: (s, u**2, v**2))(*tf.linalg.svd(a)), "real",
     how="singular values and squares of the vectors")  # fmt: skip
case("tf.linalg.svd of values alone", lambda a: tf.linalg.svd(a, compute_uv=False), "real")
case("tf.linalg.qr of a square matrix", lambda a: tf.linalg.qr(a), "real 3 3")
case("tf.linalg.qr of a wide matrix", lambda a: tf.linalg.qr(a), "real 2 4")
case("tf.linalg.qr", lambda a: tf.linalg.qr(a), "real 4 3", how="of a tall matrix")
case("tf.linalg.qr complete", lambda a: tf.linalg.qr(a, full_matrices=True), "real 4 3")
case("tf.linalg.lstsq slow", lambda a, b: tf.linalg.lstsq(a, b, fast=False), "real 4 3", "real 4 2")
case("tf.linalg.lstsq", lambda a, b: tf.linalg.lstsq(a, b), "real 4 3", "real 4 2")
case("tf.linalg.lstsq regularised", lambda a, b: tf.linalg.lstsq(a, b, l2_regularizer=0.3), "real 3 4", "real 3 2")
case("tf.linalg.pinv", tf.linalg.pinv, "real 4 3")
case("tf.linalg.logm", lambda a: tf.linalg.logm(tf.cast(definite(a), tf.complex128)), "real 3 3", how="of a aᵀ + 2")
case("tf.linalg.expm", lambda a: tf.linalg.expm(0.3 * a), "real 3 3")
case("tf.linalg.cholesky_solve", lambda a, b: tf.linalg.cholesky_solve(tf.linalg.cholesky(definite(a)), b),
     "real 3 3", "real 3 2")  # fmt: skip
case("tf.linalg.triangular_solve", lambda a, b: tf.linalg.triangular_solve(definite(a), b), "real 3 3", "real 3 2")
case("tf.linalg.banded_triangular_solve", tf.linalg.banded_triangular_solve, "above 2 4", "real 4 2")
case("tf.linalg.tridiagonal_solve", lambda d, b: tf.linalg.tridiagonal_solve(
     d + tf.constant([[0.0], [4], [0]], tf.float64), b), "unit 3 4", "real 4 2")  # fmt: skip
case("tf.linalg.tridiagonal_matmul", tf.linalg.tridiagonal_matmul, "real 3 4", "real 4 2")
for word in ("lu_matrix_inverse", "lu_reconstruct"):
    case(f"tf.linalg.{word}", lambda a, f=getattr(tf.linalg, word): f(*tf.linalg.lu(definite(a))), "real 3 3")
case("tf.linalg.lu_solve", lambda a, b: tf.linalg.lu_solve(*tf.linalg.lu(definite(a)), b), "real 3 3", "real 3 2")
case("tf.linalg.norm nuclear", lambda a: tf.reduce_sum(tf.linalg.svd(a, compute_uv=False)), "real")
case("tf.linalg.norm of order 1.5", lambda a: tf.norm(a, 1.5, axis=1), "real")
case("tf.linalg.norm as an operator", lambda a: tf.norm(a, 2, axis=[0, 1]), "real")
case("tf.linalg.matmul of complex matrices", lambda a, b: tf.matmul(tf.complex(a, b), tf.complex(b, a), adjoint_b=True),
     "real", "real")  # fmt: skip
for word in ("inv", "det", "cholesky", "logdet", "sqrtm", "expm"):
    case(f"tf.linalg.{word} of complex matrices", lambda a, b, f=getattr(tf.linalg, word): (lambda c: f(
         tf.matmul(c, c, adjoint_b=True) + 2 * tf.eye(3, dtype=c.dtype)))(tf.complex(a, b)), "real 3 3", "real 3 3",
         how="of c c* + 2")  # fmt: skip
for word, make in {
    "FullMatrix": lambda a: operator("FullMatrix", definite(a)),
    "LowerTriangular": lambda a: operator("LowerTriangular", definite(a)),
    "Diag": lambda a: operator("Diag", definite(a)[0]),
    "Tridiag": lambda a: operator("Tridiag", definite(a), diagonals_format="compact"),
    "Toeplitz": lambda a: operator("Toeplitz", tf.linalg.diag_part(definite(a)), tf.linalg.diag_part(definite(a))),
    "Householder": lambda a: operator("Householder", a[0]),
    "LowRankUpdate": lambda a: operator("LowRankUpdate", operator("FullMatrix", definite(a)), a[:, :1]),
    "Inversion": lambda a: operator("Inversion", operator("FullMatrix", definite(a))),
    "Adjoint": lambda a: operator("Adjoint", operator("FullMatrix", definite(a))),
    "ScaledIdentity": lambda a: operator("ScaledIdentity", 3, definite(a)[0, 0]),
    "Circulant": lambda a: operator("Circulant", tf.cast(tf.linalg.diag_part(definite(a)), tf.complex128),
                                    input_output_dtype=tf.complex128),
    "Composition": lambda a: operator("Composition", [operator("FullMatrix", definite(a))] * 2),
    "BlockDiag": lambda a: operator("BlockDiag", [operator("FullMatrix", definite(a))]),
    "Kronecker": lambda a: operator("Kronecker", [operator("FullMatrix", definite(a)),
     operator("Identity", 1, dtype=a.dtype)]),
}.items():  # fmt: skip
    case(f"tf.linalg.LinearOperator{word}",
     lambda a, x, make=make: (lambda op: both(op, tf.cast(x, op.dtype)))(make(a)),
         "real 3 3", "real 3 2", how="matmul and solve")  # fmt: skip
