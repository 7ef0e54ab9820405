"""What the judgement found, before it is put into the learner's words."""

import dataclasses
from collections.abc import Mapping

from tapelab.explain.ground.lines import Line
from tapelab.explain.missing.inside_functions import Cut
from tapelab.explain.missing.paths import Step


@dataclasses.dataclass(frozen=True)
class Finding:
    """A judgement.

    Attributes:
        code: of the cause.
        seen: by which of the cause's other sentences it is told; "" for its usual one.
        exists: whether there is a gradient; None where it is not known.
        line: the learner's `Line` to look at.
        certain: whether the cause is certain.
        cuts: the first cut on each path.
        further: the cuts behind the first, on the path with the fewest.
        path: the `Step`s of that path.
        remarks: codes.
        fix: what to write, where it is not what the cause says.
        values: what stands in the cause's sentence besides the names of source, target and operation.
        more: what is said after that.
    """

    code: str
    seen: str = ""
    exists: bool | None = False
    line: Line | None = None
    certain: bool = True
    cuts: tuple[Cut, ...] = ()
    further: tuple[Cut, ...] = ()
    path: tuple[Step, ...] = ()
    remarks: tuple[str, ...] = ()
    fix: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more: str = ""
