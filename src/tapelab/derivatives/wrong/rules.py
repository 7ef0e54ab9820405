"""What a graph must look like for a row of ``graphs/operations/wrong.toml`` to hold of an operation, by the row's rule.

The graph alone is looked at: whether a call comes to a point at which a derivative is wrong is not known before it
runs.
"""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.derivatives.wrong.moments import modules
from tapelab.graphs.operations import known, with_fact
from tapelab.graphs.program import function_body
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

_KINKS = ("Relu", "Maximum", "Minimum")
# What these compute from something that touches 0 and does not cross it does the same.
_KEEPS_ZEROS = with_fact("keeps zeros", "crosses") | with_fact("passes") - with_fact("flat")
_KEEPS_POSITIVE = with_fact("keeps positive")
_ONE_AT_ITS_BEND = with_fact("one at its bend")


class Met(NamedTuple):
    """An operation that was met in a graph.

    Attributes:
        op: it.
        depends: for each input, whether it depends on the sources.
        reached: references of the tensors that do.
        within: the operations from which the results are computed.
        called: whether it is in a function that the graph calls.
    """

    op: tf.Operation
    depends: list[bool]
    reached: set
    within: set[tf.Operation]
    called: bool

    def used(self, tensors: Tensors) -> bool:
        """Whether the results are computed from one of these tensors."""
        return any(not self.within.isdisjoint(tensor.consumers()) for tensor in tensors)


def _stands_twice(met: Met) -> bool | None:
    """Whether an index stands twice, of what writes at indices; None where that is not known in the graph."""
    if met.op.type == "TensorScatterUpdate":
        indices, written = [met.op.inputs[1]], met.depends[2]
    else:
        half = len(met.op.inputs) // 2
        indices, written = list(met.op.inputs[:half]), any(met.depends[half:])
    if not written or not (met.op.outputs[0].dtype.is_floating or met.op.outputs[0].dtype.is_complex):
        return False
    makers = {tensor.op for tensor in indices}
    if {op.type for op in makers} == {"DynamicPartition"} and len(makers) == 1:
        return False  # the gradient of tf.dynamic_partition
    values = [tf.get_static_value(tensor) for tensor in indices]
    if any(value is None for value in values):
        return None
    if met.op.type == "TensorScatterUpdate":
        rows = np.reshape(values[0], [-1, values[0].shape[-1]])
    else:
        rows = np.concatenate([np.reshape(value, [-1, 1]) for value in values])
    return len(np.unique(rows, axis=0)) < len(rows)


def _uses_batch_statistics(met: Met) -> bool:
    return met.used(met.op.outputs[1:3]) if met.op.get_attr("is_training") else any(met.depends[3:5])


def _bisects(met: Met) -> bool:
    """Whether a loop halves an interval: a bound becomes the middle, or stays, by a comparison."""
    try:
        body = function_body(met.op.graph, met.op.get_attr("body").name)
    except LookupError:
        return False
    bounds = {tensor.ref() for tensor in body.inputs}
    chosen = [past_identities(tensor).op for tensor in body.outputs]
    selects = [op for op in chosen if op.type in ("Select", "SelectV2")]
    pairs = [[past_identities(tensor) for tensor in op.inputs[1:]] for op in selects]
    return any(
        bound.ref() in bounds and _is_a_middle(middle, bounds)
        for pair in pairs
        for bound, middle in (pair, reversed(pair))
    )


def _is_a_middle(tensor: tf.Tensor, bounds: set) -> bool:
    """Whether a tensor is the mean of two others of these, however it is written."""
    left, found, halves = [tensor], set(), False
    while left:
        each = past_identities(left.pop())
        if each.ref() in bounds:
            found.add(each.ref())
        elif each.op.type in ("Add", "AddV2", "Sub", "Mul", "RealDiv"):
            left += each.op.inputs
        elif (value := tf.get_static_value(each)) is not None:
            halves = halves or bool(np.all((value == 0.5) | (value == 2)))
        else:
            return False
    return halves and len(found) == 2


