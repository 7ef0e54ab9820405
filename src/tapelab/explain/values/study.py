"""Why is this gradient NaN, infinite, zero, huge or tiny? The answers for all sources of a tape, from one replay.

The interface for other modules::

    findings = study(tape, target, sources)      # one `ValueFinding` for each leaf of sources, in the order of tf.nest
    findings[0].symptom                          # one of SYMPTOMS
    findings[0].healthy                          # True, False, or None: cannot tell
    findings[0].code                             # a key of VALUES; "exists" where nothing is wrong
    findings[0].sentence, .op, .layer, .line, .fix, .certain
    findings[0].cotangent                        # the gradient that the tape returned: tensor, IndexedSlices or None
    findings[0].elements                         # which elements are bad: count, total, indices
    findings[0].chain                            # from the root to where the gradient turned bad, a tuple of `Link`
    findings[0].node                             # the origin as a `tapelab.explain.values.rerun.nodes.Node`, or None
    alike(findings)                              # groups of positions that share a cause

`target` and `sources` are as `explain` takes them; the tape is not used up, and nothing is recorded. A None gradient
has the symptom "none" and no cause here: `explain` names it.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.log import keys_of
from tapelab.explain.ground.measure import Measures, array
from tapelab.explain.values import magnitude, not_finite, special_points, structure, zeros
from tapelab.explain.values.fixes import repair
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.backward import Replay
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node, Trace
from tapelab.explain.values.sentences import blamed, sentence_of

import numpy as np
import tensorflow as tf
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too

SYMPTOMS = {
    "none": "there is no gradient",
    "nan": "it contains NaN",
    "inf": "it contains an infinity, and no NaN",
    "zero": "all of its elements are zero",
    "partly zero": "some of its elements are zero",
    "huge": "its largest element exceeds 1e5",
    "tiny": "it is not zero, and no element reaches 1e-6",
    "target nan": "it is finite, and the target contains NaN",
    "target inf": "it is finite, and the target contains an infinity",
    "fine": "none of these",
}

# The same in a few words, for a drawing.
TROUBLE = {
    "nan": "NaN begins here",
    "inf": "infinity begins here",
    "zero": "0 begins here",
    "partly zero": "zeros begin here",
    "huge": "grows here",
    "tiny": "shrinks here",
    "target nan": "NaN begins here",
    "target inf": "infinity begins here",
    "fine": "look here",
}


@dataclasses.dataclass(frozen=True)
class Elements:
    """Which elements of a gradient are bad.

    Attributes:
        count: how many.
        total: of how many.
        indices: where, an integer array of shape (count, rank).
    """

    count: int
    total: int
    indices: np.ndarray = dataclasses.field(repr=False, compare=False)

    def __str__(self):
        if self.count == self.total:
            return f"all {self.total} elements" if self.total > 1 else "its only element"
        first = ", ".join(str(index.tolist()) for index in self.indices[:3])
        word = "element" if self.count == 1 else "elements"
        return f"{word} {first}{', …' if self.count > 3 else ''} ({self.count} of {self.total})"


@dataclasses.dataclass(frozen=True)
class Link:
    """One step of the chain from the root of the trouble to where the gradient turned bad.

    Attributes:
        op: the operation.
        line: the learner's line, or None.
        what: what happened there.
    """

    op: str
    line: Line | None
    what: str

    def __str__(self):
        where = f" ({self.line.place})" if self.line else ""
        return f"{self.op}{where}: {self.what}"


@dataclasses.dataclass(frozen=True)
class ValueFinding:
    """What is the matter with the value of one gradient. See the module's docstring."""

    symptom: str
    healthy: bool | None
    code: str
    sentence: str = ""
    op: str = ""
    layer: str = ""
    line: Line | None = None
    fix: str = ""
    certain: bool = True
    elements: Elements | None = None
    chain: tuple[Link, ...] = ()
    remarks: tuple[str, ...] = ()
    cotangent: object = dataclasses.field(default=None, repr=False, compare=False)
    node: Node | None = dataclasses.field(default=None, repr=False, compare=False)
    story: Story | None = dataclasses.field(default=None, repr=False, compare=False)
    evidence: Evidence | None = dataclasses.field(default=None, repr=False, compare=False)


