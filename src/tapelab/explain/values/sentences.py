"""The sentence about a story, with the learner's names and the values that the story is about."""

from tapelab.explain.causes import SYMPTOMS, VALUES
from tapelab.explain.ground.measure import array
from tapelab.explain.ground.number_text import number
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import READS, Evidence

import numpy as np


def blamed(evidence: Evidence, story: Story, source_name: str) -> str:
    """What the learner calls the value to blame: its own expression, the source's or a variable's name, else "s"."""
    key, maker = story.key, evidence.trace.producer.get(story.key)
    if maker is not None and maker.op in READS:
        key, maker = maker.inputs[0], None
    if key == evidence.source:
        return source_name
    return "s" if key is None or maker is not None else _variable_name(evidence, key) or "s"


def _variable_name(evidence: Evidence, key: int) -> str | None:
    for variable in evidence.trace.log.watched_variables():
        if variable.handle is evidence.trace.values[key]:
            return variable.name.removesuffix(":0")
    return None


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
        "units": f" in {values['dead']} of {values['units']} units for every example" if "dead" in values else "",
        "count": values.get("count", 1),
        "factor": f"{values.get('factor', 1):.3g}",
        "total": f"{values.get('total', 1):.3g}",
        "shapes": " and ".join(map(str, values.get("shapes", ()))),
        "made": values.get("made", ""),
        "dtype": _dtype(evidence, story)[0],
        "max": _dtype(evidence, story)[1],
    }
    text = VALUES[story.code].sentence.format(**names)
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
    if story.node is None or not story.node.outputs:
        return "the dtype", "its limit"
    dtype = evidence.trace.values[story.node.outputs[0]].dtype
    if not (dtype.is_floating or dtype.is_complex):
        return dtype.name, ""
    return dtype.name, f"{float(dtype.real_dtype.max):.3g}"


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
    is_largest_told = story.code in ("overflow", "saturated", "clipped")
    return number(picked[np.argmax(np.abs(picked))] if is_largest_told else picked[0])
