"""Gradients that are finite and still wrong, told from how the computation is built."""

from tapelab.explain.ground.log import is_handle
from tapelab.explain.ground.measure import array, number
from tapelab.explain.values.mechanisms import read_from
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node
from tapelab.graphs.operations import with_fact

import numpy as np

_STITCHES = ("DynamicStitch", "ParallelDynamicStitch")
_WRONG = ("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
_EDGE = 1e-3  # how near to 0 and 1 a loss for probabilities clips; what rounding leaves outside
_ROUNDED = 0.01  # what rounding of the labels of an example, in bfloat16, leaves of their sum
_CROSS_ENTROPIES, _UNITS = with_fact("cross entropy"), with_fact("unit")


def story(evidence: Evidence) -> Story | None:
    """Look for mistakes that leave a plausible number.

    Args:
        evidence: an `Evidence`.

    Returns:
        A `Story`, or None.
    """
    rules = (_cross_entropy, _assigned_inside, _broadcast_loss, _symmetric_units)
    return next(filter(None, (rule(evidence) for rule in rules)), None)


def _passed(evidence: Evidence, *operations: str) -> list[Node]:
    """The nodes of some types that a cotangent reached, the last first."""
    found = [node for op in operations for node in evidence.replay.nodes_of.get(op, ())]
    return sorted(found, key=lambda node: -node.index)


def _cross_entropy(evidence: Evidence) -> Story | None:
    """Logits given to a cross-entropy of probabilities, probabilities to one of logits, and labels that are neither."""
    for node in _passed(evidence, "Log", "Log1p", *_CROSS_ENTROPIES):
        scores, labels, of_logits = _scores_and_labels(evidence, node)
        if scores is None:
            continue
        maker = evidence.maker(scores)
        if of_logits and maker is not None and maker.op in ("Softmax", "Sigmoid"):
            return Story("softmax_twice", node, scores, values={"made": maker.op.lower()})
        if not of_logits and (outside := _outside_of_0_to_1(evidence.array(scores))):
            return Story("not_probabilities", node, scores, values={"made": outside})
        if labels is not None and (wrong := _no_labels(evidence, labels, node)):
            return Story("labels_outside", node, labels, values={"made": wrong})
    return None


def _scores_and_labels(evidence: Evidence, node: Node) -> tuple[int | None, int | None, bool]:
    """What a cross-entropy at this node got: the keys of scores and of labels, and whether it is one of logits."""
    if node.op == "SoftmaxCrossEntropyWithLogits":
        return *node.inputs, True
    if node.op in _CROSS_ENTROPIES:  # whose labels are numbers of classes
        return node.inputs[0], None, True
    before = evidence.maker(node.inputs[0]) if node.op in ("Log", "Log1p") else None
    if before is None:
        return None, None, False
    if node.op == "Log1p" and before.op == "Exp":  # log(1 + exp(-abs(x))) of tf.nn.sigmoid_cross_entropy_with_logits
        chosen = evidence.maker(before.inputs[0])
        if chosen is not None and chosen.op in ("Select", "SelectV2"):
            return chosen.inputs[2], _factor_of(evidence, chosen.inputs[2]), True
    if before.op == "Maximum" and 0 < evidence.array(before.inputs[1]).max(initial=0.0) < _EDGE:
        clip = evidence.maker(before.inputs[0])
        if clip is not None and clip.op == "Minimum" and 0 < 1 - evidence.array(clip.inputs[1]).min() < _EDGE:
            return clip.inputs[0], _factor_of(evidence, node.outputs[0]), False
    return None, None, False


def _factor_of(evidence: Evidence, key: int) -> int | None:
    """What a value is multiplied by that does not depend on the source, or None."""
    products = [node for node in evidence.trace.users.get(key, ()) if node.op == "Mul"]
    factors = [one for node in products for one in node.inputs if one != key and one not in evidence.depends]
    return factors[0] if factors else None


def _no_labels(evidence: Evidence, key: int, node: Node) -> str | None:
    """What keeps values from being the labels of a cross-entropy, as text; None where they are.

    Those count whose place in what the node made has a part in the target: others are masked, or ignored.
    """
    values, counts = evidence.array(key), array(evidence.replay.passed[node].upstream[0]) != 0
    if counts.ndim and counts.shape == values.shape[: counts.ndim]:
        values = values[counts]
    if outside := _outside_of_0_to_1(values):
        return f"go from {outside}; expected 0 to 1"
    sums = values.sum(axis=-1) if node.op == "SoftmaxCrossEntropyWithLogits" and values.size else np.ones(1)
    worst = sums[np.argmax(np.abs(sums - 1))]
    return f"add up to {number(worst)} in an example; expected 1" if abs(worst - 1) > _ROUNDED else None


def _outside_of_0_to_1(values: np.ndarray) -> str | None:
    """From where to where values go, as text, if they leave 0 to 1 by more than rounding; else None."""
    if not values.size or np.iscomplexobj(values) or (values.min() >= -_EDGE and values.max() <= 1 + _EDGE):
        return None
    return f"{number(values.min())} to {number(values.max())}"


def _assigned_inside(evidence: Evidence) -> Story | None:
    """A variable that is changed inside the tape by what was made from it, and read again: the write is no path."""
    if not is_handle(evidence.trace.values[evidence.source].dtype):
        return None
    for write in evidence.trace.users.get(evidence.source, ()):
        if not write.op.startswith("Assign") or not evidence.depends.intersection(write.inputs[1:]):
            continue
        reads = [node for node in evidence.trace.users[evidence.source] if node.op == "ReadVariableOp"]
        if any(node.index > write.index and node in evidence.replay.passed for node in reads):
            return Story("assigned_inside", write, write.inputs[1])
    return None


def _broadcast_loss(evidence: Evidence) -> Story | None:
    """A column of predictions less a row of labels is a matrix, and its mean no loss."""
    for node in _passed(evidence, "Sub", "SquaredDifference"):
        shapes = [tuple(evidence.trace.values[key].shape) for key in node.inputs]
        column = next((shape for shape in shapes if len(shape) == 2 and shape[1] == 1), None)
        row = next((shape for shape in shapes if len(shape) == 1), None)
        made = tuple(evidence.trace.values[node.outputs[0]].shape)
        if column and row and column[0] == row[0] > 1 and made == (row[0], row[0]):
            return Story("broadcast_loss", node, node.inputs[0], values={"shapes": shapes, "made": made})
    return None


def _symmetric_units(evidence: Evidence) -> Story | None:
    gradient, value = array(evidence.gradient), evidence.array(evidence.source)
    if gradient.ndim != 2 or gradient.shape[1] < 2 or gradient.shape != value.shape or not gradient.any():
        return None
    if np.ptp(gradient, axis=1).any() or np.ptp(value, axis=1).any():
        return None
    products = [node for node in evidence.users(evidence.source) if node.op == "MatMul"]
    behind = [node for node in evidence.replay.passed if node.op in _UNITS]
    if not products or not behind:
        return None
    return Story("symmetric_units", products[0], evidence.source)


def remarks(evidence: Evidence) -> tuple[str, ...]:
    """Return what to add about how a gradient was computed, a tuple of keys of `REMARKS`."""
    twice = evidence.replay.is_second and any(_takes_moments(evidence, node) for node in evidence.trace.nodes)
    is_wrong = any(_is_wrong_in_tensorflow(evidence, node) for node in _passed(evidence, *_WRONG, *_STITCHES))
    return (*(("moments_twice",) if twice else ()), *(("wrong_in_tensorflow",) if is_wrong else ()))


def _is_wrong_in_tensorflow(evidence: Evidence, node: Node) -> bool:
    """Whether TensorFlow's gradient of an operation is not its derivative, as ci/derivative_audit/RESULTS.md has it."""
    if node.op in _WRONG:
        return True
    indices = [evidence.array(key).ravel() for key in node.inputs[: len(node.inputs) // 2]]
    return len(np.unique(np.concatenate(indices))) < sum(map(len, indices))


def _takes_moments(evidence: Evidence, node: Node) -> bool:
    """Whether a node is the squared distance from a mean whose gradient is stopped, as in tf.nn.moments."""
    if node.op != "SquaredDifference" or node.inputs[0] not in evidence.depends:
        return False
    producer = evidence.trace.producer
    stop = producer.get(node.inputs[1])
    mean = producer.get(stop.inputs[0]) if stop is not None and stop.op == "StopGradient" else None
    if mean is None or mean.op != "Mean":
        return False
    of, to = mean.inputs[0], node.inputs[0]  # a variable's value is read anew for each use
    return of == to or read_from(evidence, of) == read_from(evidence, to) is not None
