"""What `explain` answers, as an object and as text and as Markdown."""

import dataclasses
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from tapelab.explain.causes import CAUSES, REMARKS, SYMPTOMS, TRIED, VALUES
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.rendering import Style, Told, listed
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

    def __str__(self) -> str:
        if self.count == self.total:
            return f"all {self.total} elements" if self.total > 1 else "its only element"
        first = ", ".join(str(index.tolist()) for index in self.indices[:3])
        more = ", …" if self.count > 3 else ""
        return f"element{'s' * (self.count > 1)} {first}{more} ({self.count} of {self.total})"


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

    def __bool__(self) -> bool:
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
            yield style.text(f"Note ({code}): {(REMARKS | VALUES)[code].meaning}")

    def without_values(self, **changed: Any) -> "Explanation":
        """Return the explanation without what it was made of, and with other changes."""
        return dataclasses.replace(self, gradient=None, story=None, evidence=None, **changed)

    @property
    def cause(self) -> tuple[Any, ...]:
        """What the sources that share a cause have in common."""
        symptom = "not finite" if self.symptom in ("nan", "inf", "target nan", "target inf") else self.symptom
        # Each layer's gradient vanishes or explodes over other steps, of one kind.
        place = self.op if self.code in ("vanishing", "exploding") else self.node
        line = None if self.code in ("unused_variable", "unrelated") else self.line
        return (self.exists, self.code, symptom, line, place or (self.cuts if line is None else None))

    @property
    def heading(self) -> str:
        """The answer in a few words."""
        gradient = f"d {self.target} / d {self.source}"
        if self.code == "unknown" or (self.exists and self.code in ("exists", "inside_function")):
            return f"{gradient} {'exists' if self.exists else 'is not known'}"
        other = {"no_gradient_registered": "raises LookupError", "used_up": "is refused"}
        missing = other.get(self.code, "could not be explained" if self.exists is None else "is None")
        return f"{gradient} {SYMPTOMS[self.symptom].heading if self.exists else missing}: {self.code}"


class Explanations(Told, dict[str, Explanation]):
    """One `Explanation` for each source, by name, in the order of the sources. True in a condition if all exist."""

    between = "\n\n"

    def __bool__(self) -> bool:
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
            own = {"exists": name, "unknown": one.sentence}.get(one.code)
            found.setdefault(one.cause if own is None else own, []).append(name)
        return list(found.values())

    @property
    def heading(self) -> str:
        """The answers in a few words each."""
        return "; ".join(one.heading for one in self.values())

    def lines(self, style: Style) -> Iterator[str]:
        """First what is None, then what is wrong, once for all sources that share a cause; then what is healthy."""
        if not len(self):  # every gradient of none exists
            yield style.text("There are no sources: a model or layer that is frozen has no trainable variables.")
        healthy = [name for name, one in self.items() if one.healthy]
        groups = [names for names in self.groups() if names[0] not in healthy]
        groups.sort(key=lambda names: (self[names[0]].exists is True, self[names[0]].healthy is not False))
        for first, *others in groups:
            told = [*self[first].lines(style)]
            if others:
                word = "sources" if len(others) > 1 else "source"
                told.append(style.text(f"And {len(others)} other {word}: {listed(others)}."))
            yield style.between.join(told)
        if healthy:
            names = f": {', '.join(healthy)}" if len(healthy) <= _FEW else ""
            told = [f"{_counted(healthy, len(self))}{names}.", *self._notes(healthy)]
            yield style.between.join(map(style.text, told))

    def _notes(self, names: Iterable[str]) -> list[str]:
        """What is noted about healthy gradients, once for all that have the same note."""
        noted: dict[str, dict[str, str]] = {}  # code → name → the place
        for one in map(self.__getitem__, names):
            for code in (*one.remarks, *((one.code,) if one.code in VALUES else ())):
                noted.setdefault(code, {})[one.source] = one.line.place if one.line and code in VALUES else ""
        told = {code: listed([code, *dict.fromkeys(filter(None, of.values()))]) for code, of in noted.items()}
        meanings = {code: (REMARKS | VALUES)[code].meaning for code in noted}
        return [f"Note on {listed([*of])} ({told[code]}): {meanings[code]}" for code, of in noted.items()]


def _counted(healthy: Sized, total: int) -> str:
    if len(healthy) == total:
        return f"All {total} gradients are healthy" if total > 1 else "The gradient is healthy"
    return f"{len(healthy)} of {total} gradients {'are' if len(healthy) > 1 else 'is'} healthy"


def _describe(cut: Cut) -> str:
    where = f" ({cut.line.place})" if cut.line else ""
    return f"{CAUSES[cut.code].title} at {cut.op}{where}"
