"""What a graph must look like for a row of ``graphs/operations/wrong.toml`` to hold of an operation, by the row's rule.

The graph alone is looked at: whether a call comes to a point at which a derivative is wrong is not known before it
runs.
"""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.graphs.operations import known, with_fact
from tapelab.graphs.operations.operation import MOVING
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

_KINKS = ("Relu", "Maximum", "Minimum")
# What these compute from something that touches 0 and does not cross it does the same.
_KEEPS_ZEROS = with_fact("keeps zeros") | with_fact("crosses") | with_fact("passes") - with_fact("flat")
_ONE_AT_ITS_BEND = with_fact("one at its bend")


class Met(NamedTuple):
    """An operation that was met in a graph.

    Attributes:
        op: it.
        depends: for each input, whether it depends on the sources.
        reached: references of the tensors that do.
        within: the operations from which the results are computed.
    """

    op: tf.Operation
    depends: list[bool]
    reached: set
    within: set[tf.Operation]

    def used(self, tensors: Tensors) -> bool:
        """Whether the results are computed from one of these tensors."""
        return any(not self.within.isdisjoint(tensor.consumers()) for tensor in tensors)


def _log_add_exp_by_name(met: Met) -> bool:
    """Whether a function of tf.experimental.numpy made a logarithm, where it was not replaced: by the stack."""
    return any(
        frame.name in ("logaddexp", "logaddexp2") and frame.filename.endswith("np_math_ops.py")
        for frame in met.op.traceback or []
    )


def _index_may_stand_twice(met: Met) -> bool:
    """Whether an index may stand twice: not in constants where it does not, nor in the parts of one partition."""
    half = len(met.op.inputs) // 2
    if not met.op.outputs[0].dtype.is_floating or not any(met.depends[half:]):
        return False
    indices = [tensor.op for tensor in met.op.inputs[:half]]
    kinds = {op.type for op in indices}
    if kinds == {"DynamicPartition"}:
        return len(set(indices)) != 1  # one is the gradient of tf.dynamic_partition
    if kinds != {"Const"}:
        return True
    values = np.concatenate([tf.make_ndarray(op.get_attr("value")).ravel() for op in indices])
    return len(np.unique(values)) != len(values)


def _uses_batch_statistics(met: Met) -> bool:
    return met.used(met.op.outputs[1:3]) if met.op.get_attr("is_training") else any(met.depends[3:5])


def _is_bisection(met: Met) -> bool:
    """Whether a loop is one of tf.linalg.eigh_tridiagonal, which is no operation of its own: by names.

    The scope has its name, unless the caller gave another, and the stack has it, unless the graph was loaded.
    """
    scopes, frames = met.op.name.split("/"), met.op.traceback or []
    return any(name.startswith("eigh_tridiagonal") for name in [*scopes, *(frame.name for frame in frames)])


def _may_cancel_a_kink(met: Met) -> bool:
    inside = met.op.inputs[0]
    tensor = inside.op.inputs[0] if inside.op.type == "Neg" else inside
    signed = [tensor, *[user.outputs[0] for user in tensor.consumers() if user.type == "Neg"]]
    return any(user.type in _KINKS and user in met.within for each in signed for user in each.consumers())


def _meets_its_minimum(met: Met) -> bool:
    """Whether the results are computed from a maximum and from the minimum of the same two tensors."""
    a, b = met.op.inputs
    minima = [op.inputs for op in met.within if op.type == known(met.op.type).mirror]
    pairs = [(first, second) for one, other in minima for first, second in ((one, other), (other, one))]
    return not _same(a, b) and any(_same(a, first) and _same(b, second) for first, second in pairs)


def _meets_its_own_minimum(met: Met) -> bool:
    """Whether the results are computed from the largest and the smallest of two numbers, or of segments of a tensor."""
    op = met.op
    before, after = (tensor.shape.num_elements() for tensor in (op.inputs[0], op.outputs[0]))
    if op.type == "Max" and None not in (before, after) and before != 2 * after:
        return False
    minima = [other for other in met.within if other.type == known(op.type).mirror]
    return any(all(map(_same, op.inputs, other.inputs)) for other in minima)


def _touches_zero(met: Met) -> bool:
    """Whether a square, which touches 0 and does not cross it, meets a kink at 0."""
    first, kind = met.op.inputs[0], met.op.type
    if kind in ("Maximum", "Minimum"):
        return any(_is_square(a) and _is_zero(b) for a, b in (met.op.inputs, reversed(met.op.inputs)))
    if kind in ("Abs", "LeakyRelu", "Relu", "Relu6"):
        return _is_square(first)
    first = _zeros_of(first)
    return known(first.op.type).family == MOVING and len(set(map(_is_square, _touching(first)))) == 2


