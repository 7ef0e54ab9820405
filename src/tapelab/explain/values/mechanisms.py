"""What one operation did to its values, told from the values: codes of `tapelab.explain.causes.VALUES`."""

from collections.abc import Sequence

from tapelab.explain.causes import VALUES
from tapelab.explain.ground.lines import numbers_in
from tapelab.explain.ground.measure import array
from tapelab.explain.values.rerun.evidence import PASSING, Evidence
from tapelab.explain.values.rerun.nodes import Node
from tapelab.graphs.operations import known, with_fact

import numpy as np

_DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan", "Reciprocal", "Inv", "Xdivy", "FloorMod", "Mod"})
_INVERSE_FUNCTIONS = frozenset({"Acos", "Asin", "Atanh", "Acosh"})
PRODUCTS = with_fact("multiplies")
TINY = 1e-18  # what divides to more than float32 can hold once it is squared


def of_infinite(evidence: Evidence, node: Node, at: np.ndarray | np.bool_ | None = None) -> tuple[str, int | None]:
    """Name the mechanism by which a node made something that is not finite, forwards or backwards.

    Args:
        evidence: an `Evidence`.
        node: with finite inputs.
        at: where the bad elements are: a mask in the shape of the first input, or None.

    Returns:
        (code, key): of `VALUES`; and the key of the node's input that is to blame.
    """
    if node.is_custom or node.is_opaque:
        return "custom_gradient" if node.is_custom else "unexplained", None
    inputs = evidence.made_of(node)
    x = inputs[0] if inputs else np.zeros(0)
    picked = x[at] if at is not None and at.shape == x.shape and at.any() else x
    outputs = [evidence.trace.values[key] for key in node.outputs]
    makes_nan = any(evidence.measure.nan(one) for one in outputs)
    key = node.inputs[0] if node.inputs else None
    if node.op in _RULES:
        return _RULES[node.op](evidence, node, inputs, picked, makes_nan), key
    return _ALWAYS.get(node.op) or (_OF_NAN.get(node.op, "overflow") if makes_nan else "overflow"), key


def _log(evidence: Evidence, node: Node, inputs: Sequence[np.ndarray], x: np.ndarray, makes_nan: bool) -> str:
    x = x + (node.op == "Log1p")
    if (np.real(x) < 0).any():
        return "domain"
    if shrunk_to_zero(evidence, node.inputs[0]):
        return "underflow"
    return "all_masked" if _sums_nothing(evidence, node.inputs[0]) else "log_of_zero"


def _sums_nothing(evidence: Evidence, key: int) -> bool:
    """Whether a value is the sum of exp(-inf), as tf.reduce_logsumexp has it where all is masked."""
    for wanted in ("Sum", "Exp"):
        node = evidence.maker(key)
        if node is None or node.op != wanted:
            return False
        key = node.inputs[0]
    return bool(np.isneginf(np.real(evidence.array(key))).any())


def _at_edge(evidence: Evidence, node: Node, inputs: Sequence[np.ndarray], x: np.ndarray, makes_nan: bool) -> str:
    is_root = node.op in ("Sqrt", "Rsqrt")
    argument = np.real(x) if is_root else inputs[1] + (node.op == "Xlog1py")
    return "domain" if (argument < 0).any() else "root_at_zero" if is_root else "log_of_zero"


def _division(evidence: Evidence, node: Node, inputs: Sequence[np.ndarray], x: np.ndarray, makes_nan: bool) -> str:
    below = inputs[-1]
    above = inputs[0] if len(inputs) > 1 else np.ones(1)
    if (below == 0).any():
        if shrunk_to_zero(evidence, node.inputs[-1]):
            return "underflow"
        if _counts_nothing(evidence, node.inputs[-1]):
            return "empty_mask"
        return "zero_over_zero" if makes_nan and ((above == 0) & (below == 0)).any() else "division_by_zero"
    return "division_by_zero" if (np.abs(below) < TINY).any() else "overflow"


