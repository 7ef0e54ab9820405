"""How to call what needs more than its parameters' names tell: cases.toml, and the names that its calls use."""

import functools
import tomllib
from pathlib import Path

import keras
import tensorflow as tf
from cases import Case, definite, symmetric

TABLE = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
LEFT_OUT = TABLE["left_out"]


def sparse(values, size=(3, 4)):
    """A sparse matrix with these four values."""
    return tf.SparseTensor([[0, 1], [0, 3], [1, 0], [2, 2]], values, size)


def csr(x):
    """A matrix in TensorFlow's compressed rows, with the given stored values."""
    return tf.raw_ops.DenseToCSRSparseMatrix(dense_input=x, indices=[[0, 1], [0, 2], [1, 0], [2, 2]])


def operator(kind, *arguments, **keywords):
    return getattr(tf.linalg, f"LinearOperator{kind}")(*arguments, **keywords)


def both(op, x):
    x = tf.cast(x, op.dtype)
    return op.matmul(x), op.solve(x)


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
    states = dict.fromkeys(("cs_prev", "h_prev"), tf.zeros((2, 3)))
    peepholes = dict.fromkeys(("wci", "wcf", "wco"), tf.zeros(3))
    x, w, b = (tf.cast(part, tf.float32) for part in (x, w, b))
    return tf.raw_ops.BlockLSTMV2(seq_len_max=tf.constant(2, tf.int64), x=x, w=w, b=b, **states, **peepholes).h


@functools.cache
def named():
    """Every case that is written by hand, by name. One that this Keras lacks is left out."""
    names = {"tf": tf, "keras": keras, "definite": definite, "symmetric": symmetric}
    names |= {f.__name__: f for f in (sparse, csr, operator, both, loop, stored, gradient_inside, block_lstm)}
    return {
        row["name"]: Case(row["name"], eval(row["call"], names), tuple(row["inputs"].split(", ")), row.get("how", ""))
        for row in TABLE["case"]
        if not row["call"].startswith("keras.") or hasattr(keras.ops, row["call"].rpartition(".")[2])
    }
