"""The derivatives of unary elementwise operations, orders 1 to 4, in terms of the result y where that is cheaper."""

import math
from collections.abc import Callable

from tapelab.graphs.operations import with_fact
from tapelab.process.tensorflow import tf

# (v, y) → functions for the derivatives of order 1 to 4; they are called only where they are needed.
Table = tuple[Callable[[], tf.Tensor | None], ...]


def _tanh(v: tf.Tensor, y: tf.Tensor) -> Table:
    d = 1 - y * y
    return lambda: d, lambda: -2 * y * d, lambda: d * (6 * y * y - 2), lambda: d * y * (16 - 24 * y * y)


def _sigmoid(v: tf.Tensor, y: tf.Tensor) -> Table:
    d = y * (1 - y)
    return lambda: d, lambda: d * (1 - 2 * y), lambda: d * (1 - 6 * d), lambda: d * (1 - 2 * y) * (1 - 12 * d)


def _softplus(v: tf.Tensor, y: tf.Tensor) -> Table:
    p = tf.sigmoid(v)
    return lambda: p, *_sigmoid(v, p)[:3]


def _sin(v: tf.Tensor, y: tf.Tensor) -> Table:
    c = tf.cos(v)
    return lambda: c, lambda: -y, lambda: -c, lambda: y


def _cos(v: tf.Tensor, y: tf.Tensor) -> Table:
    s = tf.sin(v)
    return lambda: -s, lambda: -y, lambda: s, lambda: y


def _atan(v: tf.Tensor, y: tf.Tensor) -> Table:
    r = 1 / (1 + v * v)
    w = v * r  # near 1/v where v is large: its powers leave the range of floats later than those of v
    return lambda: r, lambda: -2 * w * r, lambda: r * (6 * w * w - 2 * r * r), lambda: 24 * w * r * (r * r - w * w)


def _exp(v: tf.Tensor, y: tf.Tensor) -> Table:
    return (lambda: y,) * 4


def _erf(v: tf.Tensor, y: tf.Tensor, sign: int = 1) -> Table:
    d = sign * 2 / math.sqrt(math.pi) * tf.exp(-v * v)
    v = tf.where(d == 0, tf.zeros_like(v), v)  # whose square may be out of range
    return lambda: d, lambda: -2 * v * d, lambda: (4 * v * v - 2) * d, lambda: v * (12 - 8 * v * v) * d


def _erfc(v: tf.Tensor, y: tf.Tensor) -> Table:
    return _erf(v, y, -1)


def _softsign(v: tf.Tensor, y: tf.Tensor) -> Table:
    r, sign = 1 / (1 + tf.abs(v)), tf.sign(v)  # TensorFlow does not differentiate its gradient
    return lambda: r**2, lambda: -2 * sign * r**3, lambda: 6 * r**4, lambda: -24 * sign * r**5


def power(p: int) -> Callable[[tf.Tensor, tf.Tensor], Table]:
    """Return the table of v^p, p a whole number from 0."""

    def derivative(v: tf.Tensor, order: int) -> tf.Tensor | None:
        factor, exponent = math.perm(p, order), p - order
        if factor == 0:
            return None
        if exponent == 0:
            return tf.fill(v.shape, tf.cast(factor, v.dtype))
        return tf.cast(factor, v.dtype) * (v if exponent == 1 else tf.pow(v, tf.cast(exponent, v.dtype)))

    return lambda v, y: tuple(lambda order=order: derivative(v, order) for order in (1, 2, 3, 4))


TABLES: dict[str, Callable[[tf.Tensor, tf.Tensor], Table]] = {
    "Atan": _atan,
    "Cos": _cos,
    "Erf": _erf,
    "Erfc": _erfc,
    "Exp": _exp,
    "Sigmoid": _sigmoid,
    "Sin": _sin,
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Square": power(2),
    "Tanh": _tanh,
}

# By TensorFlow's own derivatives, where there is no table (nor a rule, as `taylor_mode.composed` has for powers).
BY_GRADIENT = with_fact("smooth")
PIECEWISE = with_fact("pieces")  # the first derivative is constant in each


def by_tapes(run: Callable[[tf.Tensor], tf.Tensor], v: tf.Tensor, order: int) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Evaluate an elementwise function, and its derivatives up to an order, by nested tapes."""
    if order == 0:
        return run(v), []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(v)
        y, found = by_tapes(run, v, order - 1)
        last = found[-1] if found else y
    return y, [*found, tape.gradient(last, v, unconnected_gradients="zero")]
