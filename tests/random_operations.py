"""Operations and layers on the rows of a matrix, for random programs: what they compute, and the length of the result.

Each takes tensors of shape (rows, n) in float64 and returns one of shape (rows, m), and no row meets another. What
happens inside a row is anything: reductions, scans, matrices of its elements. Where an operation has a derivative is
not said here: `random_truth` finds that from values.
"""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.runtime import tf

import numpy as np

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


UNARY = {
    "exp": tf.exp,
    "log": S.log,
    "sqrt": tf.sqrt,
    "rsqrt": S.rsqrt,
    "square": tf.square,
    "abs": tf.abs,
    "sin": tf.sin,
    "cos": tf.cos,
    "tan": tf.tan,
    "asin": tf.asin,
    "acos": tf.acos,
    "atan": tf.atan,
    "sinh": tf.sinh,
    "cosh": tf.cosh,
    "tanh": tf.tanh,
    "asinh": tf.asinh,
    "acosh": tf.acosh,
    "atanh": tf.atanh,
    "sigmoid": tf.sigmoid,
    "log_sigmoid": S.log_sigmoid,
    "softplus": S.softplus,
    "softsign": S.softsign,
    "expm1": S.expm1,
    "log1p": S.log1p,
    "reciprocal": S.reciprocal,
    "reciprocal_no_nan": S.reciprocal_no_nan,
    "negative": tf.negative,
    "sign": tf.sign,
    "floor": tf.floor,
    "round": tf.round,
    "erf": S.erf,
    "erfc": S.erfc,
    "erfinv": S.erfinv,
    "ndtri": S.ndtri,
    "lgamma": S.lgamma,
    "digamma": S.digamma,
    "bessel_i0e": S.bessel_i0e,
    "bessel_i1e": S.bessel_i1e,
    "bessel_i0": tf.math.special.bessel_i0,
    "bessel_j0": tf.math.special.bessel_j0,
    "bessel_k1e": tf.math.special.bessel_k1e,
    "dawsn": tf.math.special.dawsn,
    "expint": tf.math.special.expint,
    "spence": tf.math.special.spence,
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "silu": tf.nn.silu,
    "crelu sum": lambda a: tf.add_n(tf.split(tf.nn.crelu(a), 2, 1)),
    "leaky_relu": tf.nn.leaky_relu,
    "gelu": tf.nn.gelu,
    "gelu tanh": lambda a: tf.nn.gelu(a, approximate=True),
    "celu": K.activations.celu,
    "mish": K.activations.mish,
    "hard_sigmoid": K.activations.hard_sigmoid,
    "hard_silu": K.activations.hard_silu,
    "hard_tanh": K.activations.hard_tanh,
    "soft_shrink": K.activations.soft_shrink,
    "hard_shrink": K.activations.hard_shrink,
    "squareplus": K.activations.squareplus,
    "sparse_plus": K.activations.sparse_plus,
    "tanh_shrink": K.activations.tanh_shrink,
    "threshold": lambda a: K.activations.threshold(a, 0.0, 0.0),
    "sinc": tf.experimental.numpy.sinc,
    "nan_to_num": _numpy("nan_to_num"),
    "square root of a square": lambda a: tf.sqrt(a * a),
    "clip": lambda a: tf.clip_by_value(a, -1.0, 1.0),
    "cube": lambda a: a**3,
    "power 2": lambda a: a**2.0,
    "power 0": lambda a: a**0.0,
    "power 1": lambda a: a**1.0,
    "power 2.5": lambda a: tf.pow(a, 2.5),
    "power -1": lambda a: tf.pow(a, -1.0),
    "2 to the power": lambda a: 2.0**a,
    "0 to the power": lambda a: tf.pow(tf.zeros_like(a), a),
    "power 1/3 of a cube": lambda a: tf.pow(a**3, 1 / 3),
    "twice": lambda a: 2.0 * a,
    "half less 1": lambda a: a / 2 - 1.0,
    "1 over 2 + square": lambda a: 1 / (2 + a * a),
    "times 1e-8": lambda a: a * 1e-8,
    "times 1e8": lambda a: a * 1e8,
    "plus 1": lambda a: a + 1.0,
    "zero times": lambda a: a * 0.0,
    "constant less": lambda a: 1.0 - a,
    "masked square": lambda a: tf.where(a > 0, a * a, 0.0),
    "masked safely": lambda a: tf.where(a > 0, S.log(tf.where(a > 0, a, 1.0)), 0.0),
    "xlogy with 2": lambda a: S.xlogy(a, tf.constant(2.0, F)),
    "xlog1py with 2": lambda a: S.xlog1py(a, tf.constant(2.0, F)),
    "xdivy by 2": lambda a: S.xdivy(a, tf.constant(2.0, F)),
    "2 xlogy": lambda a: S.xlogy(tf.constant(2.0, F), a),
    "0 xlogy": lambda a: S.xlogy(tf.constant(0.0, F), a),
    "igamma of 2": lambda a: S.igamma(tf.constant(2.0, F), a),
    "polygamma 1": lambda a: S.polygamma(tf.ones_like(a), a),
    "zeta of 2": lambda a: S.zeta(tf.constant(2.0, F), a),
    "betainc 2 3": lambda a: S.betainc(tf.constant(2.0, F), tf.constant(3.0, F), a),
    "sigmoid cross-entropy": lambda a: tf.nn.sigmoid_cross_entropy_with_logits(_labels(a), a),
    "weighted cross-entropy": lambda a: tf.nn.weighted_cross_entropy_with_logits(_labels(a), a, 2.0),
    "log poisson": lambda a: tf.nn.log_poisson_loss(_labels(a), a),
    "stop": lambda a: tf.stop_gradient(a) * 0.0 + a,
    "complex modulus": lambda a: tf.abs(_complex(a)),
    "complex angle": lambda a: S.angle(_complex(a)),
    "complex exp": lambda a: S.imag(tf.exp(_complex(a))),
    "complex quotient": lambda a: S.real(_complex(a) / (_complex(a) ** 2 + 2.0)),
    "complex sqrt": lambda a: S.real(tf.sqrt(_complex(a))),
}

