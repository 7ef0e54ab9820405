"""Operations whose derivatives TensorFlow gets wrong at some points, and right at others: found in a graph.

Whether a call comes to such a point is not known before it runs. So the caller is warned, and told how to write it.
"""

from collections.abc import Iterator

from tapelab.process.tensorflow import tf

import numpy as np

_SQUARE = (
    "it squares an absolute value, of which TensorFlow's second derivative is 0, and not 2, where that value is 0. "
    "Write tf.square(x), and for complex numbers the sum of the squares of tf.math.real(x) and tf.math.imag(x)"
)
_EIG = (
    "it computes tf.linalg.eig, whose second derivatives in TensorFlow lack terms where eigenvalues are equal. Use "
    "tf.linalg.eigh, if the matrix is symmetric"
)
_CONSTANT = (
    "it takes a constant where a tensor equals a number, as tf.where(x == 0, 1, tf.sin(x) / x) does: there "
    "TensorFlow's derivatives are 0, as the constant's are. Take a few terms of the series where tf.abs(x) is small"
)
_CANCEL = (
    "it computes the absolute value of a tensor and its maximum or minimum with another, or its relu. Where both have "
    "a kink and the function has none, as in tf.maximum(x, 0) + tf.math.log1p(tf.exp(-tf.abs(x))), TensorFlow's "
    "derivatives are those of no piece. Use a function such as tf.nn.softplus, or one tf.where for both"
)
_BOTH = (
    "it computes the maximum and the minimum of the same two tensors. Where these are equal and the function has no "
    "kink, as in tf.maximum(x, y) + tf.minimum(x, y), TensorFlow's derivatives are those of no piece. Write what is "
    "computed of the two without them, such as x + y"
)
_VECTORS = (
    "it computes with eigenvectors or singular vectors, of which second derivatives are NaN or wrong where eigenvalues "
    "or singular values are equal. Write what it computes without them, such as by tf.linalg.expm or tf.linalg.sqrtm, "
    "or keep to points where they differ"
)
_KINKS = ("Relu", "Maximum", "Minimum")


def doubts(
    op: tf.Operation, depends: list[bool], reached: set, within: set[tf.Operation]
) -> Iterator[tuple[bool, str]]:
    """Say what is wrong with an operation at some points: whether that is second derivatives only, and why.

    Args:
        depends: for each input, whether it depends on the sources.
        reached: references of the tensors that do.
        within: the operations from which the results are computed.
    """
    if op.type == "Eig":
        yield True, _EIG
    elif op.type in ("SelfAdjointEigV2", "Svd"):
        if any(not within.isdisjoint(tensor.consumers()) for tensor in op.outputs[1:]):
            yield True, _VECTORS
    elif op.type in ("Select", "SelectV2"):
        if _takes_a_constant(op, depends, reached):
            yield False, _CONSTANT
    elif op.type == "Abs":
        tensor = op.inputs[0].op.inputs[0] if op.inputs[0].op.type == "Neg" else op.inputs[0]
        signed = [tensor, *[user.outputs[0] for user in tensor.consumers() if user.type == "Neg"]]
        if any(user.type in _KINKS and user in within for each in signed for user in each.consumers()):
            yield False, _CANCEL
    elif op.type == "Maximum":
        pair = {tensor.ref() for tensor in op.inputs}
        others = [user for user in op.inputs[0].consumers() if user.type == "Minimum" and user in within]
        if len(pair) == 2 and any({tensor.ref() for tensor in other.inputs} == pair for other in others):
            yield False, _BOTH
    if _is_square_of_modulus(op):
        yield True, _SQUARE


def _takes_a_constant(op: tf.Operation, depends: list[bool], reached: set) -> bool:
    """Whether it selects what does not depend on the sources where something that does equals a number."""
    test = op.inputs[0].op
    if test.type not in ("Equal", "NotEqual") or not any(tensor.ref() in reached for tensor in test.inputs):
        return False
    equal, other = (1, 2) if test.type == "Equal" else (2, 1)
    return depends[other] and not depends[equal]


def _is_square_of_modulus(op: tf.Operation) -> bool:
    """Whether an operation squares an absolute value, as far as the graph shows the exponent."""
    if op.type not in ("Mul", "Pow", "Square") or op.inputs[0].op.type not in ("Abs", "ComplexAbs"):
        return False
    if op.type == "Mul":
        first, second = (tensor.op for tensor in op.inputs)
        return second.type == first.type and second.inputs[0].ref() == first.inputs[0].ref()
    exponent = tf.get_static_value(op.inputs[1]) if op.type == "Pow" else 2
    return exponent is None or bool(np.any(exponent == 2))
