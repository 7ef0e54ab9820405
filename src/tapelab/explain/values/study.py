"""Why is this gradient NaN, infinite, zero, huge or tiny? The answers for all sources of a tape, from one replay.

`target` and `sources` are as `explain` takes them; the tape is not used up, and nothing is recorded. A None gradient
has the symptom "none" and no cause here: `explain` names it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tapelab.explain.causes import SYMPTOMS, VALUES
from tapelab.explain.explanation import Elements, Explanation, Link
from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.lines import Frame, name_in
from tapelab.explain.ground.log import keys_in, keys_of
from tapelab.explain.ground.measure import Gradient, Measures, NotFinite, array, number, rounding
from tapelab.explain.values import magnitude, not_finite, special_points, structure, zeros
from tapelab.explain.values.fixes import OUTSIDE, repair
from tapelab.explain.values.mechanisms import PRODUCTS
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import ADDING, PASSING, READS, Evidence, Replay
from tapelab.explain.values.rerun.nodes import Node, Trace

import numpy as np
import tensorflow as tf


def study(
    tape: ExplainTape, target: Any, sources: Any, names: Sequence[str], gradients: Any = None, frame: Frame = None
) -> tuple[Replay, list[Explanation]]:
    """Explain the values of the gradients of a target.

    Args:
        tape: an `ExplainTape` that saw the computation.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.
        names: what the learner calls the target and then the sources, a list of strings.
        gradients: what the tape returns for the sources, if that is known: a list.
        frame: the learner's frame, for names in a fix that are in no log; or None.

    Returns:
        The `Replay` that the answers were read from, and an `Explanation` for each source.
    """
    targets, leaves = tf.nest.flatten(target), tf.nest.flatten(sources)
    if gradients is None:
        gradients = tape.result_for(targets, leaves)
    with hooks.deaf(), private.paused():
        replay, measures = Replay(Trace(tape.log), keys_in(targets), keys_in(leaves)), Measures()
        answers = [
            _explained(Evidence(replay, keys_of(source)[0], measures), gradient, names[0], name, frame)
            for source, gradient, name in zip(leaves, gradients, names[1:], strict=True)
        ]
    return replay, answers


def _terms(replay: Replay, key: int) -> list[tuple[Node | None, Gradient]]:
    """What a cotangent is the sum of, as (node, tensor): also within the node that adds up over a batch."""
    found = list(replay.parts.get(key, ()))
    for node, _ in found[:]:
        if node is not None:
            found += [(node, one) for one in replay.passed[node].upstream if one is not None]
            found += _terms(replay, node.outputs[0]) if node.op in PASSING | ADDING else ()
    return found


def _agrees(evidence: Evidence, gradient: Gradient) -> bool:
    """Whether the replay's result is the tape's. A zero without a path is what a tf.function gives for None.

    Where contributions cancel, what is left may be their rounding, and another one each time.
    """
    found, expected = array(evidence.gradient), array(gradient)
    if evidence.gradient is None:
        return not expected.any()
    if found.shape != expected.shape:
        return False
    finite = np.abs(expected[np.isfinite(expected)])
    scale = float(finite.max(initial=0.0))
    with np.errstate(invalid="ignore"):
        if np.allclose(found, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
            return True
        sizes = [np.abs(array(part)) for _, part in _terms(evidence.replay, evidence.source)]
        largest = [max(one.max(initial=0.0), one.sum() / max(expected.size, 1)) for one in sizes]
        noise = 30 * rounding(gradient) * max([term for term in largest if np.isfinite(term)], default=0.0)
        return np.allclose(found, expected, rtol=1e-3, atol=noise, equal_nan=True)


def _explained(evidence: Evidence, gradient: Gradient | None, target: str, source: str, frame: Frame) -> Explanation:
    names = {"target": target, "source": source}
    if gradient is None:
        return Explanation(False, "exists", "", **names)
    values = array(gradient)
    symptom = _symptom(values)
    if not _agrees(evidence, gradient):
        return _unexplained(evidence, symptom, gradient, names)
    if evidence.gradient is None:
        cut = _cut_of(evidence)
        # Of a function, the last call that was recorded: there a zero stands for None.
        call = next((node for node in reversed(evidence.trace.nodes) if node.event.call), None)
        story = Story("other_output", call) if cut is None else Story("cut_where_it_ran", cut)
    else:
        symptom, story = _judge(evidence, symptom, values)
    return worded(evidence, symptom, story, gradient, names, frame)


def _symptom(values: np.ndarray) -> str:
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


def _judge(evidence: Evidence, symptom: str, values: np.ndarray) -> tuple[str, Story]:
    """Return the symptom, which may be the target's, and the `Story`."""
    target = evidence.target
    if evidence.bad(target):
        story = not_finite.of_value(evidence, target)
        if symptom not in ("nan", "inf"):
            symptom = "target nan" if evidence.measure.nan(evidence.value(target)) else "target inf"
        return symptom, story
    if symptom in ("nan", "inf"):
        return symptom, not_finite.of_cotangent(evidence)
    special = (special_points.undefined_eigenvectors, special_points.story)
    idle = (zeros.without_effect,) if symptom in ("zero", "tiny") else ()
    found = next((one for rule in (*special, *idle) if (one := rule(evidence)) is not None), None)
    if found is None and symptom == "zero":
        return symptom, zeros.all_zero(evidence)
    if found is None and (found := structure.story(evidence)) and symptom == "partly zero":
        symptom = "fine"  # the zeros are another matter
    if found is None and symptom in ("huge", "tiny"):
        found = magnitude.story(evidence, np.abs(values).max())
    if found is None and symptom == "partly zero":
        found = zeros.partly_zero(evidence)
    return symptom, found or Story("exists", None, is_alarm=False)


