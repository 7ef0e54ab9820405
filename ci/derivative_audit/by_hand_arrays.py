"""Cases written by hand: images, arrays, control flow, sparse and ragged tensors, raw operations, and Keras' own."""

# ruff: noqa: B008 (a default argument fixes what a loop goes over)

import keras
import tensorflow as tf
from by_hand import IMAGE, KERNEL, case, sparse
from cases import definite


def csr(x):
    """A matrix in TensorFlow's compressed rows, with the given stored values."""
    return tf.raw_ops.DenseToCSRSparseMatrix(dense_input=x, indices=[[0, 1], [0, 2], [1, 0], [2, 2]])


def loop(x):
    return tf.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y) * x), (tf.constant(0), x), maximum_iterations=3
    )[1]


def stored(x):
    array = tf.TensorArray(tf.float64, size=3)
    for i in range(3):
        array = array.write(i, x[i] ** 2)
    return array.stack()


def gradient_inside(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(tf.sin(x) * x**2)
    return tape.gradient(y, x)


def block_lstm(x, w, b):
    states = {name: tf.zeros((2, 3), tf.float64) for name in ("cs_prev", "h_prev")}
    peepholes = {name: tf.zeros(3, tf.float64) for name in ("wci", "wcf", "wco")}
    op = tf.raw_ops.BlockLSTMV2(
        seq_len_max=tf.constant(2, tf.int64), x=tf.cast(x, tf.float32), w=tf.cast(w, tf.float32),
     b=tf.cast(b, tf.float32),
        **{k: tf.cast(v, tf.float32) for k, v in (states | peepholes).items()},
    )  # fmt: skip
    return op.h


# tf.signal and tf.image
case("tf.signal.overlap_and_add", lambda x: tf.signal.overlap_and_add(x, 2), "real 3 4")
case("tf.signal.mdct", lambda x: tf.signal.mdct(x, 4), "real 12")
case("tf.image.central_crop", lambda x: tf.image.central_crop(x, 0.5), "unit 1 6 6 3")
case("tf.image.adjust_gamma", lambda x: tf.image.adjust_gamma(x, 1.7, 0.9), "unit 1 6 6 3")
case("tf.image.crop_and_resize", lambda x, b: tf.image.crop_and_resize(
     tf.cast(x, tf.float32), tf.cast([[0.1, 0.1, 0.7, 0.8]] + 0.01 * b, tf.float32), [0], [4, 4]), IMAGE, "real 1 4",
     how="of the image and the boxes")  # fmt: skip
case("tf.image.crop_to_bounding_box", lambda x: tf.image.crop_to_bounding_box(x, 1, 1, 3, 3), IMAGE)
case(
    "tf.image.extract_glimpse", lambda x: tf.image.extract_glimpse(tf.cast(x, tf.float32), [3, 3], [[0.1, 0.2]]), IMAGE
)
case(
    "tf.image.extract_patches",
    lambda x: tf.image.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "VALID"),
    IMAGE,
)
case("tf.image.grayscale_to_rgb", tf.image.grayscale_to_rgb, "unit 1 4 4 1")
case("tf.image.pad_to_bounding_box", lambda x: tf.image.pad_to_bounding_box(x, 1, 1, 7, 7), IMAGE)
for method in ("nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"):
    case(f"tf.image.resize {method}", lambda x, method=method: tf.image.resize(x, (7, 7), method), IMAGE)
case("tf.image.resize antialiased", lambda x: tf.image.resize(x, (3, 3), antialias=True), IMAGE)
case("tf.image.ssim", lambda a, b: tf.image.ssim(a, b, 1.0, filter_size=3), "unit 1 6 6 3", "unit 1 6 6 3")
case("tf.image.ssim_multiscale", lambda a, b: tf.image.ssim_multiscale(a, b, 1.0, power_factors=(0.5, 0.5),
     filter_size=3),
     "unit 1 8 8 1", "unit 1 8 8 1")  # fmt: skip
