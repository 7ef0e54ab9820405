"""Operations and layers on the rows of a matrix, for random programs: what they compute, and the length of the result.

Each takes tensors of shape (rows, n) in float64 and returns one of shape (rows, m), and no row meets another. What
happens inside a row is anything: reductions, scans, matrices of its elements. Where an operation has a derivative is
not said here: `random_truth` finds that from values.
"""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.runtime import tf

import numpy as np
from data_tables import read_table

F = tf.float64
LARGEST = 6  # elements in a row, anywhere in a program
S, K = tf.math, tf.keras


class Operation(NamedTuple):
    """What a step computes: a function of so many tensors (rows, n_i), and the n of its result (None: it refuses)."""

    run: Callable[..., tf.Tensor]
    inputs: int
    size: Callable[..., int | None]


def _weights(*shape):
    """Numbers in no particular relation, the same in every run."""
    return tf.constant(np.cos(1.0 + 1.7 * np.arange(np.prod(shape))).reshape(shape))


def _one(n):
    return 1 if n else None


def _some(n):
    return n or None


def _square(n):
    return n if n in (1, 4) else None


def _fixed(sizes):
    return lambda n: sizes.get(n)


def _broadcast(n, m):
    return max(n, m) if n == m or 1 in (n, m) else None


def _equal(n, m):
    return n if n == m else None


def _matrix(a):
    side = {1: 1, 4: 2}[a.shape[-1]]
    return tf.reshape(a, [-1, side, side])


def _row(a):
    return tf.reshape(a, [-1, a.shape[1] * a.shape[2]])


def _symmetric(a):
    a = _matrix(a)
    return (a + tf.linalg.matrix_transpose(a)) / 2


def _gram(a):
    a = _matrix(a)
    return tf.matmul(a, a, transpose_b=True)


