"""Smooth functions that a library computes with a kink or a mask: their derivatives there, not those of its code.

``logaddexp(a, b)`` is ``maximum(a, b) + log1p(exp(-abs(a - b)))``, so that exp takes no large numbers. At a = b each of
the parts has a kink, and TensorFlow takes the derivative of one piece of the one and of none of the other. Here both
take the same piece, which is smooth: its derivatives of all orders are those of the whole. A mask, such as that of
``sinc`` at 0, is replaced by a series that holds around it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tapelab import process
from tapelab.derivatives import private
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.replaced_function import Inputs, Node, Replacement, has_node
from tapelab.process.tensorflow import tf

import numpy as np

_SINC_TERMS = 10  # up to |πx| = 1, the next one is below 1e-20

_KERAS = partial(private.modules_of_keras, "numpy")


def _weighted_cross_entropy(labels: Any, logits: Any, pos_weight: Any, name: str | None = None) -> tf.Tensor:
    """tf.nn.weighted_cross_entropy_with_logits: at a logit of 0 too; TensorFlow's gradient is that of no piece."""
    labels, logits = tf.convert_to_tensor(labels), tf.convert_to_tensor(logits)
    if not labels.shape.is_compatible_with(logits.shape):
        raise ValueError(
            f"`logits` and `labels` must have the same shape, received ({logits.shape} vs {labels.shape})."
        )
    with tf.name_scope(name or "logistic_loss"):
        weight = 1 + (pos_weight - 1) * labels
        positive = logits >= 0
        ahead = tf.where(positive, tf.zeros_like(logits), -logits)
        size = tf.where(positive, logits, -logits)
        return (1 - labels) * logits + weight * (tf.math.log1p(tf.exp(-size)) + ahead)


def _sum_of_exponentials(a: tf.Tensor, b: tf.Tensor, base: float) -> tf.Tensor:
    """Log (base^a + base^b) to that base. Where both are the same infinity, so is the result."""
    equal = (a == b) & tf.math.is_inf(a)
    zero = tf.zeros_like(a + b)
    first = a >= b
    largest = tf.where(equal, (a + b) / 2, tf.where(first, a, b))
    a, b = tf.where(equal, zero, a), tf.where(equal, zero, b)
    distance = tf.where(first, a - b, b - a)
    return largest + tf.math.log1p(tf.exp(-math.log(base) * distance)) / math.log(base)


def _of_dtype_of(name: str, modules: Callable[[], Sequence[Any]], base: float) -> Callable[[Any, Any], tf.Tensor]:
    def function(x1: Any, x2: Any) -> tf.Tensor:
        dtype = _plain(modules, name, x1, x2).dtype
        return _sum_of_exponentials(tf.cast(x1, dtype), tf.cast(x2, dtype), base)

    function.__doc__ = f"{name}: at a tie too, each by its share; TensorFlow's gradient goes to one of them."
    return function


def _plain(modules: Callable[[], Sequence[Any]], name: str, *args: Any) -> tf.Tensor:
    """What the original returns: it says of which dtype the result is."""
    return process.original(modules()[0], name)(*args)


def _celu(x: tf.Tensor, alpha: float = 1.0) -> tf.Tensor:
    """celu: at 0 too, where it is 1; TensorFlow's gradient is 2."""
    negative = tf.where(x > 0, tf.zeros_like(x), x)
    return tf.where(x > 0, x, alpha * tf.math.expm1(negative / alpha))


def _sinc_near_zero_too(x: tf.Tensor) -> tf.Tensor:
    square = tf.square(x * np.pi)
    near = square < 1
    safe = tf.where(near, tf.ones_like(x), x) * np.pi
    small = tf.where(near, square, tf.zeros_like(x))
    series = tf.zeros_like(x)
    for k in reversed(range(_SINC_TERMS)):
        series = series * small + (-1) ** k / math.factorial(2 * k + 1)
    return tf.where(near, series, tf.sin(safe) / safe)


def _sinc_of_numpy(x: Any) -> tf.Tensor:
    """tf.experimental.numpy.sinc: at 0 too; TensorFlow's derivatives are 0 or NaN there."""
    x = tf.experimental.numpy.asarray(x)
    return _sinc_near_zero_too(
        x if x.dtype.is_floating or x.dtype.is_complex else tf.cast(x, tf.experimental.numpy.exp(x).dtype)
    )