def study(
    tape: ExplainTape,
    target: Any,
    sources: Any,
    names: Sequence[str] | None = None,
    gradients: Sequence[Any] | None = None,
) -> list[ValueFinding]:
    """Explain the values of the gradients of a target.

    Args:
        tape: an `ExplainTape` that saw the computation.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.
        names: what the learner calls the target and then the sources, a list of strings; None for "target" and
            "source".
        gradients: what the tape returns for the sources, if that is known: a list.

    Returns:
        A list of `ValueFinding`, one for each source.
    """
    targets, leaves = tf.nest.flatten(target), tf.nest.flatten(sources)
    names = names or ["target", *(["source"] * len(leaves))]
    if gradients is None:
        gradients = tape.result_for(targets, leaves)
    with hooks.deaf(), private.paused():
        replays = _Replays(tape.log, targets, leaves)
        return [
            _finding(replays, source, gradient, names[0], name)
            for source, gradient, name in zip(leaves, gradients, names[1:], strict=True)
        ]


def replayed(
    tape: ExplainTape, targets: Sequence[Any], sources: Sequence[Any], names: Sequence[str], gradients: Sequence[Any]
) -> tuple[Replay, list[ValueFinding]]:
    """As `study`, for a drawing or a table. Returns the `Replay` of all sources, and the list of `ValueFinding`."""
    found = study(tape, targets, sources, names, gradients)
    shown = next((one.evidence.replay for one in found if one.evidence is not None), None)
    keys = [[key for value in values for key in keys_of(value)] for values in (targets, sources)]
    with hooks.deaf(), private.paused():
        return shown or Replay(Trace(tape.log), *keys), found


def alike(findings: Iterable[ValueFinding]) -> list[list[int]]:
    """Group findings by their cause.

    Args:
        findings: a list of `ValueFinding`.

    Returns:
        A list of lists of positions: those in one group have the same symptom, code and origin.
    """
    groups = {}
    for position, one in enumerate(findings):
        origin = one.node if one.node is not None and one.code != "exists" else position
        groups.setdefault((one.symptom, one.code, origin), []).append(position)
    return list(groups.values())


class _Replays:
    """The replay of a tape with functions taken apart, and where the tape contradicts it, one with functions whole."""

    def __init__(self, log, targets, sources):
        self._log = log
        self._targets = [key for target in targets for key in keys_of(target)]
        self._sources = [key for source in sources for key in keys_of(source)]
        self._made = {}

    def of(self, inline):
        """The `Replay` and the `Measures` of it."""
        if inline not in self._made:
            replay = Replay(Trace(self._log, inline), self._targets, self._sources)
            self._made[inline] = replay, Measures()
        return self._made[inline]

    def evidence(self, source, gradient):
        """Return the `Evidence` for a source that agrees with what the tape returned, or None."""
        key = keys_of(source)[0]
        for inline in (True, False):
            replay, measures = self.of(inline)
            if _agree(replay.cotangent(key), gradient, replay.parts.get(key, ())):
                return Evidence(replay, key, measures)
            if not any(event.call for event in self._log.events):
                return None
        return None


def _agree(found, gradient, parts):
    """Whether the replay's result is the tape's. A zero without a path is what a tf.function gives for None.

    Where contributions cancel, what is left may be their rounding, and another one each time.
    """
    if found is None or gradient is None:
        return found is None and (gradient is None or not array(gradient).any())
    eps = float(finfo(gradient.dtype.real_dtype.as_numpy_dtype).eps)
    found, expected = array(found), array(gradient)
    if found.shape != expected.shape:
        return False
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=0.0))
    terms = [np.abs(array(part)).max(initial=0.0) for _, part in parts]
    rounding = 30 * eps * max([term for term in terms if np.isfinite(term)], default=0.0)
    with np.errstate(invalid="ignore"):
        return np.allclose(found, expected, rtol=1e-3, atol=max(1e-4 * scale, rounding), equal_nan=True)


def _finding(replays, source, gradient, target_name, source_name):
    if gradient is None:
        return ValueFinding("none", None, "exists")
    values = array(gradient)
    evidence = replays.evidence(source, gradient)
    symptom = _symptom(values)
    if evidence is None:
        return _unexplained(symptom, values, gradient, source_name)
    if evidence.gradient is None:
        story = Story("other_output", _call_of(evidence))
    else:
        symptom, story = _judge(evidence, symptom, values)
    return _worded(evidence, symptom, story, values, gradient, target_name, source_name)