def _raised(a):
    return _gram(a) + tf.eye(a.shape[-1] // 2 or 1, dtype=F)


def _spectral(f):
    """A function of a symmetric matrix by its eigenvalues: smooth also where they are equal."""

    def run(a):
        values, vectors = tf.linalg.eigh(_symmetric(a))
        return _row(tf.matmul(vectors * f(values)[:, None, :], vectors, transpose_b=True))

    return run


def _polar(a):
    _, u, v = tf.linalg.svd(_matrix(a))
    return _row(tf.matmul(u, v, transpose_b=True))


def _complex(a):
    return tf.complex(a, tf.reverse(a, [1]) * 0.5 + 0.25)


def _segments(f, ids, number):
    return lambda a: tf.transpose(f(tf.transpose(a), tf.constant(ids[: a.shape[1]]), number))


def _scatter(f, indices):
    """Update elements of a row by those of its reverse, at indices of which one stands twice."""

    def run(a):
        places = tf.constant([[i % a.shape[1]] for i in indices])
        return tf.transpose(f(tf.transpose(a), places, tf.transpose(tf.gather(a, [0] * len(indices), axis=1)) * 0.5))

    return run


def _power(spectrum):
    return S.real(spectrum) ** 2 + S.imag(spectrum) ** 2


def _labels(a):
    return tf.one_hot(0, a.shape[1], dtype=F) * tf.ones_like(a)


def _numpy(name):
    return lambda *tensors: getattr(K.ops, name)(*tensors)


UNARY = read_table("random_operations", "UNARY", globals())

BINARY = read_table("random_operations", "BINARY", globals())

REDUCTIONS = read_table("random_operations", "REDUCTIONS", globals())

# Within a row: what keeps its length.
ROWS = read_table("random_operations", "ROWS", globals())
# What they need so that they are not refused for their shapes or lengths.
LENGTHS = {"segment_prod": 3, "segment_max": 1, "segment_min": 2, "segment_mean": 3, "segment_sqrt_n": 2}

MATRICES = read_table("random_operations", "MATRICES", globals())
SCALARS = read_table("random_operations", "SCALARS", globals())
SPECTRAL = {"sqrt by eigh": tf.sqrt, "exp by eigh": tf.exp, "square by eigh": tf.square, "log by eigh": S.log}


def _layer(make):
    """A layer that is made once for each length of a row, with weights in no particular relation."""
    made = {}

    def run(a):
        n = a.shape[1]
        if n not in made:
            with tf.init_scope():
                layer = made[n] = make(n)
                layer(tf.ones([2, n], F))
                for number, variable in enumerate(layer.variables):
                    if variable.dtype == "float64":
                        values = 0.8 * np.cos(number + 1.3 * np.arange(np.prod(variable.shape)))
                        variable.assign(np.abs(values).reshape(variable.shape) + 0.1 * ("variance" in variable.name))
        return made[n](a)

    return run


def _chain(n, *layers):
    return K.Sequential([K.Input((n,), dtype="float64"), *layers, K.layers.Flatten(dtype="float64")])


def _of(name, *args, **kwargs):
    return lambda n: getattr(K.layers, name)(*args, **kwargs, dtype="float64")


def _sequence(name, *args, **kwargs):
    """A layer on the row as a sequence of single features."""
    layer = getattr(K.layers, name)
    return lambda n: _chain(n, K.layers.Reshape((n, 1), dtype="float64"), layer(*args, **kwargs, dtype="float64"))


def _dense(activation):
    return lambda n: K.layers.Dense(n, activation, dtype="float64")


DENSE = ("relu", "tanh", "softmax", "gelu", "elu", "celu", "softsign", "log_softmax", "sigmoid", "relu6")
LAYERS = {**{f"Dense {name}": _dense(name) for name in DENSE}, **read_table("random_operations", "LAYERS", globals())}


def _table() -> dict[str, Operation]:
    table = {name: Operation(run, 1, _some) for name, run in (UNARY | ROWS).items()}
    for name, length in LENGTHS.items():
        table[name] = Operation(ROWS[name], 1, lambda n, length=length: length if n else None)
    table["sorted segment_prod"] = Operation(
        ROWS["sorted segment_prod"], 1, lambda n: (1 if n < 4 else 3) if n else None
    )
    table["rfft power"] = Operation(ROWS["rfft power"], 1, lambda n: n // 2 + 1 if n else None)
    table |= {name: Operation(run, 2, _broadcast) for name, run in BINARY.items()}
    for name, run in REDUCTIONS.items():
        table[name] = Operation(lambda a, run=run: run(a, axis=1, keepdims=True), 1, _one)
    # Of one number it is 0, the root of a variance that is 0: a step within without a derivative.
    table["reduce_std"] = table["reduce_std"]._replace(size=lambda n: 1 if n > 1 else None)
    for name, run in MATRICES.items():
        table[name] = Operation(lambda a, run=run: _row(run(a)), 1, _square)
    for name, run in SCALARS.items():
        table[name] = Operation(lambda a, run=run: run(_matrix(a))[:, None], 1, _fixed({1: 1, 4: 1}))
    table |= {name: Operation(_spectral(f), 1, _square) for name, f in SPECTRAL.items()}
    table["polar factor"] = Operation(_polar, 1, _square)
    table["singular values"] = Operation(lambda a: tf.linalg.svd(_matrix(a), compute_uv=False), 1, _fixed({1: 1, 4: 2}))
    table["eigenvalues"] = Operation(lambda a: tf.linalg.eigvalsh(_symmetric(a)), 1, _fixed({1: 1, 4: 2}))
    table["matmul"] = Operation(
        lambda a, b: _row(tf.matmul(_matrix(a), _matrix(b))), 2, lambda n, m: _square(n) if n == m else None
    )
    table["cross"] = Operation(tf.linalg.cross, 2, lambda n, m: 3 if n == m == 3 else None)
    table["dot"] = Operation(lambda a, b: tf.reduce_sum(a * b, 1, True), 2, lambda n, m: 1 if n == m and n else None)
    table["concat"] = Operation(
        lambda a, b: tf.concat([a, b], 1), 2, lambda n, m: n + m if 0 < n + m <= LARGEST else None
    )
    table["stacked maximum"] = Operation(lambda a, b: tf.reduce_max(tf.stack([a, b]), 0), 2, _equal)
    table["added thrice"] = Operation(lambda a, b: tf.add_n([a, b, a]), 2, _equal)
    table |= {name: Operation(_layer(make), 1, _some) for name, make in LAYERS.items()}
    return table


OPERATIONS = _table()
KINDS = [
    sorted(UNARY),
    [*sorted(BINARY), "matmul", "cross", "dot", "concat", "stacked maximum", "added thrice"],
    sorted(REDUCTIONS | ROWS),
    [*sorted(MATRICES | SCALARS | SPECTRAL), "polar factor", "singular values", "eigenvalues"],
    sorted(LAYERS),
]
