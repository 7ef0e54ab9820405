"""Matrices with equal eigenvalues or too small a rank, and complex numbers."""

from special.case import at

import numpy as np
import tensorflow as tf

I3, I2 = np.eye(3), np.eye(2)
weights = tf.constant(np.arange(1.0, 10.0).reshape(3, 3))
TRACE = tf.linalg.trace


def symmetric(a):
    return (a + tf.linalg.matrix_transpose(a)) / 2


def by_eigenvalues(f, a):
    """f of a symmetric matrix, by its eigenvalues."""
    e, v = tf.linalg.eigh(symmetric(a))
    return tf.matmul(v * f(e)[..., None, :], v, transpose_b=True)


def polar(a):
    _, u, v = tf.linalg.svd(a)
    return tf.matmul(u, v, transpose_b=True)


def top_projector(a):
    vector = tf.linalg.eigh(symmetric(a))[1][:, -1:]
    return tf.matmul(vector, vector, transpose_b=True)


kind = "equal eigenvalues"
for where, matrix in {"I": I3, "diag(1, 1, 2)": np.diag([1.0, 1.0, 2.0])}.items():
    at(kind, f"Σ λ² by eigvalsh at {where}", lambda a: tf.reduce_sum(tf.linalg.eigvalsh(symmetric(a)) ** 2), matrix)
    at(kind, f"Σ log λ by eigvalsh at {where}", lambda a: tf.reduce_sum(tf.math.log(tf.linalg.eigvalsh(symmetric(a)))),
       matrix)  # fmt: skip
    at(kind, f"Σ λ² by eigh at {where}", lambda a: tf.reduce_sum(tf.linalg.eigh(symmetric(a))[0] ** 2), matrix)
    at(kind, f"Σ σ² by svd at {where}", lambda a: tf.reduce_sum(tf.linalg.svd(a)[0] ** 2), matrix)
    at(kind, f"Σ σ² by svd without vectors at {where}",
       lambda a: tf.reduce_sum(tf.linalg.svd(a, compute_uv=False) ** 2), matrix)  # fmt: skip
    at(kind, f"the square root by eigh at {where}", lambda a: weights * by_eigenvalues(tf.sqrt, a), matrix)
    at(kind, f"the polar factor by svd at {where}", lambda a: weights * polar(a), matrix)
    at(kind, f"pinv at {where}", lambda a: weights * tf.linalg.pinv(a), matrix)
    at(kind, f"sqrtm at {where}", lambda a: weights * tf.linalg.sqrtm(a), matrix)
    at(kind, f"expm at {where}", lambda a: weights * tf.linalg.expm(a), matrix)
    at(kind, f"rᵀ r by qr at {where}", lambda a: (lambda r: tf.matmul(r, r, transpose_a=True))(tf.linalg.qr(a)[1]),
       matrix)  # fmt: skip
    at(kind, f"cholesky at {where}", lambda a: tf.linalg.cholesky(symmetric(a)), matrix)
    at(kind, f"slogdet at {where}", lambda a: tf.linalg.slogdet(a)[1], matrix)
    at(kind, f"det and inv at {where}", lambda a: [tf.linalg.det(a), tf.linalg.inv(a)], matrix)
