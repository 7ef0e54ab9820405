"""The pseudoinverse: its derivatives, of any order, where singular values are equal.

`tf.linalg.pinv` is composed of a singular value decomposition, whose derivatives lose terms where singular values are
equal: at the identity, the first thing that anyone tries. By Golub and Pereyra (1973, eq. 4.12), X = pinv(A) has

    dX = -X dA X + X Xᴴ dAᴴ (1 - A X) + (1 - X A) dAᴴ Xᴴ X

without any decomposition. It holds while the rank of A does not change. Where A has less than full rank, the
pseudoinverse jumps in the directions that raise the rank, and what is given is the derivative in the others, as
TensorFlow's.

Who has imported the function by name keeps TensorFlow's. Its first derivatives are then right by the cure of svd, and
its second ones are NaN at equal singular values; so are those of a function that was traced before.
"""

from collections.abc import Callable
from typing import Any

from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.replaced_function import Replacement
from tapelab.process.tensorflow import tf

_original = tf.linalg.pinv


def _pinv(a: Any, rcond: Any = None, validate_args: bool = False, name: str | None = None) -> tf.Tensor:
    """tf.linalg.pinv: ours has derivatives of any order at equal singular values; TensorFlow's loses terms there."""
    with tf.name_scope(name or "pinv"):
        a = tf.convert_to_tensor(a)
        return _differentiable(a, tf.stop_gradient(_original(a, rcond, validate_args)))


def _differentiable(a: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Give the value of the pseudoinverse its derivatives by the matrix."""

    @tf.custom_gradient
    def pinv(a: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # Of this graph, and so in reach of the second gradient's, as tensors of the forward graph are not.
            matrix = tf.identity(a)
            x = _differentiable(matrix, tf.identity(value))
            through = -tf.matmul(x, tf.matmul(upstream, x, adjoint_b=True), adjoint_a=True)
            rows = tf.matmul(upstream, tf.matmul(x, x, adjoint_b=True), adjoint_a=True)
            columns = tf.matmul(tf.matmul(x, x, adjoint_a=True), upstream, adjoint_b=True)
            return (
                through
                + rows
                - tf.matmul(matrix, tf.matmul(x, rows))
                + columns
                - tf.matmul(tf.matmul(columns, x), matrix)
            )

        return tf.identity(value), gradient

    return pinv(a)


FUNCTIONS = [
    Replacement(
        owners=lambda: [tf.linalg, tf.compat.v1.linalg],
        name="pinv",
        function=_pinv,
        needs=Needs.SECOND,
        what="a pseudoinverse",
        traced=lambda definition: False,  # the cure of svd makes it right, or NaN
    )
]