BINARY = {
    "add": tf.add,
    "subtract": tf.subtract,
    "multiply": tf.multiply,
    "divide": tf.divide,
    "pow": tf.pow,
    "maximum": tf.maximum,
    "minimum": tf.minimum,
    "atan2": tf.atan2,
    "divide_no_nan": S.divide_no_nan,
    "multiply_no_nan": S.multiply_no_nan,
    "squared_difference": S.squared_difference,
    "xlogy": S.xlogy,
    "xlog1py": S.xlog1py,
    "xdivy": S.xdivy,
    "floormod": S.floormod,
    "logaddexp": _numpy("logaddexp"),
    "hypot": _numpy("hypot"),
    "igamma": S.igamma,
    "igammac": S.igammac,
    "where greater": lambda a, b: tf.where(a > b, a, b),
    "where positive": lambda a, b: tf.where(a > 0, b, 0.0),
    "lerp": lambda a, b: a + 0.3 * (b - a),
    "minus a constant times": lambda a, b: a - 2.0 * b,
}

REDUCTIONS = {
    "reduce_sum": tf.reduce_sum,
    "reduce_mean": tf.reduce_mean,
    "reduce_prod": tf.reduce_prod,
    "reduce_max": tf.reduce_max,
    "reduce_min": tf.reduce_min,
    "reduce_logsumexp": tf.reduce_logsumexp,
    "reduce_euclidean_norm": S.reduce_euclidean_norm,
    "norm": tf.norm,
    "reduce_variance": S.reduce_variance,
    "reduce_std": S.reduce_std,
    "norm 1": lambda a, axis, keepdims: tf.norm(a, 1, axis, keepdims),
    "norm inf": lambda a, axis, keepdims: tf.norm(a, np.inf, axis, keepdims),
    "moments": lambda a, axis, keepdims: tf.nn.moments(a, [axis], keepdims=keepdims)[1],
    "norm 3": lambda a, axis, keepdims: tf.norm(a, 3.0, axis, keepdims),
}

