"""The gradient flow: how the norm of the cotangent changes from target to source, and what makes it so."""

import collections
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from tapelab.explain.ground.measure import Gradient, rms
from tapelab.explain.values import mechanisms
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import PASSING, Evidence
from tapelab.explain.values.rerun.nodes import Node
from tapelab.graphs.operations import with_fact

HUGE, SMALL = 1e5, 1e-6  # of the largest element; arbitrary, so that a large or small gradient alone is no alarm
_REPEATED = 3  # as many equal steps are growth or decay
_STEEP = 1e3  # the factor of one step that counts as steep, and 1 / it as flat
_SCALING = PASSING | (with_fact("reducing") & with_fact("keeps zeros"))  # as large or small as the learner wanted


class FlowStep(NamedTuple):
    """One step of the gradient flow: a node, and by which factor the cotangent's root mean square grew on the way back.

    The cotangent at its end is that with all other contributions. The factor is NaN where one of the two is 0.
    """

    node: Node
    factor: float


def flow(evidence: Evidence) -> list[FlowStep]:
    """Follow the largest contributions from the source to the target.

    The norms are those of the elements that depend on the source: elsewhere a cotangent may be large and not matter.

    Args:
        evidence: an `Evidence`.

    Returns:
        A list of `FlowStep`, the target's end first.
    """

    def size(tensor: Gradient | None, key: int) -> float:
        return rms(evidence.concerned(tensor, key))

    steps, key, replay = [], evidence.source, evidence.replay
    # All ways into the value add up: a skip connection doubles where each way alone keeps the size.
    after = size(replay.cotangent(key), key)
    while True:
        parts = [(node, size(part, key)) for node, part in replay.parts.get(key, ()) if node is not None]
        if not parts:
            return steps[::-1]
        # Of ways that are about as strong, the longest: a recurrent weight is used in every step.
        strongest = max(own for _, own in parts)
        node = min((one for one, own in parts if own >= 0.1 * strongest), key=lambda one: one.index)
        upstream = replay.passed[node].upstream
        sizes = [size(one, out) if one is not None else -1.0 for one, out in zip(upstream, node.outputs, strict=True)]
        before = max(sizes)
        steps.append(FlowStep(node, after / before if before and after else math.nan))
        key, after = node.outputs[sizes.index(before)], before


def story(evidence: Evidence, largest: float) -> Story:
    """Tell why a gradient is huge or tiny.

    Args:
        evidence: an `Evidence`.
        largest: the largest absolute value in the gradient.

    Returns:
        A `Story`; its `is_alarm` is False where no step stands out.
    """
    grows = largest > 1
    steps = [step for step in flow(evidence) if not math.isnan(step.factor)]
    groups = collections.defaultdict(list)
    for step in steps:
        groups[step.node.line, step.node.op].append(step)
    by_line = collections.defaultdict(float)
    for (line, _), members in groups.items():
        by_line[line] += _logs(members)
    candidates = [members for (_, op), members in groups.items() if op not in _SCALING]
    if not candidates:
        return Story("exists", None, is_alarm=False)
    pick = max if grows else min
    chosen = pick(candidates, key=lambda members: _logs(members) + 1e-3 * by_line[members[0].node.line])
    worst = pick(chosen, key=lambda step: step.factor)
    if abs(_logs([worst])) > max(math.log10(_STEEP), 0.5 * abs(_logs(chosen))):  # one step, and others of its kind
        chosen = [worst]
    # A recurrent layer has its operation for each step, and what comes after it once.
    layers = [step.node.layer for step in chosen]
    node, total = chosen[layers.index(max(layers, key=layers.count))].node, 10 ** _logs(chosen)
    values = {"count": len(chosen), "factor": 10 ** (_logs(chosen) / len(chosen)), "total": total}
    together = 10 ** by_line[node.line]
    if len(chosen) >= _REPEATED and (max(total, together) > 30 if grows else min(total, together) < 1 / 30):
        return Story("exploding" if grows else "vanishing", node, node.inputs[0], values=values)
    return _single(evidence, node, grows, values)


def _logs(steps: Iterable[FlowStep]) -> float:
    return sum(math.log10(step.factor) for step in steps)


def _single(evidence: Evidence, node: Node, grows: bool, values: dict[str, Any]) -> Story:
    if node.is_opaque:
        return Story("unexplained", node, certain=False)
    if node.op in ("SelfAdjointEigV2", "Svd", "Eig", "MatrixInverse", "MatrixSolve", "Cholesky"):
        code, key = mechanisms.of_infinite(evidence, node)
        return Story("ill_conditioned" if node.op == "Cholesky" else code, node, key, values=values)
    if grows and values["total"] > _STEEP:
        # A factor that the learner wrote, or data in their own unit, is no accident of the slope.
        scale = _scale(evidence, node) if node.op in ("Mul", "MatMul", "Conv2D", "RealDiv") else None
        is_scale = scale is not None and not evidence.is_learned(scale)
        key = node.inputs[0] if scale is None else scale
        return Story("exists" if is_scale else "steep", node, key, values=values, is_alarm=not is_scale)
    if not grows and values["total"] < 1 / _STEEP:
        if node.op in ("Sigmoid", "Tanh", "Softmax", "Erf", "LogSoftmax"):
            return Story("saturated", node, node.inputs[0], values=values)
        if node.op in ("Exp", "Prod"):
            return Story("underflow", node, node.inputs[0], values=values)
    return Story("exists", None, is_alarm=False)


def _scale(evidence: Evidence, node: Node) -> int:
    """The operand that scales the gradient."""
    return node.inputs[-1] if node.op == "RealDiv" else max(node.inputs, key=lambda key: rms(evidence.array(key)))
