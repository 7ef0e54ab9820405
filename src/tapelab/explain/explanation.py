"""What `explain` answers, as an object and as text and as Markdown."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from tapelab.explain.causes import CAUSES, REMARKS, SYMPTOMS, TRIED, VALUES
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.rendering import MARKDOWN, Style, Told
from tapelab.explain.missing.inside_functions import Cut
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node

import numpy as np

_FEW = 6  # healthy ones that are named and not only counted


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


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation(Told):
    """Whether a gradient exists and is healthy and, if not, why not. True in a condition if it exists.

    Attributes:
        exists: True or False; None where it could not be found out.
        code: a key of `CAUSES` where there is no gradient; where there is one and its value has a mechanism, a key of
            `VALUES`; "inside_function" where there is one whose value is not there yet; else "exists".
        sentence: one sentence, with the learner's names.
        source, target: what they are called.
        line: the learner's own `Line` where the flow was cut, or None where no line is to blame or none is known.
            Where some elements are zero for a reason that is noted, the line where these lost their gradient.
        certain: False where the answer is only probable.
        fix: what to write, as code.
        tried: what became of the fix when it was run, a key of `tapelab.explain.causes.TRIED`: "works" where it gives
            the same value and a finite gradient, "untried" where it is a hint that was not run.
        cuts: the first cut on each path from the source, a tuple of `Cut`.
        further: cuts behind the first on the path with the fewest, a tuple of `Cut`.
        remarks: keys of `REMARKS` and `VALUES`.
        symptom: what the gradient's value is like, a key of `tapelab.explain.causes.SYMPTOMS`:
            "none", "nan", "inf", "zero", "partly zero", "huge", "tiny", "target nan", "target inf" or "fine".
        healthy: False where something is wrong, True where nothing is; None where there is no gradient, or where it
            cannot be told.
        op: the operation to blame for a bad value, such as "Log"; "" where there is none.
        layer: the name of the Keras layer that it ran in, or "".
        elements: which elements are bad, `Elements` or None.
        chain: from the root of the trouble to where the gradient turned bad, a tuple of `Link`.
        node: the operation to blame as the replay has it, a `Node` or None.
        gradient, story, evidence: what the tape returned, and what the sentence about a value was made of, while the
            answer is made; afterwards None, so that an answer does not keep every value alive.
    """

    exists: bool | None
    code: str
    sentence: str
    source: str = "source"
    target: str = "target"
    line: Line | None = None
    certain: bool = True
    fix: str = ""
    tried: str = "untried"
    cuts: tuple[Cut, ...] = ()
    further: tuple[Cut, ...] = ()
    remarks: tuple[str, ...] = ()
    symptom: str = "none"
    healthy: bool | None = None
    op: str = ""
    layer: str = ""
    elements: Elements | None = None
    chain: tuple[Link, ...] = ()
    node: Node | None = dataclasses.field(default=None, compare=False)
    gradient: Any = dataclasses.field(default=None, compare=False)
    story: Story | None = dataclasses.field(default=None, compare=False)
    evidence: Evidence | None = dataclasses.field(default=None, compare=False)

    def __bool__(self):
        return self.exists is True

    def lines(self, style: Style) -> Iterator[str]:
        """The explanation, part by part."""
        yield style.strong(self.heading) + (" " + style.text("(probable)") if not self.certain else "")
        yield style.text(self.sentence)
        if self.elements is not None and self.code != "exists":
            yield style.text(f"Concerned: {self.elements}.")
        if self.line is not None:
            yield style.line(self.line, self.layer)
        if len(self.chain) > 1:
            yield style.text("Then " + "; then ".join(f"{link.op} {link.what}" for link in self.chain[1:]) + ".")
        if self.fix:
            yield style.text(TRIED[self.tried]) + style.block(self.fix)
        if self.further:
            yield style.text("Then also: " + "; ".join(_describe(cut) for cut in self.further) + ".")
        for code in self.remarks:
            remark = (REMARKS | VALUES)[code]
            yield style.text(f"Note ({code}): {remark.meaning}")

    def without_values(self, **changed: Any) -> "Explanation":
        """Return the explanation without what it was made of, and with other changes."""
        return dataclasses.replace(self, gradient=None, story=None, evidence=None, **changed)

    @property
    def cause(self) -> tuple[Any, ...]:
        """What the sources that share a cause have in common."""
        symptom = "not finite" if self.symptom in ("nan", "inf", "target nan", "target inf") else self.symptom
        # Each layer's gradient vanishes or explodes over other steps, of one kind.
        place = self.op if self.code in ("vanishing", "exploding") else self.node or self.cuts
        return (self.exists, self.code, symptom, self.line, place)

    @property
    def heading(self) -> str:
        """The answer in a few words."""
        gradient = f"d {self.target} / d {self.source}"
        if self.exists:
            if self.code in ("exists", "unknown", "inside_function"):
                return f"{gradient} exists"
            return f"{gradient} {SYMPTOMS[self.symptom].heading}: {self.code}"
        verdict = "could not be explained" if self.exists is None else "is None"
        if self.code == "no_gradient_registered":
            verdict = "raises LookupError"
        if self.code == "used_up":
            verdict = "is refused"
        return f"{gradient} {verdict}: {self.code}"


class Explanations(dict[str, Explanation]):
    """One `Explanation` for each source, by name, in the order of the sources. True in a condition if all exist."""

    def __bool__(self):
        return all(self.values())

    def missing(self) -> list[Explanation]:
        """Return the explanations of the gradients that do not exist."""
        return [explanation for explanation in self.values() if not explanation]

    def sick(self) -> list[Explanation]:
        """Return the explanations of the gradients that do not exist or whose value is bad."""
        return [one for one in self.values() if not one or one.healthy is False]

    def groups(self) -> list[list[str]]:
        """Return the names of the sources, those together whose gradients have the same cause at the same place."""
        found: dict[Any, list[str]] = {}
        for name, one in self.items():
            is_told = one.code not in ("exists", "unexplained", "unknown")
            found.setdefault(one.cause if is_told else name, []).append(name)
        return list(found.values())

    def __repr__(self):
        return f"<Explanations: {'; '.join(one.heading for one in self.values())}>"

    def __str__(self):
        sick = {id(one) for one in self.sick()}
        healthy = [name for name, one in self.items() if one.healthy and id(one) not in sick]
        groups = [names for names in self.groups() if names[0] not in healthy]
        groups.sort(key=lambda names: id(self[names[0]]) not in sick)  # of the rest nothing is known
        parts = [self._told(names) for names in groups]
        if healthy:
            names = f": {', '.join(healthy)}" if len(healthy) <= _FEW else ""
            parts.append("\n".join([f"{_counted(healthy, len(self))}{names}.", *self._notes(healthy)]))
        return "\n\n".join(parts)

    def _notes(self, names):
        """What is noted about healthy gradients, once for all that have the same note."""
        noted: dict[str, list[str]] = {}
        for name in names:
            one = self[name]
            for code in (*one.remarks, *((one.code,) if one.code in VALUES else ())):
                noted.setdefault(code, []).append(name)
        return [f"Note on {', '.join(of)} ({code}): {(REMARKS | VALUES)[code].meaning}" for code, of in noted.items()]

    def _told(self, names):
        """The explanation of the first of some sources with one cause, and that it holds for the others."""
        return "\n".join([str(self[names[0]]), *(_others(names) if len(names) > 1 else ())])

    def markdown(self) -> str:
        """Return a Markdown table of all sources, followed by the explanations of those whose gradients are bad."""
        rows = [
            f"| {MARKDOWN.cell(name)} | {_state(one)} "
            f"| {'' if one.code == 'exists' else MARKDOWN.code(one.code)} "
            f"| {MARKDOWN.cell(one.line.place) if one.line else ''} |"
            for name, one in self.items()
        ]
        parts = ["\n".join(["| source | gradient | cause | where |", "|---|---|---|---|", *rows])]
        for names in self.groups():
            if self[names[0]] in self.sick():
                parts.append(self[names[0]].markdown())
                parts.extend(map(MARKDOWN.text, _others(names)) if len(names) > 1 else ())
        return "\n\n".join(parts)

    def _repr_markdown_(self):
        return self.markdown()


def _state(one):
    if not one:
        return "no" if one.exists is False else "?"
    return "yes" if one.symptom in ("fine", "none") else one.symptom


def _others(names):
    """The same holds for these: one line of text, in a list."""
    count = len(names) - 1
    return [f"And {count} other {'sources' if count > 1 else 'source'}: {', '.join(names[1:])}."]


def _counted(healthy, total):
    if len(healthy) == total:
        return f"All {total} gradients are healthy" if total > 1 else "The gradient is healthy"
    return f"{len(healthy)} of {total} gradients {'are' if len(healthy) > 1 else 'is'} healthy"


def _describe(cut):
    where = f" ({cut.line.place})" if cut.line else ""
    return f"{CAUSES[cut.code].title} at {cut.op}{where}"