# Within a row: what keeps its length.
ROWS = {
    "cumsum": lambda a: tf.cumsum(a, 1),
    "cumprod": lambda a: S.cumprod(a, 1),
    "cumprod exclusive": lambda a: S.cumprod(a, 1, exclusive=True, reverse=True),
    "cumulative_logsumexp": lambda a: S.cumulative_logsumexp(a, 1),
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "l2_normalize": lambda a: S.l2_normalize(a, 1),
    "clip_by_norm": lambda a: tf.clip_by_norm(a, 1.0, [1]),
    "sort": lambda a: tf.sort(a, 1),
    "top_k": lambda a: S.top_k(a, a.shape[1]).values,
    "reverse": lambda a: tf.reverse(a, [1]),
    "roll": lambda a: tf.roll(a, 1, 1),
    "gather, one twice": lambda a: tf.gather(a, [0, *range(a.shape[1] - 1)], axis=1),
    "zeros padded": lambda a: tf.pad(a[:, 1:], [[0, 0], [1, 0]]),
    "mirrored": lambda a: tf.pad(a, [[0, 0], [a.shape[1] - 1, 0]], "REFLECT")[:, : a.shape[1]],
    "dense": lambda a: tf.matmul(a, _weights(a.shape[1], a.shape[1])),
    "outer": lambda a: tf.einsum("bi,bj->bj", a, a),
    "segment_prod": _segments(S.unsorted_segment_prod, [0, 0, 2, 0, 2, 2], 3),
    "segment_max": _segments(S.unsorted_segment_max, [0, 0, 0, 0, 0, 0], 1),
    "segment_min": _segments(S.unsorted_segment_min, [0, 0, 1, 1, 1, 1], 2),
    "segment_mean": _segments(S.unsorted_segment_mean, [0, 0, 2, 0, 2, 2], 3),
    "segment_sqrt_n": _segments(S.unsorted_segment_sqrt_n, [0, 0, 0, 0, 0, 0], 2),
    "sorted segment_prod": lambda a: tf.transpose(S.segment_prod(tf.transpose(a), [0, 0, 0, 2, 2, 2][: a.shape[1]])),
    "scatter_add": _scatter(tf.tensor_scatter_nd_add, [0, 0, 1]),
    "scatter_update": _scatter(tf.tensor_scatter_nd_update, [1]),
    "scatter_max": _scatter(tf.tensor_scatter_nd_max, [1]),
    "scatter_min": _scatter(tf.tensor_scatter_nd_min, [1]),
    "fft": lambda a: S.real(tf.signal.fft(_complex(a))),
    "rfft power": lambda a: _power(tf.signal.rfft(a)),
    "layer norm": lambda a: (a - tf.reduce_mean(a, 1, True)) / tf.sqrt(S.reduce_variance(a, 1, True) + 1e-3),
    "softmax cross-entropy": lambda a: tf.nn.softmax_cross_entropy_with_logits(_labels(a), a)[:, None] * a,
    "sparse cross-entropy": lambda a: (
        a * tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros_like(a[:, 0], tf.int32), a)[:, None]
    ),
}
# What they need so that they are not refused for their shapes or lengths.
LENGTHS = {"segment_prod": 3, "segment_max": 1, "segment_min": 2, "segment_mean": 3, "segment_sqrt_n": 2}

