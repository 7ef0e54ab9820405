"""The story of a gradient that is zero: of all its elements, or of some."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from tapelab.explain.ground.measure import Gradient, array, rms, rounding
from tapelab.explain.values import magnitude, mechanisms, not_finite
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import ADDING, PASSING, Evidence, slopes
from tapelab.explain.values.rerun.nodes import Node
from tapelab.graphs.operations import with_fact
from tapelab.graphs.walks import reachable

import numpy as np
import tensorflow as tf

# Activations that are flat somewhere: from a bound on, or far out.
RELUS, _SATURATING = (with_fact("unit") & with_fact(fact) for fact in ("cuts", "saturates"))
_NEXT_TO_FLAT = 1e-3  # a slope; the gradient of a saturated activation is a thousandth, or less
_MUCH = 0.25  # of what is quantised lies outside the range: the range does not fit
# Nothing is wrong where a gradient is zero for one of these reasons.
BENIGN = frozenset({"no_effect", "stationary", "hinge_inactive", "not_selected", "not_maximum"})

# What is worth a note where some elements are zero.
_NOTES = frozenset({"dead_relu", "not_selected", "not_maximum", "clipped", "multiplied_by_zero"})


def without_effect(evidence: Evidence) -> Story | None:
    """Tell whether a gradient is 0 up to rounding because what follows takes away whatever the source adds.

    What is multiplied is another matter: there the sum itself gets a gradient, and the source alone gets none.
    """
    users = [node for node in _behind(evidence, evidence.source) if node in evidence.replay.passed]
    if not users or any(not _only_adds(evidence, node) for node in users):
        return None
    upstream = [array(one) for node in users for one in evidence.replay.passed[node].upstream[:1] if one is not None]
    reached = max((np.abs(one).max(initial=0.0) for one in upstream), default=0.0)
    gradient = np.abs(array(evidence.gradient)).max(initial=0.0)
    if not np.isfinite(reached) or gradient > 1e-4 * reached or not reached:
        return None
    # Terms that cancel up to their rounding: no step of the source is needed to see that.
    terms = sum(np.abs(one).sum() for one in upstream) / max(array(evidence.gradient).size, 1)
    if gradient > 10 * rounding(evidence.gradient) * terms and evidence.target_changes() is not False:
        return None
    return Story("no_effect", users[0], evidence.source, is_alarm=False)


def _only_adds(evidence: Evidence, node: Node) -> bool:
    # What is added here and subtracted there, as in the log-density of a sample, is another story.
    last = node.inputs[-1]
    is_last = evidence.source in (last, mechanisms.read_from(evidence, last))
    return node.op in ADDING and not (node.op == "Sub" and is_last)


def _behind(evidence: Evidence, key: int) -> Iterator[Node]:
    """The nodes that use a value, or what it was handed on as, such as a bias in another shape, less the mean."""
    shape = evidence.array(key).shape
    for node in evidence.users(key):
        is_step = node.op in ADDING and evidence.array(node.outputs[0]).shape == shape
        yield from _behind(evidence, node.outputs[0]) if is_step or node.op in PASSING else (node,)


def all_zero(evidence: Evidence) -> Story:
    """Tell why every element of a gradient is zero.

    Args:
        evidence: an `Evidence`.

    Returns:
        A `Story`.
    """
    origins = evidence.origins(lambda part, key: _is_zero(evidence, part, key))
    if not origins:
        return _cancelled(evidence)
    passed = evidence.replay.passed

    def strength(one: tuple[Node, int]) -> float:
        return max((rms(array(up)) for up in passed[one[0]].upstream if up is not None), default=0.0)

    node, position = max(origins, key=strength)
    if (overflow := _beyond_overflow(evidence, node)) is not None:
        return overflow
    code = mechanisms.of_zero(evidence, node, position)
    if code == "saturated" and not _is_flat_far_out(evidence, node):
        # What came here was too small already: by many steps of one kind, or else the dtype's end is the cause.
        story = magnitude.story(evidence, 0.0)
        return story if story.code == "vanishing" else Story("underflow", node, node.inputs[position])
    if code in ("constant_output", "stationary"):
        code = _constant_or_stationary(evidence, node, position, code)
    if code == "unknown_zero":
        return Story("unexplained", node, node.inputs[position], is_alarm=False, certain=False)
    if code == "piecewise_linear":  # of which what is to blame is the forward operation
        near = (evidence.maker(node.inputs[1]), *evidence.users(node.inputs[1]))
        node, position = next((one for one in near if one is not None and node.op == f"{one.op}Grad"), node), 0
    silenced = _silenced_before(evidence, node, position, code)
    return silenced or Story(code, node, node.inputs[position], is_alarm=code not in BENIGN)


def _is_flat_far_out(evidence: Evidence, node: Node) -> bool:
    """Whether an activation is next to flat wherever a gradient arrives; else its slope alone makes no zero."""
    slope = slopes(evidence.trace, node)[array(evidence.replay.passed[node].upstream[0]) != 0]
    return node.op in ("Softmax", "LogSoftmax") or np.abs(slope).max(initial=0.0) < _NEXT_TO_FLAT


def _constant_or_stationary(evidence: Evidence, node: Node, position: int, code: str) -> str:
    """Which of the two a target is at whose contributions add up to zero at a node: the source is moved.

    A zero may come of rounding beside a kink, where the target is steep to both sides: that is neither.
    """
    changes = evidence.target_changes()
    if changes is None:
        return code
    if changes:
        return "unknown_zero" if code == "constant_output" and evidence.target_is_kinked() else "stationary"
    shrunk = any(mechanisms.shrunk_to_zero(evidence, key) for key in (node.inputs[position], *node.outputs))
    return "underflow" if shrunk else "constant_output"


def _silenced_before(evidence: Evidence, node: Node, position: int, code: str) -> Story | None:
    """The `Story` of the first activation that silenced what comes into a node; None where none before it did.

    Behind a layer whose units are all dead or saturated, values come from biases alone: they are 0, or the same for
    every example. A node that is flat at such values may be flat by itself too, so the cause is certain at 0 only.
    """
    if code in ("dead_relu", "at_kink", "saturated", "constant_output"):
        keys = [node.inputs[position]]
    elif code in ("zero_input", "zero_weights"):
        others = (key for i, key in enumerate(node.inputs) if i != position)
        keys = [key for key in others if evidence.measure.zero(evidence.value(key))]
    else:
        return None
    by_zeros = _flat_before(evidence, keys, evidence.measure.zero)
    flat = sorted({*by_zeros, *_flat_before(evidence, keys, _is_same_for_all)}, key=lambda one: one.index)
    if not flat:
        return None
    is_flat_itself = node.op in RELUS | _SATURATING and _is_flat(evidence, node)
    later = [one for one in (*flat[1:], *([node] if is_flat_itself else ())) if one is not flat[0]]
    # The last that stays flat whatever the first gives: curing the first would change nothing.
    blamed = next((one for one in reversed(later) if _is_flat_anyway(evidence, one, flat[0])), flat[0])
    code = "dead_relu" if blamed.op in RELUS else "saturated"
    if blamed is not flat[0]:
        values = {"waits": flat[0].layer or flat[0].name}
        return Story(code, blamed, blamed.inputs[0], values=values)
    return Story(code, blamed, blamed.inputs[0], certain=blamed in by_zeros)


def _is_flat_anyway(evidence: Evidence, node: Node, first: Node) -> bool:
    """Whether an activation stays flat if one before it gave something else: then curing that one changes nothing."""
    generator = np.random.default_rng(0)

    def other(tensor: tf.Tensor) -> tf.Tensor:
        return tf.cast(generator.uniform(-1.0, 1.0, tensor.shape), tensor.dtype)

    moved = evidence.rerun_from(first.outputs[0], other)
    return node.inputs[0] in moved and not slopes(evidence.trace, node, moved).any()


def _flat_before(evidence: Evidence, keys: Iterable[int], is_silent: Callable[[tf.Tensor | None], bool]) -> list[Node]:
    """The activations that are flat for all that they get, among the nodes that lead to some values by silent ones."""
    producer = evidence.trace.producer

    def before(key: int) -> Iterable[int]:
        return producer[key].inputs if key in producer and is_silent(evidence.value(key)) else ()

    silent = [producer[key] for key in reachable(keys, before) if key in producer and is_silent(evidence.value(key))]
    return [node for node in dict.fromkeys(silent) if node.op in RELUS | _SATURATING and _is_flat(evidence, node)]


def _is_flat(evidence: Evidence, node: Node) -> bool:
    """Whether an activation has slope 0 everywhere, and not because all that it gets is 0, at a kink."""
    return evidence.array(node.inputs[0]).any() and not slopes(evidence.trace, node).any()


def _is_same_for_all(tensor: tf.Tensor | None) -> bool:
    """Whether a value is 0, or the same for all of several examples up to rounding."""
    values = array(tensor)
    if values.ndim < 2 or len(values) < 2:
        return not values.any()
    return bool(np.abs(values - values[0]).max(initial=0.0) <= 1e-5 * np.abs(values).max(initial=0.0))


def _beyond_overflow(evidence: Evidence, node: Node) -> Story | None:
    """The `Story` of an overflow on the way to a node, behind which an infinity became 0; None where there is none.

    An infinity that was put in, such as a mask of -inf, is no overflow.
    """
    producer, values = evidence.trace.producer, evidence.trace.values

    def of_infinity(key: int) -> list[int]:  # what may have made a zero
        made_zero = key in producer and not evidence.bad(key) and not evidence.array(key).all()
        return [one for one in producer[key].inputs if values[one].dtype.is_floating] if made_zero else []

    for key in reachable([one for one in (*node.inputs, *node.outputs) if values[one].dtype.is_floating], of_infinity):
        if evidence.bad(key):
            story = not_finite.of_value(evidence, key)
            if story.code == "overflow":
                return dataclasses.replace(story, then=(*story.then, (node, "made 0 of it")))
    return None


def _is_zero(evidence: Evidence, part: Gradient, key: int) -> bool:
    if evidence.measure.zero(part):
        return True
    values = evidence.concerned(part, key)
    return bool(values.size) and not values.any()


def _cancelled(evidence: Evidence) -> Story:
    """Contributions add up to zero: because the target is constant, or because it is stationary here."""
    node, changes = _cancelling(evidence), evidence.target_changes()
    if node is None or changes is None or (changes and evidence.target_is_kinked()):
        return Story("unexplained", node, node and node.inputs[0], is_alarm=False, certain=False)
    return Story("stationary" if changes else "constant_output", node, node.inputs[0], is_alarm=not changes)


def _cancelling(evidence: Evidence) -> Node | None:
    """The node at which contributions that are not zero add up to zero."""
    parts = evidence.replay.parts

    def behind(key: int) -> list[int]:
        return [made for node, _ in parts.get(key, ()) if node is not None for made in node.outputs]

    for key in reachable([evidence.source], behind):
        alive = [node for node, part in parts.get(key, ()) if node is not None and not evidence.measure.zero(part)]
        if len(alive) > 1:
            return alive[0] if alive[0].op != "ReadVariableOp" else next(iter(evidence.users(key)), None)
    return None


def partly_zero(evidence: Evidence) -> Story:
    """Tell why some elements of a gradient are zero.

    Args:
        evidence: an `Evidence`.

    Returns:
        A `Story`; its `is_alarm` is True where a quantisation cuts much of its input off.
    """
    lossy = [(_lost(evidence, node), node) for node in evidence.replay.passed if evidence.depends & set(node.inputs)]
    quantised = [one for one in lossy if one[1].op.startswith("FakeQuant") and one[0] > _MUCH]
    share, node = max(quantised or lossy, key=lambda one: one[0], default=(0.0, None))
    if node is None or share == 0:
        return Story("exists", None, is_alarm=False)
    if quantised:
        return Story("clipped", node, node.inputs[0])
    code = mechanisms.of_zero(evidence, node, 0)
    is_noted = code in _NOTES and not (code == "clipped" and node.op in RELUS)  # a ReLU that cuts some off works
    return Story("exists", node, node.inputs[0], values={"note": code} if is_noted else {}, is_alarm=False)


def _lost(evidence: Evidence, node: Node) -> float:
    """By how much the share of zeros is larger in what a node passed on than in its cotangent."""
    passed = evidence.replay.passed[node]
    if not passed.upstream or passed.upstream[0] is None:
        return 0.0
    above = array(passed.upstream[0])
    worst = 0.0
    for key, part in zip(node.inputs, passed.downstream, strict=False):
        below = array(part)
        if key not in evidence.depends or not below.any() or not above.size:
            continue  # what passes nothing on, such as the product with a first state of 0, leaves the other ways alone
        if above.shape != below.shape and len(evidence.replay.parts[key]) > 1:
            continue  # other slices fill these zeros
        worst = max(worst, float((below == 0).mean() - (above == 0).mean()))
    return worst