def _counts_nothing(evidence: Evidence, key: int) -> bool:
    """Whether a value is the sum of a mask, and the mask leaves nothing."""
    if evidence.is_learned(key):
        return False
    maker = evidence.maker(key)
    return maker is not None and maker.op in ("Sum", "Size", "Mean") and not evidence.array(maker.inputs[0]).any()


def _power(evidence: Evidence, node: Node, inputs: Sequence[np.ndarray], x: np.ndarray, makes_nan: bool) -> str:
    base, exponent = np.broadcast_arrays(*inputs)
    if makes_nan or ((base < 0) & (exponent != np.round(exponent))).any():
        return "domain"
    at_zero = exponent[base == 0]
    if (at_zero == 0).any():
        return "zero_times_infinity"
    if (at_zero < 0).any():
        return "division_by_zero"
    return "root_at_zero" if (at_zero < 1).any() else "overflow"


def _inverse(evidence: Evidence, node: Node, inputs: Sequence[np.ndarray], x: np.ndarray, makes_nan: bool) -> str:
    outside = x < 1 if node.op == "Acosh" else np.abs(x) > 1
    return "domain" if outside.any() else "pole"


# By the operation: the rule, or the cause; otherwise it is an overflow.
_RULES = dict.fromkeys(("Log", "Log1p"), _log) | {"Pow": _power}
_RULES |= dict.fromkeys(("Sqrt", "Rsqrt", "Xlogy", "Xlog1py"), _at_edge) | dict.fromkeys(_DIVISIONS, _division)
_RULES |= dict.fromkeys(_INVERSE_FUNCTIONS, _inverse)
_ALWAYS = {op: code for code, cause in VALUES.items() for op in cause.makers.split()}
_OF_NAN = {op: code for code, cause in VALUES.items() for op in cause.makers_of_nan.split()}


def shrunk_to_zero(evidence: Evidence, key: int) -> Node | None:
    """Return the node that made a zero of numbers that were not zero, because it was too small; None where none did."""
    for _ in range(6):
        node = evidence.trace.producer.get(key)
        if node is None:
            return None
        values = [evidence.array(name) for name in node.inputs if evidence.trace.values[name].dtype.is_floating]
        if known(node.op).has("underflows"):
            zero = evidence.array(key) == 0
            if node.op == "Pow":
                values = values[:1]
            nonzero = [value[zero] if value.shape == zero.shape else value for value in values]
            if node.op == "Exp":
                return node if zero.any() and np.isfinite(values[0]).all() else None
            if zero.any() and nonzero and all(one.all() for one in nonzero):  # a cast of booleans has none
                return node
            zeros = [name for name in node.inputs if zero.any() and not evidence.array(name).all()]
            if len(zeros) != 1:
                return None
            key = zeros[0]
            continue
        if node.op not in PASSING and node.op not in ("Sum", "Mean", "RealDiv"):
            return None
        key = node.inputs[0]
    return None


def lost_epsilon(evidence: Evidence, node: Node) -> Node | None:
    """Return the node that was to keep a node's argument from 0 by a number that its dtype rounds to 0, or None."""
    maker = evidence.maker(node.inputs[-1])
    if maker is None or maker.op not in ("AddV2", "Maximum") or evidence.trace.values[maker.outputs[0]].dtype.size != 2:
        return None
    lost = any(not evidence.array(key).any() and not evidence.is_learned(key) for key in maker.inputs)
    return maker if lost and any(0 < number < 1e-6 for number in numbers_in(maker.line)) else None