case(
    "tf.image.stateless_random_brightness",
    lambda x: tf.image.stateless_random_brightness(x, 0.1, (1, 2)),
    "unit 1 6 6 3",
)
case("tf.image.stateless_random_crop", lambda x: tf.image.stateless_random_crop(x, [1, 3, 3, 2], (1, 2)), IMAGE)
case("tf.image.stateless_random_hue", lambda x: tf.image.stateless_random_hue(x, 0.1, (1, 2)), "unit 1 6 6 3")
case(
    "tf.image.stateless_random_saturation",
    lambda x: tf.image.stateless_random_saturation(x, 0.5, 1.5, (1, 2)),
    "unit 1 6 6 3",
)

# Arrays
case("tf.approx_top_k", lambda x: tf.approx_top_k(tf.cast(x, tf.float32), 2)[0], "real")
case("tf.batch_to_space", lambda x: tf.batch_to_space(x, [2, 2], [[0, 1], [1, 0]]), "real 4 3 3 2")
case("tf.boolean_mask", lambda x: tf.boolean_mask(x, [True, False, True]), "real")
case("tf.broadcast_to", lambda x: tf.broadcast_to(x, [2, 3, 4]), "real")
case("tf.concat", lambda a, b: tf.concat([a, b], 0), "real", "real")
case("tf.dynamic_partition", lambda x: tf.dynamic_partition(x, [0, 1, 0], 2), "real")
case("tf.dynamic_stitch", lambda a, b: tf.dynamic_stitch([[0, 2], [1, 2]], [a, b]), "real 2 3", "real 2 3",
     how="an index twice")  # fmt: skip
case("tf.ensure_shape", lambda x: tf.ensure_shape(x, [3, 4]), "real")
case(
    "tf.extract_volume_patches",
    lambda x: tf.extract_volume_patches(x, [1, 2, 2, 2, 1], [1] * 5, "VALID"),
    "real 1 3 3 3 2",
)
case("tf.fill", lambda x: tf.fill([2, 3], x), "real .")
case("tf.gather of axis 1", lambda x: tf.gather(x, [0, 0, 2], axis=1), "real")
case("tf.gather in batches", lambda x: tf.gather(x, [[0, 1], [3, 3], [2, 0]], batch_dims=1), "real")
case("tf.gather_nd", lambda x: tf.gather_nd(x, [[0, 1], [2, 2], [0, 1]]), "real")
case("tf.linspace", lambda a, b: tf.linspace(a, b, 5), "real 3", "real 3")
case("tf.meshgrid", lambda a, b: tf.meshgrid(a, b), "real 3", "real 4")
case("tf.one_hot", lambda a, b: tf.one_hot([0, 2, 1], 3, a, b), "real .", "real .", how="its values on and off")
case("tf.pad reflected", lambda x: tf.pad(x, [[1, 1], [2, 2]], "REFLECT"), "real")
case("tf.pad symmetric", lambda x: tf.pad(x, [[1, 1], [2, 2]], "SYMMETRIC"), "real")
case("tf.pad with a value", lambda x, c: tf.pad(x, [[1, 1], [2, 2]], constant_values=c), "real", "real .")
case("tf.reverse", lambda x: tf.reverse(x, [1]), "real")
case("tf.reverse_sequence", lambda x: tf.reverse_sequence(x, [2, 4, 3], seq_axis=1), "real")
case("tf.scatter_nd", lambda x: tf.scatter_nd([[0], [2], [0]], x, [4, 4]), "real", how="an index twice")
case("tf.slice", lambda x: tf.slice(x, [1, 0], [2, 3]), "real")
case("tf.space_to_batch_nd", lambda x: tf.space_to_batch_nd(x, [2, 2], [[0, 1], [1, 0]]), IMAGE)
case("tf.strided_slice", lambda x: x[::-2, 1:4:2], "real")
for word in ("add", "sub", "update", "max", "min"):
    case(f"tf.tensor_scatter_nd_{word}", lambda x, u, f=getattr(tf, f"tensor_scatter_nd_{word}"): f(x, [[0], [2]], u),
         "real", "real 2 4")  # fmt: skip