def _symptom(values):
    if np.isnan(values).any():
        return "nan"
    if not np.isfinite(values).all():
        return "inf"
    if not values.size:
        return "fine"
    if not values.any():
        return "zero"
    largest = np.abs(values).max()
    if largest > magnitude.HUGE:
        return "huge"
    if largest < magnitude.SMALL:
        return "tiny"
    return "fine" if values.all() else "partly zero"


def _judge(evidence, symptom, values):
    """Return the symptom, which may be the target's, and the `Story`."""
    target = evidence.target
    if evidence.bad(target):
        story = not_finite.of_value(evidence, target)
        if symptom not in ("nan", "inf"):
            symptom = "target nan" if evidence.measure.nan(evidence.value(target)) else "target inf"
        elif evidence.trace.producer.get(target) is not None and story.node is None:
            story = not_finite.of_cotangent(evidence)
        return symptom, story
    if symptom in ("nan", "inf"):
        return symptom, not_finite.of_cotangent(evidence)
    degenerate = structure.equal_eigenvalues(evidence)
    if degenerate is not None:
        return symptom, degenerate
    missed = special_points.story(evidence)
    if missed is not None:
        return symptom, missed
    if symptom == "zero":
        return symptom, zeros.all_zero(evidence)
    silent = structure.story(evidence)
    if silent is not None:
        return symptom, silent
    if symptom in ("huge", "tiny"):
        return symptom, magnitude.story(evidence, np.abs(values).max())
    if symptom == "partly zero":
        return symptom, zeros.partly_zero(evidence)
    return symptom, Story("exists", None, is_alarm=False)


def _call_of(evidence):
    """The last call of a function that was recorded: where a zero stands for None."""
    return next((node for node in reversed(evidence.trace.nodes) if node.event.call), None)


def _worded(evidence, symptom, story, values, gradient, target_name, source_name):
    node = story.node
    names = {"source": source_name, "target": target_name, "of": blamed(evidence, story, source_name)}
    healthy = False if story.is_alarm else (True if story.certain or symptom != "zero" else None)
    note, is_lookup = story.values.get("note", "exists"), isinstance(gradient, tf.IndexedSlices)
    return ValueFinding(
        symptom,
        healthy,
        story.code,
        sentence=sentence_of(evidence, story, symptom, names),
        op=node.name if node else "",
        layer=node.layer if node else "",
        line=node.line if node else None,
        fix="" if healthy else repair(story, names),
        certain=story.certain,
        elements=_elements(symptom, values),
        chain=_chain(story),
        remarks=(*((note,) if note != "exists" and not is_lookup else ()), *structure.remarks(evidence)),
        cotangent=gradient,
        node=node,
        story=story,
        evidence=evidence,
    )


def _unexplained(symptom, values, gradient, source_name):
    """What is said where the replay and the tape differ: the symptom, which was measured, and no cause."""
    if symptom in ("fine", "partly zero"):
        return ValueFinding(symptom, True, "exists", elements=_elements(symptom, values), cotangent=gradient)
    return ValueFinding(
        symptom,
        False if symptom in ("nan", "inf") else None,
        "unexplained",
        sentence=f"The backward pass of {source_name}, run again, differs from the tape's: no cause is named.",
        certain=False,
        elements=_elements(symptom, values),
        cotangent=gradient,
    )


def _elements(symptom, values):
    wanted = {
        "nan": lambda: ~np.isfinite(values),
        "inf": lambda: ~np.isfinite(values),
        "zero": lambda: values == 0,
        "partly zero": lambda: values == 0,
        "huge": lambda: np.abs(values) > magnitude.HUGE,
        "tiny": lambda: np.abs(values) < magnitude.SMALL,
    }.get(symptom)
    if wanted is None:
        return None
    bad = np.asarray(wanted())
    return Elements(int(bad.sum()), bad.size, np.argwhere(bad))


def _chain(story):
    if story.node is None:
        return ()
    first = Link(story.node.name, story.node.line, "the root")
    return (first, *(Link(node.name, node.line, what) for node, what in story.then))
