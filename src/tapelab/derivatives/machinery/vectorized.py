"""`tf.vectorized_map` with converters of ours, where TensorFlow's are wrong or slow.

They are entered in a registry that is not public API: each says what happens where a release no longer has it.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tapelab import process
from tapelab.process.tensorflow import tf


def vectorized(f: Callable[[Any], Any], elements: Any) -> Any:
    """Map a function over the first axis of nested tensors, all at once; raises what `tf.vectorized_map` cannot do.

    Its own fallback is a loop that the caller is not told of.
    """
    with filter_gradients_by_products(), segment_gradients_by_segments() as right:
        mapped = tf.vectorized_map(f, elements, fallback_to_while_loop=False)
    if not right and any(op.type in _SEGMENT_GRADIENTS for op in tf.compat.v1.get_default_graph().get_operations()):
        raise NotImplementedError("tf.vectorized_map may map the gradient of a sum over sparse segments wrongly")
    return mapped


@contextlib.contextmanager
def filter_gradients_by_products() -> Iterator[None]:
    """While this is open, `tf.vectorized_map` computes the gradients of convolution filters by matrix products.

    Its own converter makes a loop over the examples where images and upstream gradients both differ between them, and
    does not know explicit padding. Where only the gradients differ it takes them for further channels, which is wrong
    for a convolution in groups. For one tap (i, j) of a filter, the gradient is the product of the images shifted by
    (i, j), as a matrix of shape (pixels, channels in), transposed, and the upstream gradient, (pixels, channels out): a
    batch of products for each tap. Without ``_pfor_converter_registry`` the loop remains.
    """
    try:
        from tensorflow.python.ops.parallel_for import pfor

        registry, wrap = pfor._pfor_converter_registry, pfor.wrap
        original = process.original(registry, "Conv2DBackpropFilter")
    except (ImportError, AttributeError, KeyError):
        yield
        return

    def convert(pfor_input: Any) -> Any:
        pfor_input.stack_inputs(stack_indices=[2])
        images, differ, _ = pfor_input.input(0)
        # What is stacked often has no static shape; the operation that is converted has.
        op = pfor_input.op
        shapes = [tensor.shape for tensor in (op.inputs[0], op.inputs[2], op.outputs[0])]
        if not all(shape.is_fully_defined() for shape in shapes):
            raise NotImplementedError("the gradient of a filter whose shape is not known while it is traced")
        one_image, one_upstream, shape = (shape.as_list() for shape in shapes)
        last = pfor_input.get_attr("data_format") == b"NHWC"
        groups = one_image[-1 if last else -3] // shape[2]
        if not last and groups > 1:
            raise NotImplementedError("the gradient of a filter that works in groups, with channels first")
        if not last or (groups == 1 and not differ):
            return original(pfor_input)
        images = tf.reshape(images, [-1, *one_image])
        upstream = tf.reshape(pfor_input.stacked_input(2), [-1, *one_upstream])
        strides, dilations = pfor_input.get_attr("strides")[1:3], pfor_input.get_attr("dilations")[1:3]
        padding = pfor_input.get_attr("padding").decode()
        if padding == "EXPLICIT":
            padding = pfor_input.get_attr("explicit_paddings")[2:6]
        return wrap(_filter_gradients(images, upstream, shape, strides, dilations, padding), True)

    with process.replaced(registry, "Conv2DBackpropFilter", convert):
        yield


def _filter_gradients(
    images: tf.Tensor,
    upstream: tf.Tensor,
    shape: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    padding: str | list[int],
) -> tf.Tensor:
    """Return gradients (n, *shape) from images (n, batch, y, x, channels) and upstream (n, batch, y, x, channels out).

    The images may be the same for all, (1, batch, y, x, channels).

    Args:
        shape: the filter's, (y, x, channels of a group, channels out).
        padding: "SAME", "VALID", or how much above, below, left and right.
    """
    channels, pixels = images.shape[-1], images.shape[2:4]
    # From a tap's first pixel to its last one, in each of the two directions.
    reach = [(size - 1) * stride + 1 for size, stride in zip(upstream.shape[2:4], strides, strict=True)]
    if padding == "VALID":
        padding = [0, 0, 0, 0]
    elif padding == "SAME":
        sizes = zip(shape[:2], dilations, reach, pixels, strict=True)
        missing = [max((taps - 1) * dilation + length - size, 0) for taps, dilation, length, size in sizes]
        padding = [half for size in missing for half in (size // 2, size - size // 2)]
    images = tf.reshape(images, [-1, *pixels, channels])
    images = tf.pad(images, [[0, 0], padding[:2], padding[2:], [0, 0]])
    groups, positions = channels // shape[2], math.prod(upstream.shape[1:4])

    def grouped(tensor: tf.Tensor) -> tf.Tensor:
        """As matrices of shape (pixels, channels of a group), one for each row and group."""
        return tf.transpose(tf.reshape(tensor, [-1, positions, groups, tensor.shape[-1] // groups]), [0, 2, 1, 3])

    upstream = grouped(upstream)
    products = []
    for tap in itertools.product(range(shape[0]), range(shape[1])):
        starts = [index * dilation for index, dilation in zip(tap, dilations, strict=True)]
        rows, columns = (slice(s, s + r, stride) for s, r, stride in zip(starts, reach, strides, strict=True))
        product = tf.matmul(grouped(images[:, rows, columns]), upstream, transpose_a=True)
        products.append(tf.reshape(tf.transpose(product, [0, 2, 1, 3]), [-1, *shape[2:]]))
    return tf.reshape(tf.stack(products, axis=1), [-1, *shape])


_SEGMENT_GRADIENTS = ("SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad", "SparseSegmentSumGrad")


@contextlib.contextmanager
def segment_gradients_by_segments() -> Iterator[bool]:
    """While this is open, `tf.vectorized_map` sends gradients of sums over sparse segments to the segments they are of.

    Its own converter takes the largest number of a segment for the last one, and so gives another row's gradient where
    there are empty segments behind it, as ``num_segments`` makes them. Yields whether ours is used: without
    ``_pfor_converter_registry`` `vectorized` refuses these gradients.
    """
    try:
        from tensorflow.python.ops.parallel_for import pfor

        registry, wrap = pfor._pfor_converter_registry, pfor.wrap
        for kind in _SEGMENT_GRADIENTS:
            process.original(registry, kind)
    except (ImportError, AttributeError, KeyError):
        yield False
        return

    def convert(pfor_input: Any) -> Any:
        gradient = pfor_input.stacked_input(0)
        indices, ids, size = map(pfor_input.unstacked_input, (1, 2, 3))
        rows, segments = tf.shape(gradient)[0], tf.shape(gradient)[1]
        row = tf.range(rows)[:, tf.newaxis]
        found = getattr(tf.raw_ops, pfor_input.op_type)(
            grad=tf.reshape(gradient, tf.concat([[-1], tf.shape(gradient)[2:]], 0)),
            indices=tf.reshape(indices + tf.cast(row * size, indices.dtype), [-1]),
            segment_ids=tf.reshape(ids + tf.cast(row * segments, ids.dtype), [-1]),
            output_dim0=rows * size,
        )
        return wrap(tf.reshape(found, tf.concat([[rows, size], tf.shape(found)[1:]], 0)), True)

    with process.all_replaced((registry, kind, convert) for kind in _SEGMENT_GRADIENTS):
        yield True