case("tf.where", lambda a, b: tf.where(a > 0, a**3, b), "real", "real")
case("tf.repeat by row", lambda x: tf.repeat(x, [1, 0, 2], axis=0), "real")
case("tf.sort descending", lambda x: tf.sort(x, direction="DESCENDING"), "real")
case("tf.clip_by_norm of axes", lambda x: tf.clip_by_norm(x, 0.5, axes=[1]), "real")
case("tf.clip_by_value of all three", lambda x, a, b: tf.clip_by_value(x, a - 2, b + 1), "real", "unit 4", "unit 4")

# Control flow, and Python in the graph
case("tf.cond", lambda x: tf.cond(x[0, 0] > 0, lambda: x**3, lambda: tf.sin(x)), "real")
case("tf.case", lambda x: tf.case([(x[0, 0] > 0, lambda: x**3)], default=lambda: tf.sin(x)), "real")
case("tf.switch_case", lambda x: tf.switch_case(tf.constant(1), [lambda: x, lambda: tf.sin(x)]), "real")
case("tf.while_loop", loop, "real")
case("tf.while_loop without a maximum", lambda x: tf.while_loop(
     lambda i, y: i < 3, lambda i, y: (i + 1, tf.sin(y) * x), (tf.constant(0), x))[1], "real")  # fmt: skip
case("tf.foldl", lambda x: tf.foldl(lambda a, y: tf.tanh(a * y), x), "real")
case("tf.foldr", lambda x: tf.foldr(lambda a, y: tf.tanh(a * y), x), "real")
case("tf.scan", lambda x: tf.scan(lambda a, y: tf.tanh(a * y), x), "real")
case("tf.map_fn", lambda x: tf.map_fn(lambda y: y**3, x), "real")
case("tf.vectorized_map", lambda x: tf.vectorized_map(lambda y: tf.linalg.matvec(tf.stack([y, y**2]), y), x), "real")
case("tf.TensorArray", stored, "real")
case("tf.recompute_grad", lambda x: tf.recompute_grad(lambda y: tf.sin(y) ** 2)(x), "real")
case("tf.py_function", lambda x: tf.ensure_shape(tf.py_function(lambda y: tf.sin(y), [x], tf.float64), x.shape), "real")
case("tf.function", lambda x: tf.function(lambda y: tf.sin(y) ** 2)(x), "real", how="a call of one")
case("tf.GradientTape", gradient_inside, "real", how="a gradient inside: third derivatives")

# Sparse and ragged
case("tf.sparse.sparse_dense_matmul", lambda v, x: tf.sparse.sparse_dense_matmul(sparse(v), x), "real 4", "real 4 2")
case("tf.sparse.reduce_sum", lambda v: tf.sparse.reduce_sum(sparse(v), 1), "real 4")
case("tf.sparse.softmax", lambda v: tf.sparse.softmax(sparse(v)).values, "real 4")
case("tf.sparse.to_dense", lambda v: tf.sparse.to_dense(sparse(v)), "real 4")
case("tf.sparse.add", lambda v, w: tf.sparse.add(sparse(v), sparse(w)).values, "real 4", "real 4")
case("tf.sparse.maximum", lambda v, w: tf.sparse.maximum(sparse(v), sparse(w)).values, "real 4", "real 4")
case("tf.sparse.slice", lambda v: tf.sparse.slice(sparse(v), [0, 0], [2, 4]).values, "real 4")
case("tf.sparse.transpose", lambda v: tf.sparse.transpose(sparse(v)).values, "real 4")
case("tf.sparse.segment_mean", lambda x: tf.sparse.segment_mean(x, [0, 2, 2], [0, 0, 1]), "real")
case("tf.sparse.segment_sum", lambda x: tf.sparse.segment_sum(x, [0, 2, 2], [0, 0, 1]), "real")
case("tf.sparse.segment_sqrt_n", lambda x: tf.sparse.segment_sqrt_n(x, [0, 2, 2], [0, 0, 1]), "real")
case("tf.sparse.multiply by a dense one", lambda v, x: (sparse(v) * x).values, "real 4", "real")
case("tf.sparse.divide by a dense one", lambda v, x: (sparse(v) / x).values, "real 4", "positive")
case(
    "tf.sparse.fill_empty_rows",
    lambda v, d: tf.sparse.fill_empty_rows(sparse(v, (5, 4)), d)[0].values,
    "real 4",
    "real .",
)
case("tf.RaggedTensor.to_tensor", lambda x: tf.RaggedTensor.from_row_lengths(x, [2, 0, 4]).to_tensor(), "real 6")
case("tf.ragged reduce_sum", lambda x: tf.reduce_sum(tf.RaggedTensor.from_row_lengths(x, [2, 0, 4]) ** 3, 1), "real 6")