def _cut_of(evidence: Evidence) -> Node | None:
    """The node that has a cotangent and passes none of it on to what depends on the source; None where none has."""
    for node, passed in evidence.replay.passed.items():
        parts = [one for key, one in zip(node.inputs, passed.downstream, strict=False) if key in evidence.depends]
        if parts and all(one is None for one in parts):
            return node
    return None


def worded(
    evidence: Evidence, symptom: str, story: Story, gradient: Any, names: Mapping[str, str], frame: Frame = None
) -> Explanation:
    """Put a story into words, and look for a fix.

    Args:
        names: of "target" and "source".
        gradient, frame: as `study` takes them.
    """
    node = story.node
    names_and_blamed = {**names, "of": blamed(evidence, story, names["source"], frame)}
    healthy = False if story.is_alarm else (True if story.certain or symptom != "zero" else None)
    fix, result = ("", "untried") if healthy else repair(story, names_and_blamed, evidence, frame)
    note, is_lookup = story.values.get("note", "exists"), isinstance(gradient, tf.IndexedSlices)
    return Explanation(
        True,
        story.code,
        sentence_of(evidence, story, symptom, names_and_blamed),
        **names,
        line=node.line if node else None,
        certain=story.certain,
        fix=fix,
        tried=result,
        remarks=(*((note,) if note != "exists" and not is_lookup else ()), *structure.remarks(evidence)),
        symptom=symptom,
        healthy=healthy,
        op=node.name if node else "",
        layer=node.layer if node else "",
        elements=_elements(symptom, array(gradient)),
        chain=_chain(story),
        node=node,
        gradient=gradient,
        story=story,
        evidence=evidence,
    )


def _unexplained(evidence: Evidence, symptom: str, gradient: Gradient, names: Mapping[str, str]) -> Explanation:
    """What is said where the replay and the tape differ: the symptom, which was measured, and no cause.

    A function that XLA compiled may compute something else than its operations one by one.
    """
    is_fine = symptom in ("fine", "partly zero")
    call = None if is_fine else next((event for event in evidence.trace.log.events if event.call), None)
    sentence = f"The backward pass of {names['source']}, run again, differs from the tape's: no cause is named."
    return Explanation(
        True,
        "exists" if is_fine else "unexplained",
        "" if is_fine else sentence,
        **names,
        certain=is_fine,
        symptom=symptom,
        healthy=is_fine or (False if symptom in ("nan", "inf") else None),
        line=call and call.line,
        op=call.name if call else "",
        fix=OUTSIDE if call else "",
        elements=_elements(symptom, array(gradient)),
        gradient=gradient,
    )


def _elements(symptom: str, values: np.ndarray) -> Elements | None:
    if symptom in ("nan", "inf"):
        bad = ~np.isfinite(values)
    elif symptom in ("zero", "partly zero"):
        bad = np.equal(values, 0)
    elif symptom in ("huge", "tiny"):
        bad = np.abs(values) > magnitude.HUGE if symptom == "huge" else np.abs(values) < magnitude.SMALL
    else:
        return None
    return Elements(int(np.sum(bad)), np.size(bad), np.argwhere(bad))


def _chain(story: Story) -> tuple[Link, ...]:
    if story.node is None:
        return ()
    first = Link(story.node.name, story.node.line, "the root")
    return (first, *(Link(node.name, node.line, what) for node, what in story.then))