def _is_zero(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a constant that is 0, or has a 0 in it."""
    value = tf.get_static_value(tensor)
    return tensor.op.type == "ZerosLike" or (value is not None and bool(np.any(value == 0)))


def _is_square(tensor: tf.Tensor) -> bool:
    """Whether a tensor is like a square where it is 0, as far as the graph shows, or has one that is in it.

    So are even powers, x sin x, and what is at an extremum there: 1 - cos x, 1 - exp(-x²).
    """
    op = tensor.op
    if op.type == "Square" or (op.type == "Mul" and _same(*map(_zeros_of, op.inputs))):
        return True
    if op.type == "Pow":
        exponent = tf.get_static_value(op.inputs[1])
        return exponent is not None and bool(np.any((exponent > 0) & (exponent % 2 == 0)))
    if op.type in ("Add", "AddV2", "Sub"):
        return any(_is_one(a) and _bends_at_one(b) for a, b in (op.inputs, reversed(op.inputs)))
    return any(map(_is_square, _touching(tensor)))


def _zeros_of(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose zeros a tensor has, as far as it is computed from one by operations that keep them."""
    while len(parts := _touching(tensor)) == 1:
        (tensor,) = parts
    return tensor


def _is_one(tensor: tf.Tensor) -> bool:
    """Whether a tensor is a constant that is 1 or -1, or has one in it."""
    value = tf.get_static_value(tensor)
    return value is not None and bool(np.any(np.abs(value) == 1))


def _bends_at_one(tensor: tf.Tensor) -> bool:
    op = tensor.op
    return op.type in _ONE_AT_ITS_BEND or (op.type == "Exp" and _is_square(op.inputs[0]))


def _touching(tensor: tf.Tensor) -> list[tf.Tensor]:
    """The tensors one of which touches 0 without crossing it where this one does, as far as that is known."""
    op = tensor.op
    if op.type not in _KEEPS_ZEROS or len(op.outputs) > 1:
        return []
    return [part for part in op.inputs if not part.dtype.is_integer]


def _same(a: tf.Tensor, b: tf.Tensor) -> bool:
    """Whether two tensors are one, or computed alike from the same ones, as x[0] and x[0] are."""
    if a is b or a.op is b.op:
        return a.value_index == b.value_index
    if a.op.type != b.op.type or a.value_index != b.value_index or dict(a.op.node_def.attr) != dict(b.op.node_def.attr):
        return False
    if not a.op.inputs:
        return a.op.type == "Const"
    return len(a.op.inputs) == len(b.op.inputs) and all(map(_same, a.op.inputs, b.op.inputs))


def _takes_a_constant_where_equal(met: Met) -> bool:
    """Whether it selects what does not depend on the sources where something that does equals a number."""
    test = met.op.inputs[0].op
    if test.type not in ("Equal", "NotEqual") or not any(tensor.ref() in met.reached for tensor in test.inputs):
        return False
    equal, other = (1, 2) if test.type == "Equal" else (2, 1)
    return met.depends[other] and not met.depends[equal]


def _is_square_of_modulus(met: Met) -> bool:
    """Whether an operation squares an absolute value, as far as the graph shows the exponent."""
    op = met.op
    if op.inputs[0].op.type not in ("Abs", "ComplexAbs"):
        return False
    if op.type == "Mul":
        first, second = (tensor.op for tensor in op.inputs)
        return second.type == first.type and second.inputs[0].ref() == first.inputs[0].ref()
    exponent = tf.get_static_value(op.inputs[1]) if op.type == "Pow" else 2
    return exponent is None or bool(np.any(exponent == 2))


RULES: dict[str, Callable[[Met], bool]] = {
    "": lambda _: True,
    "gives_real_numbers": lambda met: any(tensor.dtype.is_floating for tensor in met.op.outputs),
    "index_may_stand_twice": _index_may_stand_twice,
    "is_bisection": _is_bisection,
    "is_square_of_modulus": _is_square_of_modulus,
    "log_add_exp_by_name": _log_add_exp_by_name,
    "may_cancel_a_kink": _may_cancel_a_kink,
    "meets_its_minimum": _meets_its_minimum,
    "meets_its_own_minimum": _meets_its_own_minimum,
    "takes_a_constant_where_equal": _takes_a_constant_where_equal,
    "touches_zero": _touches_zero,
    "uses_batch_statistics": _uses_batch_statistics,
    "uses_vectors": lambda met: met.used(met.op.outputs[1:]),
}