# Raw operations
case("tf.raw_ops.BlockLSTMV2", block_lstm, "real 2 2 2", "real 5 12", "real 12")
case("tf.raw_ops.ClipByValue", lambda x, a, b: tf.raw_ops.ClipByValue(t=x, clip_value_min=a - 2, clip_value_max=b),
     "real", "unit .", "unit .")  # fmt: skip
case("tf.raw_ops.FusedBatchNormV3", lambda x, s, o: tf.raw_ops.FusedBatchNormV3(
     x=tf.cast(x, tf.float32), scale=tf.cast(s, tf.float32), offset=tf.cast(o, tf.float32), mean=[], variance=[],
     is_training=True).y, IMAGE, "real 2", "real 2", how="in training")  # fmt: skip
case("tf.raw_ops.FusedBatchNormV3 of its statistics", lambda x: tf.raw_ops.FusedBatchNormV3(
     x=tf.cast(x, tf.float32), scale=[1.0, 2.0], offset=[0.0, 1.0], mean=[], variance=[], is_training=True)[:3], IMAGE,
     how="the mean and the variance of the batch too")  # fmt: skip
case("tf.raw_ops.FusedBatchNormV3 for inference", lambda x, s, o, m, v: tf.raw_ops.FusedBatchNormV3(
     x=tf.cast(x, tf.float32), scale=tf.cast(s, tf.float32), offset=tf.cast(o, tf.float32), mean=tf.cast(m, tf.float32),
     variance=tf.cast(v, tf.float32), is_training=False).y, IMAGE, "real 2", "real 2", "real 2",
     "positive 2")  # fmt: skip
case("tf.raw_ops.ImageProjectiveTransformV3", lambda x: tf.raw_ops.ImageProjectiveTransformV3(
     images=x, transforms=[[1.0, 0.1, 0.3, -0.1, 1.0, 0.2, 0.0, 0.0]], output_shape=[5, 5], fill_value=0.0,
     interpolation="BILINEAR", fill_mode="CONSTANT"), IMAGE)  # fmt: skip
case("tf.raw_ops.MaxPoolGrad", lambda x, g: tf.raw_ops.MaxPoolGrad(
     orig_input=x, orig_output=tf.nn.max_pool2d(x, 2, 1, "VALID"), grad=g, ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1],
     padding="VALID"), IMAGE, "real 1 4 4 2")  # fmt: skip
case("tf.raw_ops.MaxPoolV2", lambda x: tf.raw_ops.MaxPoolV2(
     input=x, ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="VALID"), IMAGE)  # fmt: skip
case("tf.raw_ops.MatrixDiagPartV3", lambda x, p: tf.raw_ops.MatrixDiagPartV3(input=x, k=[-1, 1], padding_value=p),
     "real", "real .")  # fmt: skip
case(
    "tf.raw_ops.MatrixSetDiagV3",
    lambda x, d: tf.raw_ops.MatrixSetDiagV3(input=x, diagonal=d, k=[0, 1]),
    "real",
    "real 2 3",
)
case("tf.raw_ops.MulNoNan", lambda x, y: tf.raw_ops.MulNoNan(x=x, y=y), "real", "real")
case("tf.raw_ops.ScaleAndTranslate", lambda x, s, t: tf.raw_ops.ScaleAndTranslate(
     images=x, size=[5, 5], scale=1 + 0.1 * tf.cast(s, tf.float32), translation=tf.cast(t, tf.float32)),
     IMAGE, "unit 2", "unit 2",
     how="of the scale and the translation too")  # fmt: skip
