"""What `tapelab.explain.values.study` finds about the value of one gradient."""

import dataclasses

from tapelab.explain.ground.lines import Line
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node

import numpy as np


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
    """What is the matter with the value of one gradient. One that is None has the symptom "none" and no cause here.

    Attributes:
        symptom: a key of `tapelab.explain.causes.SYMPTOMS`.
        healthy: True, False, or None where that cannot be told.
        code: a key of `tapelab.explain.VALUES`; "exists" where nothing is wrong.
        sentence, fix: what happened, and what to write.
        tried: what became of the fix when it was run, a key of `tapelab.explain.causes.TRIED`.
        op, layer, line: where: the operation, the Keras layer that it ran in or "", the learner's `Line` or None.
        certain: whether the cause is certain.
        elements: which elements are bad, `Elements` or None.
        chain: from the root to where the gradient turned bad, a tuple of `Link`.
        remarks: keys of `REMARKS` and `VALUES`.
        cotangent: the gradient that the tape returned: a tensor, `tf.IndexedSlices` or None.
        node: the origin, a `Node` or None.
        story, evidence: what the sentence was made of; None where there is none.
    """

    symptom: str
    healthy: bool | None
    code: str
    sentence: str = ""
    op: str = ""
    layer: str = ""
    line: Line | None = None
    fix: str = ""
    tried: str = "untried"
    certain: bool = True
    elements: Elements | None = None
    chain: tuple[Link, ...] = ()
    remarks: tuple[str, ...] = ()
    cotangent: object = dataclasses.field(default=None, repr=False, compare=False)
    node: Node | None = dataclasses.field(default=None, repr=False, compare=False)
    story: Story | None = dataclasses.field(default=None, repr=False, compare=False)
    evidence: Evidence | None = dataclasses.field(default=None, repr=False, compare=False)