def past_identities(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor that a tensor is a copy of."""
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _may_cancel_a_kink(met: Met) -> bool:
    inside = met.op.inputs[0]
    tensor = inside.op.inputs[0] if inside.op.type == "Neg" else inside
    signed = [tensor, *[user.outputs[0] for user in tensor.consumers() if user.type == "Neg"]]
    if tensor.op.type == "Sub":  # as of logaddexp: |a - b| beside the larger one of a and b
        a, b = tensor.op.inputs
        larger = [user for user in a.consumers() if user.type in ("Maximum", "Minimum") and user in met.within]
        if any(all(each in (a.ref(), b.ref()) for each in map(tf.Tensor.ref, user.inputs)) for user in larger):
            return True
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
    return known(first.op.type).has("moving") and len(set(map(_is_square, _touching(first)))) == 2


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


def _constant(tensor: tf.Tensor) -> np.ndarray | None:
    """The value of a tensor, where the graph shows it, past what changes its shape alone."""
    while tensor.op.type in ("Cast", "Identity", "Reshape", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tf.get_static_value(tensor)


def _is_positive(tensor: tf.Tensor) -> bool:
    """Whether a tensor is above 0 wherever it has a number, but for rounding, as far as the graph shows."""
    op, value = tensor.op, _constant(tensor)
    if value is not None:
        return value.dtype.kind == "f" and bool(np.all(value > 0))
    real = [part for part in op.inputs if part.dtype.is_floating]
    if not real:
        return False
    if op.type in _KEEPS_POSITIVE:
        return all(map(_is_positive, real))
    if op.type in ("Add", "AddV2", "Maximum"):
        return any(map(_is_positive, real)) and (op.type == "Maximum" or all(map(_is_not_negative, real)))
    return known(op.type).has("positive")


def _is_not_negative(tensor: tf.Tensor) -> bool:
    op = tensor.op
    if op.type in ("Abs", "Relu", "Square") or (op.type == "Mul" and _same(*op.inputs)):
        return True
    return _is_positive(tensor) or (op.type in ("Mean", "Sum") and _is_not_negative(op.inputs[0]))


def _is_zero_somewhere(met: Met) -> bool:
    """Whether the first input may have a 0, as far as the graph shows."""
    first = met.op.inputs[0]
    first = first.op.inputs[0] if first.op.type == "Neg" else first
    value = _constant(first)
    return not np.all(value) if value is not None else not _is_positive(first)


def _labels_have_another_sum(met: Met) -> bool:
    """Whether labels that the graph shows do not sum to 1."""
    labels = _constant(met.op.inputs[1])
    return labels is not None and bool(np.any(np.abs(labels.sum(-1) - 1) > 1e-3))


def _cuts_off(met: Met) -> bool:
    """Whether a Fourier transform leaves out the end of its input."""
    x, length = met.op.inputs[0], tf.get_static_value(met.op.inputs[1])
    if length is None:
        return False
    used = length if met.op.type.startswith("R") else [*length[:-1], length[-1] // 2 + 1]
    sizes = x.shape[-len(length) :]
    return any(size is not None and size > most for size, most in zip(sizes, used, strict=True))


def _stops_the_mean(met: Met) -> bool:
    """Whether it is SquaredDifference(x, StopGradient(Mean(x))) as `tf.nn.moments` has it, traced before."""
    if not met.called and modules():
        return False  # one of ours would have no StopGradient: it is the caller's own
    for x, other in (met.op.inputs, reversed(met.op.inputs)):
        stopped = other.op
        while stopped.type == "Identity":
            stopped = stopped.inputs[0].op
        mean = past_identities(other).op
        if stopped.type == "StopGradient" and mean.type == "Mean":
            return _same(past_identities(mean.inputs[0]), past_identities(x))
    return False


def _each_element_is_a_source(met: Met) -> bool:
    """Whether a matrix is an argument as it is, and not computed so that it is symmetric."""
    tensor = met.op.inputs[0]
    while tensor.op.type in ("Cast", "Identity", "Reshape"):
        tensor = tensor.op.inputs[0]
    return not met.called and tensor.op.type in ("Placeholder", "ReadVariableOp")


def _is_complex(met: Met) -> bool:
    return any(tensor.dtype.is_complex for tensor in met.op.inputs)


RULES: dict[str, Callable[[Met], bool]] = {
    "": lambda _: True,
    "gives_real_numbers": lambda met: any(tensor.dtype.is_floating for tensor in met.op.outputs),
    "bisects": _bisects,
    "cuts_off": _cuts_off,
    "each_element_is_a_source": _each_element_is_a_source,
    "index_may_stand_twice": lambda met: _stands_twice(met) is None,
    "index_stands_twice": lambda met: bool(_stands_twice(met)),
    "is_a_backward_of_a_backward": lambda met: "__backward___backward_" in met.op.get_attr("f").name,
    "is_complex": _is_complex,
    "is_complex_with_vectors": lambda met: _is_complex(met) and met.used(met.op.outputs[1:]),
    "is_square_of_modulus": _is_square_of_modulus,
    "is_zero_somewhere": _is_zero_somewhere,
    "labels_have_another_sum": _labels_have_another_sum,
    "may_cancel_a_kink": _may_cancel_a_kink,
    "meets_its_minimum": _meets_its_minimum,
    "meets_its_own_minimum": _meets_its_own_minimum,
    "stops_the_mean": _stops_the_mean,
    "takes_a_constant_where_equal": _takes_a_constant_where_equal,
    "touches_zero": _touches_zero,
    "uses_batch_statistics": _uses_batch_statistics,
    "uses_the_phase": lambda met: _is_complex(met) and met.used(met.op.outputs[:1]),
    "uses_vectors": lambda met: met.used(met.op.outputs[1:]),
}
