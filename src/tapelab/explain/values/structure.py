"""Gradients that are finite and still wrong, told from how the computation is built."""

from tapelab.explain.ground.measure import array
from tapelab.explain.ground.walks import reachable
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.graphs.operations import with_fact

import numpy as np

_CROSS_ENTROPIES, _UNITS = with_fact("cross entropy"), with_fact("unit")


def story(evidence: Evidence) -> Story | None:
    """Look for mistakes that leave a plausible number.

    Args:
        evidence: an `Evidence`.

    Returns:
        A `Story`, or None.
    """
    for rule in (_softmax_twice, _broadcast_loss, _symmetric_units):
        found = rule(evidence)
        if found is not None:
            return found
    return None


def equal_eigenvalues(evidence: Evidence) -> Story | None:
    """Look for equal eigenvalues or singular values in whose vectors the gradient is not defined.

    It is defined where the target stays as it is when these vectors turn. TensorFlow leaves the turn out.

    Args:
        evidence: an `Evidence`.

    Returns:
        A `Story`, or None.
    """
    for node, passed in evidence.replay.passed.items():
        if node.op not in ("SelfAdjointEigV2", "Svd") or node.inputs[0] not in evidence.depends:
            continue
        values, *vectors = map(evidence.array, node.outputs)
        gradients = [array(one) for one in passed.upstream[1:]]
        if not all(one.ndim > 1 and one.size for one in vectors + gradients):  # only the values were computed
            continue
        count, rounding = values.shape[-1], np.finfo(evidence.value(node.outputs[0]).dtype.as_numpy_dtype).eps
        turns = sum(_turn(*both)[..., :count, :count] for both in zip(vectors, gradients, strict=True))
        gaps = np.abs(values[..., :, None] - values[..., None, :])
        is_equal = (gaps <= 8 * rounding * np.abs(values).max()) & ~np.eye(count, dtype=bool)
        if np.abs(turns[is_equal]).max(initial=0.0) > 1e3 * rounding * max(np.abs(one).max() for one in gradients):
            return Story("degenerate_eigenvalues", node, node.inputs[0])
    return None


def _turn(vectors, gradient):
    """How the target changes where columns turn into each other: an antisymmetric matrix, 0 on the diagonal."""
    product = np.swapaxes(vectors.conj(), -1, -2) @ gradient
    return product - np.swapaxes(product.conj(), -1, -2)


def _softmax_twice(evidence):
    for node in evidence.replay.passed:
        maker = evidence.maker(node.inputs[0]) if node.op in _CROSS_ENTROPIES else None
        if maker is not None and maker.op == "Softmax":
            return Story("softmax_twice", node, node.inputs[0])
    return None


def _broadcast_loss(evidence):
    """A column of predictions less a row of labels is a matrix, and its mean no loss."""
    for node in evidence.replay.passed:
        if node.op not in ("Sub", "SquaredDifference"):
            continue
        shapes = [tuple(evidence.trace.values[key].shape) for key in node.inputs]
        column = next((shape for shape in shapes if len(shape) == 2 and shape[1] == 1), None)
        row = next((shape for shape in shapes if len(shape) == 1), None)
        made = tuple(evidence.trace.values[node.outputs[0]].shape)
        if column and row and column[0] == row[0] > 1 and made == (row[0], row[0]):
            return Story("broadcast_loss", node, node.inputs[0], values={"shapes": shapes, "made": made})
    return None


def _symmetric_units(evidence):
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
    is_second = any(node.is_backward for node in evidence.replay.passed)
    twice = is_second and any(map(_takes_moments(evidence), evidence.trace.nodes))
    found = {
        "moments_twice": twice,
        "wrong_in_tensorflow": any(_is_wrong_in_tensorflow(evidence, node) for node in evidence.replay.passed),
        "partly_stopped": _is_partly_stopped(evidence),
    }
    return tuple(key for key, holds in found.items() if holds)


def _is_wrong_in_tensorflow(evidence, node):
    """Whether TensorFlow's gradient of an operation is not its derivative, as ci/derivative_audit/RESULTS.md has it."""
    if node.op not in ("DynamicStitch", "ParallelDynamicStitch"):
        return node.op in ("ImageProjectiveTransformV2", "ImageProjectiveTransformV3")
    indices = [evidence.array(key).ravel() for key in node.inputs[: len(node.inputs) // 2]]
    return len(np.unique(np.concatenate(indices))) < sum(map(len, indices))


def _is_partly_stopped(evidence):
    """Whether the learner's own tf.stop_gradient cuts one of the source's paths to the target."""
    trace, to_target = evidence.trace, _before(evidence.trace, evidence.replay.targets)
    return any(
        node.op == "StopGradient"
        and node.outputs[0] in to_target
        and node.line is not None
        and "stop_gradient" in node.line.text  # else it is within a function that the learner called
        and evidence.source in _before(trace, node.inputs)
        for node in trace.nodes
    )


def _before(trace, keys):
    """The keys of all tensors that some were made from, in whichever way, and of these."""
    return reachable(keys, lambda key: trace.producer[key].inputs if key in trace.producer else ())


def _origin(producer, node):
    """The key of a node's first input; of a variable's value, which is read anew for each use, of its handle."""
    maker = producer.get(node.inputs[0])
    return maker.inputs[0] if maker is not None and maker.op == "ReadVariableOp" else node.inputs[0]


def _takes_moments(evidence):
    """Return whether a node is the squared distance from a mean whose gradient is stopped, as in tf.nn.moments."""
    producer = evidence.trace.producer

    def is_it(node):
        if node.op != "SquaredDifference" or node.inputs[0] not in evidence.depends:
            return False
        stop = producer.get(node.inputs[1])
        mean = producer.get(stop.inputs[0]) if stop is not None and stop.op == "StopGradient" else None
        return mean is not None and mean.op == "Mean" and _origin(producer, mean) == _origin(producer, node)

    return is_it
