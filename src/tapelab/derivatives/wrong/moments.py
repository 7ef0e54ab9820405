"""Second derivatives through `tf.nn.moments`, and so through normalisation layers: right, where TensorFlow's are wrong.

`tf.nn.moments` computes the variance as ``mean((x - stop_gradient(mean(x)))²)``. That leaves the first derivative as it
is, since x - mean(x) sums to zero, and the second one without a term: the variance of n numbers has the Hessian
2/n (I - 1/n), and TensorFlow's has 2/n I. No public report of it is known.

It is the one function of TensorFlow that is replaced, while a function is evaluated. What was traced before keeps the
original: a row of ``wrong.toml`` refuses its second derivatives.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tapelab import process
from tapelab.process.tensorflow import tf

_NOTE = "tf.nn.moments: the mean in the variance is differentiated too; TensorFlow stops its gradient"


@contextlib.contextmanager
def differentiated(note: Callable[[str], None]) -> Iterator[None]:
    """Have `tf.nn.moments` differentiate the mean in the variance, for calls in this context, while the block runs.

    Args:
        note: is told if it is called.
    """

    def moments(original: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        note(_NOTE)
        return _moments(*args, **kwargs)

    with contextlib.ExitStack() as blocks:
        for module in modules():
            blocks.enter_context(process.replaced(module, "moments", moments))
        yield


@functools.cache
def modules() -> list[ModuleType]:
    """The modules in which ``moments`` is looked up, by `tf.nn.moments` and by its predecessor.

    Without TensorFlow's private module, `tf.nn` itself: then what has imported the function by name keeps the original,
    and its second derivatives are refused.
    """
    try:
        from tensorflow.python.ops import nn_impl

        return [module for module in (nn_impl, tf.compat.v1.nn) if hasattr(module, "moments")]
    except ImportError:
        return [tf.nn, tf.compat.v1.nn]


def _moments(
    x: Any,
    axes: Any,
    shift: Any = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.name_scope(name or "moments"):
        x = tf.convert_to_tensor(x)
        y = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x  # as the original: half has no range for squares
        mean = tf.reduce_mean(y, axes, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(y, mean), axes, keepdims=True)
        if not (keepdims or keep_dims):
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
        return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)