def blamed(evidence: Evidence, story: Story, source_name: str, frame: Frame = None) -> str:
    """What the learner calls the value to blame: the source's or a variable's name, or that in its frame, else "s"."""
    key, maker = story.key, evidence.trace.producer.get(story.key)
    if maker is not None and maker.op in READS:
        key, maker = maker.inputs[0], None
    if key == evidence.source:
        return source_name
    if key is None or maker is not None:
        return "s"
    return _variable_name(evidence, key) or name_in(frame, evidence.trace.values[key]) or "s"


def _variable_name(evidence: Evidence, key: int) -> str | None:
    own = (one for one in evidence.trace.log.watched_variables() if one.handle is evidence.trace.values[key])
    return next((one.name.removesuffix(":0") for one in own), None)


def sentence_of(evidence: Evidence, story: Story, symptom: str, names: dict[str, str]) -> str:
    """Put a story into one sentence.

    Args:
        evidence: an `Evidence`.
        story: a `Story`.
        symptom: a key of `tapelab.explain.causes.SYMPTOMS`.
        names: of "target", "source" and, as `blamed` returns it, "of".
    """
    target_name, source_name = names["target"], names["source"]
    if story.code == "exists":
        note = VALUES.get(story.values.get("note"))
        if note is not None and symptom == "partly zero":
            values = array(evidence.gradient)
            count = int((values == 0).sum())
            share = f"{count} of the gradient's {values.size} elements {'is' if count == 1 else 'are'} 0"
            return f"{share}: {note.title}, at {story.node.name}."
        return f"The gradient of {target_name} with respect to {source_name} {SYMPTOMS[symptom].unexplained}."
    values = story.values
    if story.code == "constant_output" and evidence.array(evidence.target).size > 1:
        names = names | {"target": f"The sum of {target_name}"}
    names = names | {
        "op": story.node.name if story.node else "an operation",
        "of": "A value" if names["of"] == "s" else names["of"],
        "x": _value_there(evidence, story),
        "count": values.get("count", 1),
        "factor": f"{values.get('factor', 1):.3g}",
        "total": f"{values.get('total', 1):.3g}",
        "shapes": " and ".join(map(str, values.get("shapes", ()))),
        "made": values.get("made", ""),
        "dtype": _dtype(evidence, story)[0],
        "max": _dtype(evidence, story)[1],
    }
    text = VALUES[story.code].sentence.format(**names)
    if story.code == "source_not_finite" and not evidence.is_learned(story.key) and evidence.array(story.key).ndim:
        where = NotFinite.of("" if names["of"] == "A value" else names["of"], evidence.value(story.key))
        text = text if where is None else f"{text[:-1]}: {where}."
    if values.get("is_backward"):
        text = f"The gradient that {names['op']} passes back is more than {values['dtype']} can hold."
    if values.get("unused"):
        text += " The element is not used afterwards; its gradient of 0 still meets that slope."
    if "waits" in values:
        text += f" {values['waits']} before it is flat, too: see to it after this one."
    if symptom.startswith("target"):
        text += f" So {target_name} itself is not finite, although the gradient is."
    return text


def _dtype(evidence: Evidence, story: Story) -> tuple[str, str]:
    """The narrowest dtype of an operation, which backwards may be its input's, and the largest number in it."""
    keys = () if story.node is None else (*story.node.outputs, *story.node.inputs)
    held = [dtype for key in keys if (dtype := evidence.trace.values[key].dtype).is_floating or dtype.is_complex]
    dtype = min(held, key=lambda one: one.real_dtype.max, default=None)
    return ("the dtype", "its limit") if dtype is None else (dtype.name, f"{float(dtype.real_dtype.max):.3g}")


def _value_there(evidence: Evidence, story: Story) -> str:
    """The value at the element to blame, as text."""
    if story.node is None or not story.node.inputs:
        return "its value"
    key = story.key if story.key in story.node.inputs else story.node.inputs[0]
    if story.node.op in ("RealDiv", "Div"):
        key = story.node.inputs[-1]
    if story.code == "source_not_finite" and story.key is not None:
        key = story.key
    values = evidence.array(key)
    if not values.size:
        return "its value"
    picked = values.ravel()
    made = array(evidence.trace.values[story.node.outputs[0]]) if story.node.outputs else values
    bad = story.values.get("at", ~np.isfinite(made))
    if story.code == "source_not_finite":
        bad = ~np.isfinite(values)
    if bad.shape == values.shape and bad.any():
        picked = values[bad]
    is_product = story.code == "steep" and story.node.op in PRODUCTS
    is_largest_told = is_product or story.code in ("overflow", "saturated", "clipped")
    return number(picked[np.argmax(np.abs(picked))] if is_largest_told else picked[0])