def of_zero(evidence: Evidence, node: Node, position: int) -> str:
    """Name the mechanism by which a node made a cotangent of zeros out of one that is not zero.

    Args:
        evidence: an `Evidence`.
        node: in the replay.
        position: of the input whose cotangent became zero.

    Returns:
        A code of `VALUES`.
    """
    if node.is_custom or node.is_opaque:
        return "custom_gradient" if node.is_custom else "unknown_zero"
    x, op = evidence.made_of(node), node.op
    upstream = array(evidence.replay.passed[node].upstream[0])
    at_goal = not np.any(evidence.array(evidence.target))
    if known(op).has("cuts"):
        if at_goal and op in ("Relu", "Maximum") and _has_margin(evidence, node):
            return "hinge_inactive"
        if op.startswith("Relu"):
            arriving = x[0][upstream != 0]
            if not arriving.any():
                return "at_kink"
            return "dead_relu" if (arriving <= 0).all() else "clipped"
        return "dead_relu" if op == "Maximum" and any(one.size == 1 and not one.any() for one in x) else "clipped"
    if known(op).has("saturates"):
        return "underflow" if op == "Exp" else "saturated"
    if op in ("Softmax", "LogSoftmax"):
        spread = np.ptp(upstream, axis=-1).max() if upstream.size else 0.0
        return "constant_output" if x[0].shape[-1] == 1 or spread < 1e-6 * np.abs(upstream).max() else "saturated"
    if known(op).has("cross entropy"):
        return "constant_output" if x[0].shape[-1] == 1 else "stationary"
    if known(op).has("flat"):
        return "flat_operation"
    if op in ("ReluGrad", "Relu6Grad", "LeakyReluGrad") and position == 1:
        return "piecewise_linear"
    if op in ("Abs", "ComplexAbs"):
        return "stationary" if at_goal else "at_kink"
    if op == "Pow" and position == 1 and (np.real(x[0]) < 0).any():
        return "power_of_negative"
    if op in ("Square", "Pow", "SquaredDifference", "Cos", "Sin", "Cosh", "L2Loss"):
        return "stationary"
    if known(op).has("chooses"):
        return "not_maximum"
    if known(op).has("parts") or known(op).has("selects"):
        return "not_selected"
    if op in PRODUCTS or op in ("RealDiv", "DivNoNan", "Xlogy", "Xdivy"):
        return _by_product(evidence, node, position, x)
    if op in ("Prod", "Cumprod"):
        return "underflow" if x[0].all() else "multiplied_by_zero"
    return "underflow" if all(one.all() for one in x if one.size) else "unknown_zero"


def _has_margin(evidence: Evidence, node: Node) -> bool:
    """Whether what goes into a maximum is a positive constant and something more, as in margin + d1 - d2."""
    for key in node.inputs:
        maker = evidence.trace.producer.get(key)
        while maker is not None and maker.op in ("Sub", "Add", "AddV2"):
            terms = maker.inputs[:1] if maker.op == "Sub" else maker.inputs
            for one in terms:
                value = evidence.array(one)
                if value.size and (value > 0).all() and not evidence.is_learned(one) and one not in evidence.depends:
                    return True
            maker = evidence.trace.producer.get(maker.inputs[0])
    return False


def read_from(evidence: Evidence, key: int) -> int | None:
    """Return the handle's key of the variable that a value was read from and handed on; None for another value."""
    maker = evidence.trace.producer.get(key)
    while maker is not None and maker.op in PASSING and maker.op != "ReadVariableOp":
        maker = evidence.trace.producer.get(maker.inputs[0])
    return maker.inputs[0] if maker is not None and maker.op == "ReadVariableOp" else None


def _by_product(evidence: Evidence, node: Node, position: int, x: Sequence[np.ndarray]) -> str:
    others = [key for i, key in enumerate(node.inputs) if i != position and evidence.array(key).size]
    if node.op == "Mul" and node.inputs[0] == node.inputs[1]:
        return "stationary"
    zeros = [key for key in others if evidence.measure.zero(evidence.value(key))]
    if not zeros:
        # An operand that was broadcast gets a sum, which may be 0 because its terms cancel.
        is_sum = x[position].shape != evidence.array(node.outputs[0]).shape
        return "underflow" if node.op == "Mul" and not is_sum and all(one.all() for one in x) else "constant_output"
    if shrunk_to_zero(evidence, zeros[0]):
        return "underflow"
    if node.op in ("Mul", "MulNoNan") and zeros[0] in evidence.depends:  # as in x * sin(x) at 0
        return "stationary"
    if node.op in ("Mul", "MulNoNan", "RealDiv"):
        return "zero_weights" if evidence.is_learned(zeros[0]) else "multiplied_by_zero"
    return "zero_input" if read_from(evidence, zeros[0]) is None else "zero_weights"