def _sinc_of_keras(x: Any) -> tf.Tensor:
    """keras.ops.sinc: at 0 too; TensorFlow's derivatives are 0 or NaN there."""
    return _sinc_near_zero_too(tf.cast(x, _plain(_KERAS, "sinc", x).dtype))


def _hypot(x1: Any, x2: Any) -> tf.Tensor:
    """keras.ops.hypot: where the two are as large too, or one is 0; TensorFlow's derivatives are of no piece."""
    dtype = _plain(_KERAS, "hypot", x1, x2).dtype
    x1, x2 = tf.cast(x1, dtype), tf.cast(x2, dtype)
    largest = tf.maximum(tf.abs(x1), tf.abs(x2))
    scale = tf.stop_gradient(tf.where(largest == 0, tf.ones_like(largest), largest))
    return scale * tf.sqrt(tf.square(x1 / scale) + tf.square(x2 / scale))


def _reaches(node: Node, inputs: Inputs, kind: str) -> bool:
    """Whether a node computes from one of this type, by what a stable formula puts in between."""
    return any(each.op == kind or (each.op in _BETWEEN and _reaches(each, inputs, kind)) for each in inputs(node))


def _is_logarithm(node: Node, inputs: Inputs) -> bool:
    """Log1p(exp(-abs(x)))."""
    return node.op == "Log1p" and _reaches(node, inputs, "Abs")


def _is_celu(node: Node, inputs: Inputs) -> bool:
    """Expm1(minimum(x, 0) / alpha)."""
    return node.op == "Expm1" and _reaches(node, inputs, "Minimum")


def _is_sinc(node: Node, inputs: Inputs) -> bool:
    """Where(x == 0, 1, sin(x) / x)."""
    if node.op != "SelectV2":
        return False
    return {"Equal", "RealDiv"} <= {each.op for each in inputs(node)} and _reaches(node, inputs, "Sin")


def _is_hypot(node: Node, inputs: Inputs) -> bool:
    """Divide_no_nan(minimum(abs(x), abs(y)), maximum(abs(x), abs(y)))."""
    return node.op == "DivNoNan" and [each.op for each in inputs(node)] == ["Minimum", "Maximum"]


_BETWEEN = {"Cast", "Exp", "Mul", "Neg", "Pow", "RealDiv"}
_PATTERNS = {"celu": _is_celu, "hypot": _is_hypot, "sinc": _is_sinc}


def _replacement(
    owners: Callable[[], Sequence[Any]], name: str, function: Callable[..., Any], what: str
) -> Replacement:
    return Replacement(owners, name, function, Needs.GRADIENT, what, has_node(_PATTERNS.get(what, _is_logarithm)))


def _of_modules(modules: Callable[[], Sequence[Any]], functions: dict[str, Callable[..., Any]]) -> list[Replacement]:
    return [_replacement(modules, name, function, name) for name, function in functions.items()]


FUNCTIONS = [
    *_of_modules(
        private.modules_of_numpy,
        {
            "logaddexp": _of_dtype_of("logaddexp", private.modules_of_numpy, math.e),
            "logaddexp2": _of_dtype_of("logaddexp2", private.modules_of_numpy, 2),
        },
    ),
    *_of_modules(
        _KERAS,
        {
            "hypot": _hypot,
            "logaddexp": _of_dtype_of("logaddexp", _KERAS, math.e),
            "logaddexp2": _of_dtype_of("logaddexp2", _KERAS, 2),
            "sinc": _sinc_of_keras,
        },
    ),
    *_of_modules(lambda: private.modules_of_keras("nn"), {"celu": _celu}),
    *[
        _replacement(partial(private.cells, function), "cell_contents", own, name)
        for name, function, own in (
            (
                "tf.nn.weighted_cross_entropy_with_logits",
                tf.nn.weighted_cross_entropy_with_logits,
                _weighted_cross_entropy,
            ),
            ("sinc", tf.experimental.numpy.sinc, _sinc_of_numpy),
        )
    ],
]
