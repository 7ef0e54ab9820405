"""Functions that differential operators are tested on, and what their derivatives are by nested tapes."""

import inspect

from tapelab.derivatives.operators.taylor_mode.elementwise import BY_GRADIENT, PIECEWISE, TABLES
from tapelab.runtime import tf

import numpy as np
from data_tables import read_table

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 6))
A, W, V = GENERATOR.normal(size=(6, 5)), GENERATOR.normal(size=(5, 3)), GENERATOR.normal(size=(4, 5))
IMAGES = GENERATOR.normal(size=(2, 2, 2, 3))
LAYERS = tf.keras.layers


def close(found, wanted, tolerance=1e-13):
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * max(1, np.abs(wanted).max())


def projected(y):
    """A number for each example, in which every element of a result has another weight."""
    rows = tf.reshape(y, [y.shape[0], -1])
    return tf.linalg.matvec(rows, tf.cos(tf.range(1, rows.shape[1] + 1, dtype=y.dtype)))


def by_tapes(f, x):
    """The Laplacian of each example's projected result, by a tape in a tape."""
    x = tf.constant(x)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            number = projected(f(x))
        columns = tf.unstack(tf.reshape(inner.gradient(number, x), [len(x), -1]), axis=1)
    rows = [tf.reshape(outer.gradient(c, x, unconnected_gradients="zero"), [len(x), -1]) for c in columns]
    return tf.add_n([row[:, i] for i, row in enumerate(rows)])


def rates(f, x, v, order):
    """Derivatives of each example's projected result along x + t v, by nested tapes."""
    x, v, t = tf.constant(x), tf.constant(v), tf.zeros([len(x)], tf.float64)

    def differentiated(order):
        if order == 0:
            return [projected(f(x + tf.reshape(t, [-1, *[1] * (x.shape.rank - 1)]) * v))]
        with tf.GradientTape() as tape:
            tape.watch(t)
            found = differentiated(order - 1)
        return [*found, tape.gradient(found[-1], t, unconnected_gradients="zero")]

    return differentiated(order)[1:]


def bent(x):
    """Something that depends on x by more than its first two derivatives: (4, 5), positive."""
    return tf.exp(tf.sin(x @ A) / 2) + 0.1


def elementwise(x):
    """The results of all elementwise operations that have a rule, by name."""
    p, found = 0.5 + 0.4 * tf.sin(x), {}  # in (0.1, 0.9), or above 1 for the one operation that needs it
    for name in sorted({*TABLES, *BY_GRADIENT, *PIECEWISE}):
        operation = getattr(tf.raw_ops, name)
        argument = next(iter(inspect.signature(operation).parameters))
        found[name] = operation(**{argument: p + 1 if name == "Acosh" else p})
    return found


def both(x):
    return bent(x), tf.tanh(x @ A[::-1]) + 2


def cut(x):
    y = bent(x)
    return tf.concat([y[:, 3:], y[:, :1], tf.ones_like(y)[:, 3:]], axis=1) * tf.cumsum(y, axis=1)


def attention(x):
    q = tf.reshape(tf.sin(x), [4, 3, 2])
    k = tf.reshape(tf.cos(x), [4, 3, 2])
    return tf.reshape(tf.nn.softmax(q @ tf.transpose(k, [0, 2, 1])) @ (q * k), [4, 6])


def moved(x):
    y = tf.reshape(bent(x), [4, 5, 1])
    y = tf.tile(tf.transpose(y, [0, 2, 1]), [1, 2, 1])
    parts = tf.split(tf.pad(tf.roll(tf.reverse(y, [2]), 1, 2), [[0, 0], [0, 0], [1, 0]], constant_values=7.0), 2, 2)
    return tf.reduce_sum(parts[0] * parts[1][:, ::-1], axis=[1]) + tf.gather(y, [0, 2, 2], axis=2)[:, 0]


def stacked(x):
    first, *rest = tf.unstack(bent(x), axis=1)
    return tf.stack([first * rest[0], rest[1] ** 2, tf.zeros_like(first)], axis=1)


def branch(x):
    return tf.cond(tf.reduce_sum(x) > -100, lambda: bent(x) ** 2, lambda: tf.ones_like(bent(x)))


def repeat(x):
    y, total = bent(x), tf.zeros([4, 5], tf.float64)
    body = lambda i, y, total: (i + 1, tf.sin(y), total + y * y)  # noqa: E731
    return tf.while_loop(lambda i, *_: i < 3, body, [0, y, total])[2]


@tf.function
def inner(x):
    return bent(x) * x[:, :5]


COMPOSED = read_table("operator_functions", "COMPOSED", globals())


def every(names=COMPOSED):
    """The function that returns what all of them do."""
    return lambda x: {name: COMPOSED[name](x) for name in names}


def keras(*layers, shape):
    return tf.keras.Sequential([tf.keras.Input(shape, dtype="float64"), *layers])


def model(kind):
    tf.keras.utils.set_random_seed(0)
    dense = [LAYERS.Dense(5, "tanh", dtype="float64"), LAYERS.Dense(2, dtype="float64")]
    if kind == "activations":
        names = ("gelu", "silu", "softplus", "elu", "selu", "sigmoid", "mish", "relu", "leaky_relu")
        return keras(*[LAYERS.Dense(4, name, dtype="float64") for name in names], dense[1], shape=(6,)), X
    if kind == "batch norm":
        return keras(dense[0], LAYERS.BatchNormalization(dtype="float64"), dense[1], shape=(6,)), X
    if kind == "dropout, off":
        return keras(dense[0], LAYERS.Dropout(0.5, dtype="float64"), dense[1], shape=(6,)), X
    if kind == "residual":
        x = tf.keras.Input((6,), dtype="float64")
        y = LAYERS.Add(dtype="float64")([LAYERS.Dense(6, "tanh", dtype="float64")(x), x])
        y = LAYERS.Concatenate(dtype="float64")([y, LAYERS.Multiply(dtype="float64")([x, y])])
        return tf.keras.Model(x, dense[1](y)), X
    if kind == "attention":
        x = tf.keras.Input((3, 2), dtype="float64")
        y = LAYERS.MultiHeadAttention(2, 3, dtype="float64")(x, x)
        return tf.keras.Model(x, LAYERS.Flatten(dtype="float64")(y)), X.reshape(4, 3, 2)
    convolution = LAYERS.Conv2D(3, 2, padding="same", activation="tanh", dtype="float64")
    pool = {"convolution": LAYERS.AveragePooling2D, "max pooling": LAYERS.MaxPooling2D}[kind]
    layers = [convolution, pool(2, dtype="float64"), LAYERS.Flatten(dtype="float64"), dense[1]]
    return keras(*layers, shape=IMAGES.shape[1:]), IMAGES