at(kind, "the projector on the largest of 1, 1, 2", lambda a: weights * top_projector(a), np.diag([1.0, 1.0, 2.0]))
at(kind, "the largest of 1, 1, 2", lambda a: tf.linalg.eigvalsh(symmetric(a))[-1], np.diag([1.0, 1.0, 2.0]))
at(kind, "the spectral norm, 2 beside 1, 1", lambda a: tf.linalg.svd(a, compute_uv=False)[0], np.diag([1.0, 1.0, 2.0]))
at(kind, "the largest eigenvalue at I", lambda a: tf.linalg.eigvalsh(symmetric(a))[-1], I2, derivatives=0)
at(kind, "the largest singular value at I", lambda a: tf.linalg.svd(a, compute_uv=False)[0], I2, derivatives=0)
at(kind, "pinv of two rows of I", lambda a: tf.linalg.pinv(a), I3[:2])
at(kind, "expm at 0", lambda a: tf.linalg.expm(a), np.zeros((2, 2)))
at(kind, "Σ λ² by eig at I", lambda a: tf.math.real(tf.reduce_sum(tf.linalg.eig(a)[0] ** 2)), I2)
at(kind, "the nuclear norm at I", lambda a: tf.reduce_sum(tf.linalg.svd(a, compute_uv=False)), I2)
at(kind, "logm at I", lambda a: tf.math.real(tf.linalg.logm(tf.cast(a, tf.complex128))), I2)
G = np.array([[2.0, 0.4, 0.3], [0.6, 1.9, 0.7], [0.7, 0.9, 1.8]])
at("huge or tiny", "the polar factor of a matrix of size 1e-6", lambda a: weights * polar(1e-6 * a), G)
at("huge or tiny", "pinv of a matrix of size 1e-6", lambda a: weights * tf.linalg.pinv(1e-6 * a) * 1e-6, G)
at("huge or tiny", "eigh of a matrix of size 1e-6",
   lambda a: weights * by_eigenvalues(tf.sqrt, 1e-6 * a) * 1e3, G)  # fmt: skip
at("huge or tiny", "slogdet of a matrix of size 1e-150", lambda a: tf.linalg.slogdet(1e-150 * a)[1], G)
at("huge or tiny", "det of a matrix of size 1e-80", lambda a: tf.linalg.det(1e-80 * a) * 1e240, G)
at("huge or tiny", "inv of a matrix of size 1e-150", lambda a: tf.linalg.inv(1e-150 * a) * 1e-150, G)
at("huge or tiny", "solve with a matrix of size 1e150", lambda a: tf.linalg.solve(1e150 * a, a[:, :1] ** 2) * 1e150, G)

kind = "rank deficiency"
R2 = np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 1.0], [3.0, 3.0, 4.0]])  # the third row is the sum of the others
at(kind, "det of a 3 x 3 matrix of rank 2", lambda a: tf.linalg.det(a) + TRACE(a), R2)
at(kind, "det of a 3 x 3 matrix of rank 1", lambda a: tf.linalg.det(a) + TRACE(a), np.ones((3, 3)))
at(kind, "det of a diagonal matrix with a zero", lambda a: tf.linalg.det(a) + TRACE(a), np.diag([0.0, 1.0, 2.0]))
at(kind, "det of the zero matrix", lambda a: tf.linalg.det(a) + TRACE(a), np.zeros((2, 2)))
at(kind, "Σ λ² by eigvalsh at rank 1", lambda a: tf.reduce_sum(tf.linalg.eigvalsh(symmetric(a)) ** 2), np.ones((3, 3)))
at(kind, "Σ σ² by svd at rank 1", lambda a: tf.reduce_sum(tf.linalg.svd(a, compute_uv=False) ** 2), np.ones((3, 3)))
at(kind, "Σ σ⁴ by svd of two rows, one zero", lambda a: tf.reduce_sum(tf.linalg.svd(a)[0] ** 4),
   [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])  # fmt: skip
at(kind, "the nuclear norm at rank 1", lambda a: tf.reduce_sum(tf.linalg.svd(a, compute_uv=False)), np.ones((2, 2)),
   derivatives=0)  # fmt: skip
at(kind, "expm of a nilpotent matrix", lambda a: tf.linalg.expm(a), [[0.0, 1.0], [0.0, 0.0]])
at(kind, "matrix_power and trace of a singular matrix", lambda a: TRACE(tf.matmul(a, tf.matmul(a, a))), R2)
at(kind, "solve of a regularised singular matrix", lambda a: tf.linalg.lstsq(a, a[:, :1] ** 2, l2_regularizer=0.5), R2)

kind = "complex numbers"
z, w = [2.0, 0.3, 0.1, 1.0], [0.0, 0.2, -0.4, 0.1]


