"""The story of a value that is not finite: where it began, by which mechanism, and what happened to it afterwards.

Forwards, the story follows a bad value back to what first made it bad. Backwards, it follows a bad cotangent from the
source to the node where it became bad, and asks there first whether a forward value had been bad before.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from tapelab.explain.ground.measure import array
from tapelab.explain.values import mechanisms
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node
from tapelab.graphs.operations import known, with_fact
from tapelab.graphs.walks import reachable

import numpy as np

_SELECTIONS, _SLICES = with_fact("selects"), with_fact("parts")
# What cuts a part out: its backward pass fills the rest with zeros.
_BY_ZERO = frozenset({"log_of_zero", "division_by_zero", "zero_over_zero", "root_at_zero"})
_HUGE = 1e30  # what the lowest number of float32 leaves, scaled and added up


@dataclasses.dataclass(frozen=True)
class Story:
    """What happened.

    Attributes:
        code: a key of `VALUES`.
        node: the `Node` to blame, or None.
        key: of the value to blame, or None: of the node's input, or what came in bad.
        then: the nodes that carried the trouble on, a tuple of (node, what happened there).
        values: named numbers for the sentence.
        is_alarm: whether something is wrong.
        certain: whether the cause is certain.
    """

    code: str
    node: Node | None
    key: int | None = None
    then: tuple = ()
    values: dict = dataclasses.field(default_factory=dict)
    is_alarm: bool = True
    certain: bool = True


def of_value(evidence: Evidence, key: int) -> Story:
    """Tell where a forward value that is not finite comes from.

    Args:
        evidence: an `Evidence`.
        key: of the value.

    Returns:
        A `Story`.
    """
    measure = evidence.measure
    is_nan = measure.nan(evidence.value(key))
    found = evidence.roots(key, measure.nan if is_nan else measure.not_finite)
    node, root = min(found, key=lambda one: -1 if one[0] is None else one[0].index)
    if node is None:
        return _came_in(evidence, root)
    story = _of_maker(evidence, node)
    if is_nan and story.code == "overflow":  # what overflowed first need not be what became NaN
        makers = [one for one, _ in evidence.roots(key, measure.not_finite) if one is not None]
        first = min((one for one in makers if one.op == story.node.op), key=lambda one: one.index, default=story.node)
        return story if first is story.node else _from_finite(evidence, first, story.then[-1:])
    return story


def _of_maker(evidence: Evidence, node: Node) -> Story:
    """The story of a node that made something bad of what is not bad in the same way."""
    infinite = [one for one in node.inputs if evidence.bad(one)]
    if not infinite:
        return _from_finite(evidence, node)
    return _from_infinities(evidence, node, infinite)


def _from_finite(evidence: Evidence, node: Node, then: tuple[tuple[Node, str], ...] = ()) -> Story:
    at = _bad_outputs(evidence, node)
    code, key = mechanisms.of_infinite(evidence, node, at)
    if code == "underflow":
        return _got_zero(evidence, node, then)
    if code in ("division_by_zero", "zero_over_zero", "overflow") and node.event.place.in_backward:
        makers = (evidence.maker(one) for one in node.inputs)
        root = next((one for one in makers if one is not None and one.op == "Sqrt"), None)
        if root is not None and not evidence.array(root.inputs[0]).all():  # the derivative of a root divides by it
            code, key, node, then = "root_at_zero", root.inputs[0], root, ((node, "divided by it"), *then)
    if code == "unexplained":
        return Story(code, node, certain=False)
    lost = mechanisms.lost_epsilon(evidence, node) if code in _BY_ZERO else None
    if lost is not None:
        return Story("epsilon_lost", lost, lost.inputs[0], ((node, "got 0"), *then))
    hidden = _hidden(evidence, node) if code == "overflow" else None
    if hidden is not None:
        return of_value(evidence, hidden)
    return Story(code, node, key, then)


def _got_zero(evidence: Evidence, node: Node, then: tuple[tuple[Node, str], ...]) -> Story:
    shrunk = mechanisms.shrunk_to_zero(evidence, node.inputs[-1])
    return Story("underflow", shrunk, shrunk.inputs[0], ((node, "got 0"), *then))


def _hidden(evidence: Evidence, node: Node) -> int | None:
    """Find what is not finite where a maximum over a window made huge numbers of it, as max pooling does of NaN.

    Returns:
        The key of what is not finite; None where the numbers that overflowed at a node came about otherwise.
    """
    producer = evidence.trace.producer

    def made_of(key: int) -> Iterable[int]:
        is_huge = key in producer and np.abs(evidence.array(key)).max(initial=0.0) > _HUGE
        return producer[key].inputs if is_huge and not evidence.bad(key) else ()

    found = (key for key in reachable(node.inputs, made_of) if evidence.bad(key))
    return next((key for key in found if any(known(one.op).has("chooses") for one in evidence.users(key))), None)


def _bad_outputs(evidence: Evidence, node: Node) -> np.ndarray | np.bool_ | None:
    """Where the first output is bad, if it has the shape of the first input."""
    made = array(evidence.trace.values[node.outputs[0]])
    return ~np.isfinite(made) if node.inputs and made.shape == evidence.array(node.inputs[0]).shape else None


def _from_infinities(evidence: Evidence, node: Node, infinite: Sequence[int]) -> Story:
    """A node made NaN out of infinities: blame what made these, unless somebody had put them in."""
    measure = evidence.measure
    roots = [one for key in infinite for one in evidence.roots(key, measure.not_finite)]
    made = sorted((one for one in roots if one[0] is not None), key=lambda one: one[0].index)
    if made:
        root = made[0][0]
        story = _from_finite(evidence, root, ((node, "made NaN of it"),))
        code = story.code
        if node.op in mechanisms.PRODUCTS and code not in ("underflow", "epsilon_lost"):  # what vanished is no mask
            zeros = [key for key in node.inputs if not evidence.bad(key) and np.any(evidence.array(key) == 0)]
            if zeros and not evidence.is_learned(zeros[0]):
                code = "masked_by_zero"
            elif zeros and code == "log_of_zero":  # p log p has a limit at 0; elsewhere the infinity is the mistake
                code = "zero_times_infinity"
        return dataclasses.replace(story, code=code)
    came_in = [key for _, key in roots if key == evidence.source or measure.nan(evidence.value(key))]
    variables = [key for _, key in roots if evidence.is_learned(key)]
    # No mask: it went through a product before it met this node.
    factors = [
        key for _, key in roots if any(one is not node and one.op in mechanisms.PRODUCTS for one in evidence.users(key))
    ]
    if came_in or variables or factors:
        return _came_in(evidence, [*came_in, *variables, *factors][0])
    # An infinity that was put in on purpose, such as a mask of -inf, met this node.
    code, _ = mechanisms.of_infinite(evidence, node)
    if code == "all_masked" and not np.isneginf(evidence.array(infinite[0])).all(-1).any():
        return of_value(evidence, infinite[0])  # an infinity of the other sign
    if node.op in mechanisms.PRODUCTS:
        code = "zero_times_infinity"
    return Story(code, node, infinite[0])


def _came_in(evidence: Evidence, key: int) -> Story:
    users = evidence.users(key)
    return Story("source_not_finite", users[0] if users else None, key)


def of_cotangent(evidence: Evidence) -> Story:
    """Tell where a gradient that is not finite comes from.

    Args:
        evidence: an `Evidence` whose gradient is not finite.

    Returns:
        A `Story`.
    """
    origins = evidence.origins(lambda part, _: evidence.measure.not_finite(part))
    stories = [_at_origin(evidence, *one) for one in origins]
    if not stories:
        return Story("unexplained", None, certain=False)
    overruling = [one for one in stories if one.code in ("unselected_branch", "masked_by_zero")]
    return max(overruling or stories, key=lambda one: one.node.index if one.node else -1)


def _at_origin(evidence: Evidence, node: Node, position: int) -> Story:
    """The story of one node at which good cotangents became bad."""
    passed = evidence.replay.passed[node]
    mask = ~np.isfinite(array(passed.downstream[position]))
    known = [key for key in (*node.inputs, *node.outputs) if _is_bad_there(evidence, key, mask)]
    turned = ((node, "turned the gradient bad"),)
    if known:
        story = of_value(evidence, known[0])
        story = dataclasses.replace(story, then=(*story.then, *turned))
    else:
        value = evidence.array(node.inputs[position])
        code, key = mechanisms.of_infinite(evidence, node, mask if value.shape == mask.shape else None)
        values = {"at": mask}
        if code == "overflow" and not _may_overflow(evidence, node, position):
            code = "unexplained"
        if code == "overflow":
            dtype = passed.downstream[position].dtype
            values |= {"is_backward": True, "dtype": dtype.name}
        story = Story(code, node, key, values=values, certain=code != "unexplained")
        if code == "underflow":
            story = _got_zero(evidence, node, turned)
    maker = _zero_maker(evidence, node, mask)
    if maker is None or story.code in ("source_not_finite", "custom_gradient"):
        return story
    if maker.op in _SELECTIONS:
        return dataclasses.replace(story, code="unselected_branch", then=(*story.then, (maker, "gave it gradient 0")))
    zeros = [key for key in maker.inputs if np.any(evidence.array(key) == 0)]
    if maker.op in ("Mul", "MulNoNan") and not all(map(evidence.is_learned, zeros)):
        return dataclasses.replace(story, code="masked_by_zero", then=(*story.then, (maker, "multiplied by 0")))
    if maker.op in _SLICES:
        values = {**story.values, "unused": True}
        return dataclasses.replace(story, then=(*story.then, (maker, "left it out")), values=values)
    return story


def _may_overflow(evidence: Evidence, node: Node, position: int) -> bool:
    """Whether a node passed on an infinity, or had numbers so large or small that NaN may come of one."""
    passed = evidence.replay.passed[node]
    if np.isinf(array(passed.downstream[position])).any():
        return True
    met = [evidence.value(key) for key in (*node.inputs, *node.outputs)] + list(passed.upstream)
    met = [np.abs(array(one)) for one in met if one is not None and (one.dtype.is_floating or one.dtype.is_complex)]
    edge = float(passed.downstream[position].dtype.real_dtype.max) ** 0.25
    return any(((one > edge) | ((one < 1 / edge) & (one > 0))).any() for one in met)


def _is_bad_there(evidence: Evidence, key: int, mask: np.ndarray | np.bool_) -> bool:
    """Whether a forward value is bad where a cotangent is; of another shape, anywhere."""
    bad = ~np.isfinite(evidence.array(key))
    return bool((bad & mask).any() if bad.shape == mask.shape else bad.any())


def _zero_maker(evidence: Evidence, node: Node, bad: np.ndarray | np.bool_) -> Node | None:
    """From a node whose cotangent holds zeros where it became bad, towards the target: the node that made these zeros.

    Args:
        evidence: an `Evidence`.
        node: the origin.
        bad: where the contribution is bad.

    Returns:
        A `Node`, or None where the cotangent is not zero there.
    """
    upstream = [one for one in evidence.replay.passed[node].upstream if one is not None]
    here = array(upstream[0]) == 0
    where = here & bad if here.shape == bad.shape else here
    if not where.any():
        return None
    seen = set()
    while node not in seen:
        seen.add(node)
        parts = (part for key in node.outputs for part in evidence.replay.parts.get(key, ()))
        following = [(other, part) for other, part in parts if other in evidence.replay.passed]
        if not following:
            return None
        after, part = max(following, key=lambda one: evidence.measure.share_of_zeros(one[1]))
        if after.op in _SELECTIONS:
            return after
        above = [array(one) for one in evidence.replay.passed[after].upstream if one is not None]
        same = [one for one in above if one.shape == where.shape == array(part).shape]
        if same:
            if not ((same[0] == 0) & where).any():
                return after
            where = where & (same[0] == 0)
        else:
            share = max((float((one == 0).mean()) for one in above if one.size), default=0.0)
            if evidence.measure.share_of_zeros(part) > share and after.op not in ("Reshape", "Identity", "Sum", "Mean"):
                return after
            where = above[0] == 0 if above else where
        node = after
    return None
