"""Gradients that are finite and miss a derivative at a special point: zeros, meeting kinks, equal eigenvalues, roots.

`SPECIAL_POINTS` is what the audit of TensorFlow's derivatives knows: what such
a point is called, and by which recorded values an operation is at it. The rows of these causes have the operations. A
rule alone accuses nobody. Only where differences of the target, to both sides, agree with each other and not with the
gradient is it told.
"""

from collections.abc import Iterable

from tapelab.explain.causes import VALUES
from tapelab.explain.ground.measure import array, rounding
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node

import numpy as np

_STEP = 0.01  # of the source's size, or of 1: of the four steps, the largest
_OFF = 0.05  # relative: far more than float32 and differences leave
_TRIES = 2  # directions; each costs four evaluations of the target


def _has_zero(evidence: Evidence, node: Node) -> bool:
    return bool((evidence.array(node.inputs[0]) == 0).any())


def _at_kink(evidence: Evidence, node: Node) -> bool:
    x = evidence.made_of(node)
    return bool((x[0] == (x[1] if len(x) > 1 else 0.0)).any())


def _equal(evidence: Evidence, node: Node) -> np.ndarray:
    """Which eigenvalues or singular values are equal to which others up to rounding: a mask."""
    values = evidence.array(node.outputs[0])
    gaps = np.abs(values[..., :, None] - values[..., None, :])
    is_equal = gaps <= 8 * rounding(evidence.trace.values[node.outputs[0]]) * np.abs(values).max(initial=0.0)
    return is_equal & ~np.eye(values.shape[-1], dtype=bool)


def _is_root_without_cotangent(evidence: Evidence, node: Node) -> bool:
    """Whether a root is taken at 0 and gets 0 from above: TensorFlow takes 0 times its infinite slope to be 0."""
    above = evidence.replay.passed[node].upstream[0]
    return above is not None and bool(((array(above) == 0) & (evidence.array(node.inputs[0]) == 0)).any())


SPECIAL_POINTS = {
    "zero_coefficient": lambda evidence, node: node.inputs[0] in evidence.depends and _has_zero(evidence, node),
    "equal_eigenvalues": lambda evidence, node: bool(_equal(evidence, node).any()),
    "product_with_zero": _has_zero,
    "kinks_meet": _at_kink,
    "root_at_zero": _is_root_without_cotangent,
}


def story(evidence: Evidence) -> Story | None:
    """Look for a derivative that the gradient misses at a special point.

    Args:
        evidence: an `Evidence`, of a gradient that is finite.

    Returns:
        A `Story`, or None.
    """
    for code, holds in SPECIAL_POINTS.items():
        met = [node for op in VALUES[code].operations.split() for node in evidence.replay.nodes_of.get(op, ())]
        found = [node for node in met if not evidence.depends.isdisjoint(node.inputs) and holds(evidence, node)]
        if code == "kinks_meet" and len(found) < 2:
            continue
        if found:
            # Two rows may hold, and one of them be innocent: what is told is that the gradient is off, and where from.
            nodes = [node for node in evidence.replay.passed if not evidence.depends.isdisjoint(node.inputs)]
            if not _is_missed(evidence, nodes, code == "root_at_zero"):
                return None
            node = min(found, key=lambda one: one.index)
            code = "wrong_at_zero" if node.op == "Cumprod" and not node.is_backward else code
            values = {"at": evidence.array(node.inputs[0]) == 0} if code == "root_at_zero" else {}
            return Story(code, node, node.inputs[0], values=values)
    return None


def undefined_eigenvectors(evidence: Evidence) -> Story | None:
    """Look for equal eigenvalues or singular values in whose vectors the gradient is not defined.

    It is defined where the target stays as it is when these vectors turn. TensorFlow leaves the turn out.

    Args:
        evidence: an `Evidence`.

    Returns:
        A `Story`, or None.
    """
    spectral = VALUES["equal_eigenvalues"].operations.split()
    for node in [node for op in spectral for node in evidence.replay.nodes_of.get(op, ())]:
        passed = evidence.replay.passed[node]
        if node.inputs[0] not in evidence.depends:
            continue
        values, *vectors = map(evidence.array, node.outputs)
        gradients = [array(one) for one in passed.upstream[1:]]
        if not all(one.ndim > 1 and one.size for one in vectors + gradients):  # only the values were computed
            continue
        count, largest = values.shape[-1], max(np.abs(one).max() for one in gradients)
        turns = np.sum([_turn(*both)[..., :count, :count] for both in zip(vectors, gradients, strict=True)], axis=0)
        turned = np.abs(turns[_equal(evidence, node)]).max(initial=0.0)
        if turned > 1e3 * rounding(evidence.trace.values[node.outputs[0]]) * largest:
            return Story("degenerate_eigenvalues", node, node.inputs[0])
    return None


def _turn(vectors: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """How the target changes where columns turn into each other: an antisymmetric matrix, 0 on the diagonal."""
    product = np.swapaxes(vectors.conj(), -1, -2) @ gradient
    return product - np.swapaxes(product.conj(), -1, -2)


def _is_missed(evidence: Evidence, nodes: Iterable[Node], at_edge: bool) -> bool:
    """Whether differences to both sides agree along each of some directions, and in one of them not with the gradient.

    At the edge of where the target is defined there is one side alone.
    A custom gradient, and a function that could not be taken apart, is not what it computes: nothing is said.
    """
    if any(node.is_custom or node.is_opaque for node in nodes):
        return False
    gradient, x = array(evidence.gradient), evidence.array(evidence.source)
    if gradient.dtype not in (np.float32, np.float64) or gradient.shape != x.shape:
        return False
    generator = np.random.default_rng(0)
    missed = False
    for _ in range(_TRIES):
        direction = generator.uniform(0.5, 1.0, x.shape) * generator.choice([1.0, 1.0 if at_edge else -1.0], x.shape)
        try:
            verdict = _differs(evidence, direction, float(np.sum(gradient * direction)), x, at_edge)
        except ValueError:
            return False
        if verdict is None:
            return False
        missed = missed or verdict
    return missed


def _differs(evidence: Evidence, direction: np.ndarray, slope: float, x: np.ndarray, at_edge: bool) -> bool | None:
    """Whether the target's slope along a direction is another; None where there is none, or it is not known."""
    step = _STEP * max(1.0, float(np.abs(x).max(initial=0.0)))
    here = evidence.target_sum()
    noise = 20 * rounding(evidence.trace.values[evidence.target]) * max(abs(here), 1.0) / step
    central, bends = [], []
    for h in (step, step / 2):
        above, below = (evidence.target_moved(side * h * direction) for side in (1, -1))
        if at_edge:
            if np.isfinite(below):
                return None  # not at the edge
            below = 2 * here - above  # as if it went on straight
        central.append((above - below) / (2 * h))
        bends.append(abs(above - 2 * here + below) / h)  # by how much the slopes to both sides differ
    # What is left of the error falls with the square of the step, to one side with the step.
    found = 2 * central[1] - central[0] if at_edge else (4 * central[1] - central[0]) / 3
    size = max(abs(found), abs(slope))
    if not np.isfinite([*central, *bends]).all() or abs(central[1] - central[0]) > _OFF * size + noise:
        return None
    if bends[1] > 0.7 * bends[0] and bends[1] > 0.2 * _OFF * size + noise:  # a kink's does not shrink with the step
        return None
    return abs(found - slope) > _OFF * size + 5 * noise