MATRICES = {
    "matmul itself": lambda a: tf.matmul(_matrix(a), _matrix(a)),
    "gram": _gram,
    "inv": lambda a: tf.linalg.inv(_matrix(a)),
    "pinv": lambda a: tf.linalg.pinv(_matrix(a)),
    "cholesky": lambda a: tf.linalg.cholesky(_raised(a)),
    # Of what is huge it squares five hundred times, and overflows all the same.
    "expm": lambda a: tf.linalg.expm(_matrix(tf.clip_by_value(a, -50.0, 50.0))),
    "sqrtm": lambda a: tf.linalg.sqrtm(_raised(a)),
    "solve": lambda a: tf.linalg.solve(_raised(a), _matrix(a)),
    "triangular_solve": lambda a: tf.linalg.triangular_solve(_matrix(a), _raised(a)),
    "cholesky_solve": lambda a: tf.linalg.cholesky_solve(tf.linalg.cholesky(_raised(a)), _matrix(a)),
    "lstsq": lambda a: tf.linalg.lstsq(_matrix(a), _gram(a), fast=False),
    "band_part": lambda a: tf.linalg.band_part(_matrix(a), 0, -1),
    "qr R": lambda a: tf.linalg.qr(_matrix(a))[1],
    "transpose": lambda a: tf.linalg.matrix_transpose(_matrix(a)),
    "set_diag": lambda a: tf.linalg.set_diag(_matrix(a), tf.linalg.diag_part(_gram(a))),
    "matrix square": lambda a: tf.einsum("bij,bjk->bik", _matrix(a), _matrix(a)),
}
SCALARS = {
    "det": tf.linalg.det,
    "logdet": lambda m: tf.linalg.logdet(tf.matmul(m, m, transpose_b=True) + 1.0),
    "slogdet": lambda m: tf.linalg.slogdet(m)[1],
    "trace": tf.linalg.trace,
    "norm 2": lambda m: tf.reduce_max(tf.linalg.svd(m, compute_uv=False), -1),
    "frobenius": lambda m: tf.norm(m, axis=[-2, -1]),
    "nuclear": lambda m: tf.reduce_sum(tf.linalg.svd(m, compute_uv=False), -1),
    "sum of squared eigenvalues": lambda m: tf.reduce_sum(
        tf.linalg.eigvalsh(m + tf.linalg.matrix_transpose(m)) ** 2, -1
    ),
    "sum of squared singular values": lambda m: tf.reduce_sum(tf.linalg.svd(m, compute_uv=False) ** 2, -1),
    "logdet by eigenvalues": lambda m: tf.reduce_sum(
        S.log(tf.linalg.eigvalsh(tf.matmul(m, m, transpose_b=True) + tf.eye(m.shape[-1], dtype=F))), -1
    ),
    "complex det": lambda m: S.real(tf.linalg.det(tf.complex(m, 0.5 * m * m))),
    "largest eigenvalue": lambda m: tf.linalg.eigvalsh(m + tf.linalg.matrix_transpose(m))[:, -1],
}
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
LAYERS = {
    **{f"Dense {name}": _dense(name) for name in DENSE},
    **{
        "LayerNormalization": _of("LayerNormalization"),
        "UnitNormalization": _of("UnitNormalization"),
        "RMSNormalization": _of("RMSNormalization"),
        "BatchNormalization": _of("BatchNormalization"),
        "GroupNormalization": _of("GroupNormalization", 1),
        "PReLU": _of("PReLU"),
        "Softmax": _of("Softmax"),
        "LeakyReLU": _of("LeakyReLU"),
        "ELU": _of("ELU"),
        "ReLU between": _of("ReLU", 1.0, 0.1, 0.25),
        "Rescaling": _of("Rescaling", 0.5, 1.0),
        "Conv1D": _sequence("Conv1D", 1, 3, padding="same", activation="tanh"),
        "SeparableConv1D": _sequence("SeparableConv1D", 1, 2, padding="same"),
        "MaxPooling1D": _sequence("MaxPooling1D", 2, 1, padding="same"),
        "AveragePooling1D": _sequence("AveragePooling1D", 2, 1, padding="same"),
        "SimpleRNN": _sequence("SimpleRNN", 1, return_sequences=True, unroll=True),
        "GRU": _sequence("GRU", 1, return_sequences=True, unroll=True),
        "LSTM": _sequence("LSTM", 1, return_sequences=True, unroll=True),
        "EinsumDense": lambda n: K.layers.EinsumDense("bi,ij->bj", n, activation="selu", dtype="float64"),
    },
}


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
