"""What the sheets about steps share: functions to descend on, and their derivatives by tapes."""

from collections.abc import Callable

import tensorflow as tf


def gradient_at(f: Callable[[tf.Tensor], tf.Tensor], w: tf.Tensor) -> tf.Tensor:
    """The gradient of `f`, a function from shape (n,) to a scalar, at `w`: shape (n,)."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = f(w)
    return tape.gradient(value, w)


def product_at(f: Callable[[tf.Tensor], tf.Tensor], w: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    """The product of the Hessian of `f` at `w` with `v`: all of shape (n,)."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = f(w)
        g = inner.gradient(value, w)
    return outer.gradient(g, w, output_gradients=v)


def bowl(w: tf.Tensor) -> tf.Tensor:
    """A convex function whose curvature changes from place to place; `w` has shape (n,)."""
    return tf.reduce_sum(tf.cosh(w)) + tf.reduce_sum(w) ** 2


def valley(w: tf.Tensor) -> tf.Tensor:
    """A curved valley, which is not convex; `w` has shape (n,)."""
    return tf.reduce_sum((w[1:] - w[:-1] ** 2) ** 2) + 0.5 * tf.reduce_sum((1.0 - w) ** 2)