case("tf.raw_ops.SparseMatrixMatMul", lambda x, b: tf.raw_ops.SparseMatrixMatMul(a=csr(x), b=b), "real", "real 4 2")
case("tf.raw_ops.Xlog1py", lambda x, y: tf.raw_ops.Xlog1py(x=x, y=y), "positive", "positive")

# Keras
case("keras.ops.associative_scan", lambda x: keras.ops.associative_scan(lambda a, b: a * b, x), "positive 4 3")
case("keras.ops.broadcast_to", lambda x: keras.ops.broadcast_to(x, (2, 3, 4)), "real")
case("keras.ops.cond", lambda x: keras.ops.cond(x[0, 0] > 0, lambda: x**3, lambda: keras.ops.sin(x)), "real")
case("keras.ops.conv", lambda x, k: keras.ops.conv(x, k, 1, "same"), IMAGE, KERNEL)
case("keras.ops.conv_transpose", lambda x, k: keras.ops.conv_transpose(x, k, 2), IMAGE, KERNEL)
case("keras.ops.depthwise_conv", lambda x, k: keras.ops.depthwise_conv(x, k, 1, "same"), IMAGE, KERNEL)
case(
    "keras.ops.separable_conv", lambda x, d, p: keras.ops.separable_conv(x, d, p), IMAGE, "real 3 3 2 1", "real 1 1 2 3"
)
case("keras.ops.ctc_loss", lambda x: keras.ops.ctc_loss(tf.constant([[1, 2], [2, 1]]), tf.cast(x, tf.float32),
     tf.constant([2, 2]), tf.constant([5, 5])), "real 2 5 4")  # fmt: skip
case("keras.ops.depth_to_space", lambda x: keras.ops.depth_to_space(x, 2), "real 1 3 3 4")
case("keras.ops.einsum", lambda a, b: keras.ops.einsum("ij,kj->ik", a, b), "real", "real")
case("keras.ops.fold", lambda x: keras.ops.fold(x, (4, 4), 2), "real 1 8 9")
case("keras.ops.fori_loop", lambda x: keras.ops.fori_loop(0, 3, lambda i, y: keras.ops.sin(y) * x, x), "real")
case("keras.ops.get_item", lambda x: keras.ops.get_item(x, (slice(None), 1)), "real")
case("keras.ops.full", lambda x: keras.ops.full((2, 3), x), "real .")
case("keras.ops.istft", lambda a, b: keras.ops.istft((a, b), 8, 4, 8), "real 5 5", "real 5 5")
case("keras.ops.ldexp", lambda x: keras.ops.ldexp(x, tf.constant(2)), "real")
case("keras.ops.map", lambda x: keras.ops.map(lambda y: y**3, x), "real")
case("keras.ops.meshgrid", lambda a, b: keras.ops.meshgrid(a, b), "real 3", "real 4")
case("keras.ops.rearrange", lambda x: keras.ops.rearrange(x, "a b -> b a"), "real")
case("keras.ops.scan", lambda x: keras.ops.scan(lambda a, y: (keras.ops.tanh(a * y), a), x[0], x), "real")
case("keras.ops.scatter", lambda x: keras.ops.scatter(tf.constant([[0], [2]]), x, (4, 3)), "real 2 3")
case(
    "keras.ops.scatter_update", lambda x, u: keras.ops.scatter_update(x, tf.constant([[0], [2]]), u), "real", "real 2 4"
)
for word in ("max", "min", "prod", "sum"):
    case(f"keras.ops.segment_{word}", lambda x, f=getattr(keras.ops, f"segment_{word}", None): f(
         x, tf.constant([0, 0, 1]), 2), "real")  # fmt: skip
