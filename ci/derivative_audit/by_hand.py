"""How to call what needs more than its parameters' names tell, and operations without a public function of their own.

A name with words after it ("tf.nn.conv2d in groups") is one more case of that function.
"""

import functools
import importlib
from collections.abc import Callable

import tensorflow as tf
from cases import Case

IMAGE, KERNEL = "real 1 5 5 2", "real 3 3 2 2"
_cases: dict[str, Case] = {}

LEFT_OUT = {
    "tf.math.approx_min_k": "no kernel on a CPU",
    "tf.image.draw_bounding_boxes": "draws over an image; no gradient is registered",
    "tf.parallel_stack": "not eagerly, and without a gradient, as its documentation says",
    "keras.ops.vectorize": "not with TensorFlow",
    "tf.argsort": "gives whole numbers",
    "tf.fftnd": "its kernel is there for complex64 alone, and not on a CPU; tf.signal.fftnd is the same",
    "tf.ifftnd": "as tf.fftnd",
    "tf.irfftnd": "as tf.fftnd",
    "tf.rfftnd": "as tf.fftnd",
    "tf.signal.fftnd": "as tf.fftnd",
    "tf.signal.ifftnd": "as tf.fftnd",
    "tf.signal.irfftnd": "as tf.fftnd",
    "tf.signal.rfftnd": "as tf.fftnd",
    "tf.image.adjust_jpeg_quality": "through an encoder of whole numbers",
    "tf.image.stateless_random_jpeg_quality": "through an encoder of whole numbers",
    "tf.numpy_function": "differentiated nowhere: its documentation says so",
    "tf.grad_pass_through": "its gradient is another function's, on purpose",
    "tf.stop_gradient": "its gradient is 0, on purpose",
    "keras.ops.stop_gradient": "its gradient is 0, on purpose",
    "tf.quantization": "straight-through estimators: their gradients are other functions', on purpose",
    "tf.conv": "tf.nn.convolution takes its place",
    "tf.conv2d_backprop_filter_v2": "measured as the gradient of tf.nn.conv2d",
    "tf.conv2d_backprop_input_v2": "measured as the gradient of tf.nn.conv2d",
    "tf.ragged_fill_empty_rows": "measured as tf.sparse.fill_empty_rows",
    "tf.ragged_fill_empty_rows_grad": "measured as tf.sparse.fill_empty_rows",
    "tf.histogram_fixed_width": "counts",
    "tf.histogram_fixed_width_bins": "counts",
    "keras.ops.one_hot": "takes whole numbers",
    "keras.ops.multi_hot": "takes whole numbers",
    "keras.ops.argpartition": "gives whole numbers",
}


def case(name: str, call: Callable, *inputs: str, how: str = "") -> None:
    """Enter a case: a function of one tensor for each of the inputs, which `cases.draw` draws."""
    _cases[name] = Case(name, call, inputs, how)


def sparse(values: tf.Tensor, size=(3, 4)) -> tf.SparseTensor:
    """A sparse matrix with these four values."""
    return tf.SparseTensor([[0, 1], [0, 3], [1, 0], [2, 2]], values, size)


@functools.cache
def named() -> dict[str, Case]:
    """Every case that is written by hand, by name."""
    for tables in ("by_hand_mathematics", "by_hand_arrays"):
        importlib.import_module(tables)  # which enters its cases
    return _cases