def complex_matrix(x, y):
    return tf.reshape(tf.complex(x, y), [2, 2])


def hermitian(x, y):
    a = complex_matrix(x, y)
    return a + tf.linalg.adjoint(a)


for name, f in {
    "det": tf.linalg.det, "inv": tf.linalg.inv, "slogdet": lambda a: tf.linalg.slogdet(a)[1],
    "svd, u vᴴ": lambda a: (lambda s, u, v: tf.matmul(u, v, adjoint_b=True))(*tf.linalg.svd(a)),
    "sqrtm": tf.linalg.sqrtm, "expm": tf.linalg.expm, "solve": lambda a: tf.linalg.solve(a, a[:, :1] ** 2),
}.items():  # fmt: skip
    at(kind, f"{name} of a complex matrix", lambda x, y, f=f: f(complex_matrix(x, y)), z, w)
at(kind, "Σ λ² of a Hermitian matrix", lambda x, y: tf.reduce_sum(tf.linalg.eigvalsh(hermitian(x, y)) ** 2), z, w)
at(kind, "Σ λ² of a Hermitian matrix with equal eigenvalues",
   lambda x, y: tf.reduce_sum(tf.linalg.eigvalsh(hermitian(x, y)) ** 2), [1.0, 0, 0, 1.0], [0.0] * 4)  # fmt: skip
at(kind, "cholesky of a Hermitian matrix", lambda x, y: tf.linalg.cholesky(hermitian(x, y)), [2.0, 0.3, 0.1, 2.0], w)
pair = ([1.0, 0.5], [2.0, -0.7], [3.0, 0.4], [4.0, 0.6])
for name in ("multiply_no_nan", "divide_no_nan", "xlogy", "xdivy", "xlog1py", "pow", "multiply", "squared_difference"):
    f = getattr(tf.math, name)
    at(kind, f"{name} of complex numbers", lambda a, b, c, d, f=f: f(tf.complex(a, b), tf.complex(c, d)), *pair)
for name in ("xlogy", "xdivy", "multiply_no_nan"):
    f = getattr(tf.math, name)
    at(kind, f"{name} of a complex zero", lambda a, b, c, d, f=f: f(tf.complex(a, b), tf.complex(c, d)), [0.0], [0.0],
       [2.0], [0.7])  # fmt: skip
prods = {
    "reduce_prod": tf.reduce_prod, "cumprod": tf.math.cumprod,
    "segment_prod": lambda x: tf.math.segment_prod(x, [0, 0, 0]),
    "unsorted_segment_prod": lambda x: tf.math.unsorted_segment_prod(x, [0, 0, 0], 1),
}  # fmt: skip
for name, f in prods.items():
    at(kind, f"{name} of complex numbers", lambda a, b, f=f: f(tf.complex(a, b)), [0.7, 1.0, 2.0], [0.4, -0.5, 0.3])
    at(kind, f"{name} of complex numbers, one zero", lambda a, b, f=f: f(tf.complex(a, b)), [0.0, 1.0, 2.0],
       [0.0, -0.5, 0.3])  # fmt: skip
at(kind, "reduce_euclidean_norm of complex numbers", lambda a, b: tf.math.reduce_euclidean_norm(tf.complex(a, b)),
   [3.0, 1.0], [4.0, 2.0])  # fmt: skip
at(kind, "sqrt and log next to the cut", lambda a, b: [tf.sqrt(tf.complex(a, b)), tf.math.log(tf.complex(a, b))],
   [-1.0], [0.3])  # fmt: skip
at(kind, "angle of i", lambda a, b: tf.math.angle(tf.complex(a, b)), [0.0], [1.0])
at(kind, "abs of i", lambda a, b: tf.abs(tf.complex(a, b)), [0.0], [1.0])
at(kind, "fft of zeros", lambda a, b: tf.signal.fft(tf.complex(a, b)), [0.0, 0.0], [0.0, 1.0])