case("keras.ops.select", lambda a, b: keras.ops.select([a > 0, b > 0], [a**2, b**3]), "real", "real")
case("keras.ops.slice", lambda x: keras.ops.slice(x, (1, 0), (2, 3)), "real")
case("keras.ops.slice_update", lambda x, u: keras.ops.slice_update(x, (1, 0), u), "real", "real 2 3")
case(
    "keras.ops.solve_triangular",
    lambda a, b: keras.ops.solve_triangular(definite(a), b, lower=True),
    "real 3 3",
    "real 3 2",
)
case("keras.ops.sparse_categorical_crossentropy", lambda x: keras.ops.sparse_categorical_crossentropy(
     tf.constant([0, 3, 1]), x), "unit")  # fmt: skip
case("keras.ops.switch", lambda x: keras.ops.switch(tf.constant(1), [lambda y: y, keras.ops.sin], x), "real")
case("keras.ops.vectorized_map", lambda x: keras.ops.vectorized_map(lambda y: y**3, x), "real")
case(
    "keras.ops.view_as_complex",
    keras.ops.view_as_complex if hasattr(keras.ops, "view_as_complex") else tf.identity,
    "real 3 2",
)
case("keras.ops.where", lambda a, b: keras.ops.where(a > 0, a**3, b), "real", "real")
case("keras.ops.while_loop", lambda x: keras.ops.while_loop(
     lambda i, y: i < 3, lambda i, y: (i + 1, keras.ops.sin(y) * x), (tf.constant(0), x),
     maximum_iterations=3)[1], "real")  # fmt: skip
case("keras.ops.qr", lambda a: keras.ops.qr(a), "real 4 3")
case("keras.ops.svd", lambda a: (lambda u, s, v: (u**2, s, v**2))(*keras.ops.svd(a, full_matrices=False)), "real",
     how="singular values and squares of the vectors")  # fmt: skip
case("keras.ops.eigh", lambda a: (lambda e, v: (e, v**2))(*keras.ops.eigh(a + tf.transpose(a))), "real 3 3",
     how="eigenvalues and squares of the eigenvectors of a + aᵀ")  # fmt: skip
case("keras.ops.eig", lambda a: (lambda e, v: (e, tf.abs(v) ** 2))(*keras.ops.eig(a + tf.constant(
     [[0.0, 0, 0], [0, 9, 0], [0, 0, 18]], tf.float64))),
     "real 3 3", how="eigenvalues and squared sizes of the vectors")  # fmt: skip
case("keras.ops.median", keras.ops.median, "real 5")
case("keras.ops.norm nuclear", lambda a: keras.ops.norm(a, "nuc"), "real")
case("keras.ops.image.affine_transform", lambda x, t: keras.ops.image.affine_transform(
     x, tf.constant([[1.0, 0.1, 0.3, -0.1, 1.0, 0.2, 0.0, 0.0]], tf.float64) + 0.01 * t), IMAGE,
     "unit 1 8")  # fmt: skip
case(
    "keras.ops.image.crop_images",
    lambda x: keras.ops.image.crop_images(x, 1, 1, target_height=3, target_width=3),
    IMAGE,
)
case(
    "keras.ops.image.pad_images", lambda x: keras.ops.image.pad_images(x, 1, 1, target_height=7, target_width=7), IMAGE
)
case("keras.ops.image.extract_patches", lambda x: keras.ops.image.extract_patches(x, (2, 2)), IMAGE)
case("keras.ops.image.extract_patches_3d", lambda x: keras.ops.image.extract_patches_3d(x, (2, 2, 2)), "real 1 4 4 4 2")
case(
    "keras.ops.image.map_coordinates", lambda x, c: keras.ops.image.map_coordinates(x, 3 * c, 1), "real 5 5", "unit 2 6"
)
case("keras.ops.image.perspective_transform", lambda x: keras.ops.image.perspective_transform(
     x, tf.constant([[[0.0, 0], [0, 4], [4, 0], [4, 4]]], tf.float64),
     tf.constant([[[0.3, 0], [0, 4], [4, 0.2], [4, 4]]],
     tf.float64)), IMAGE)  # fmt: skip
case("keras.ops.image.ssim", lambda a, b: keras.ops.image.ssim(a, b, 1.0), "unit 1 12 12 1", "unit 1 12 12 1")
case("keras.ops.image.resize", lambda x: keras.ops.image.resize(x, (7, 7)), IMAGE)
