"""Every answer of `tapelab.explain`, as data: a table for each place to look, a row for each code.

`CAUSES` are the answers where a gradient is None, `REMARKS` what is added where one exists and may still surprise,
`VALUES` the mechanisms by which a value goes bad, and `RETRACING` why a tf.function was traced again. `SYMPTOMS` say
what a gradient's value is like, `STATUSES` what that of a model's variable is.

The keys of a row are the attributes of `Cause`; its name is the code. Whoever adds a row writes the rule that finds it
(`missing`, `values`, `retracing`), and a test in which it is the answer and one in which it must not be.
"""

import dataclasses
import pathlib
import tomllib
from collections.abc import ItemsView, Mapping, Sequence
from typing import Any

_TABLES = pathlib.Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause. What is in braces stands for the learner's names and values.

    Attributes:
        code: its stable name.
        title: a few words, as they are written on a cut edge of a drawing; those of the code, if the row has none.
        sentence: what `explain` says: {source} and {target} as the learner calls them, {op} the operation, {of} its
            argument, {x} the value there, and what a rule found besides.
        otherwise: other sentences, by what the rule saw.
        meaning: what happened, for a learner.
        example: code in which it happens; the gradient asked for is of `y` with respect to `x`.
        fix: what to write.
        sentence_in_a_model, fix_in_a_model: what `diagnose` says in place of these, with {of_layer} for the layer.
        rewrites: [pattern of an expression, what to write in its place], the likeliest first, as
            `tapelab.explain.values.fixes.patient` has them.
        arguments: [names and signs of what may be called, what to write in place of its argument `s`].
        advice: [calls, signs and types of operations, what to do there], of which the first holds that fits. "" is for
            the rest, or for nothing to be done.
        operations: types of operations, with spaces between, whose gradient misses a derivative at some point: which,
            `tapelab.explain.values.special_points` knows.
        makers: types of operations: what they make that is not finite always has this cause.
        makers_of_nan: where they make NaN of what is finite it has this cause, and where infinities, an overflow.
        expected: of a retracing, whether this is how TensorFlow works: no number of calls makes more of it.
    """

    code: str
    meaning: str
    title: str = ""
    sentence: str = ""
    otherwise: Mapping[str, str] = dataclasses.field(default_factory=dict)
    example: str = ""
    fix: str = ""
    sentence_in_a_model: str = ""
    fix_in_a_model: str = ""
    rewrites: Sequence[tuple[str, str]] = ()
    arguments: Sequence[tuple[str, str]] = ()
    advice: Sequence[tuple[str, str]] = ()
    operations: str = ""
    makers: str = ""
    makers_of_nan: str = ""
    expected: bool = False

    def _repr_markdown_(self) -> str:
        example, fix = (f"```python\n{code}\n```" for code in (self.example, self.fix))
        return f"**{self.code}**: {self.title}\n\n{self.meaning}\n\n{example}\n\nFix:\n\n{fix}"


@dataclasses.dataclass(frozen=True)
class Symptom:
    """What the value of a gradient is like.

    Attributes:
        meaning: when it is so.
        heading: what the answer's first line says of the gradient.
        title: in a word or two, where the gradient is bad: the title of a drawing; its name, if the row has none.
        begins: what is written on the box at which it began.
        unexplained: what is said of the gradient where nothing is wrong.
    """

    meaning: str
    heading: str
    title: str
    begins: str = ""
    unexplained: str = "is fine"


@dataclasses.dataclass(frozen=True)
class Status:
    """What `diagnose` calls the gradient of a variable: its meaning, and its marker and colour in a figure."""

    meaning: str
    marker: str
    colour: str


def _rows(table: str) -> ItemsView[str, Any]:
    return tomllib.loads((_TABLES / f"{table}.toml").read_text(encoding="utf-8")).items()


def _read(*tables: str) -> dict[str, Cause]:
    """Return the rows of some tables in their order: code → `Cause`. Prose is one line, however the table wraps it."""
    found = {}
    for table in tables:
        for code, row in _rows(table):
            prose = {key: _one_line(row[key]) for key in ("meaning", "sentence") if key in row}
            prose["otherwise"] = {seen: _one_line(text) for seen, text in row.get("otherwise", {}).items()}
            written = {key: row[key].strip() for key in ("example", "fix", "fix_in_a_model") if key in row}
            found[code] = Cause(code, **({"title": code.replace("_", " ")} | row | prose | written))
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())


CAUSES = _read("none_at_the_source", "none_on_the_way", "none_at_the_target", "none_by_the_tape")
REMARKS = _read("remarks")
VALUES = _read("value_not_finite", "value_zero", "value_at_special_points", "value_huge_or_tiny", "value_wrong")
RETRACED = _read("retracing")
SYMPTOMS = {name: Symptom(**({"title": name} | row)) for name, row in _rows("symptoms")}
STATUSES = {name: Status(**row) for name, row in _rows("statuses")}
RETRACING = {code: cause.meaning for code, cause in RETRACED.items()}
# What became of a fix when it was run in the replayed program → what is written above it.
TRIED = {
    "works": "Fix:",
    "untried": "Hint:",
    "silent": "Hint (it runs, and leaves the gradient 0 there):",
    "changes": "Hint (it runs, and the value is another):",
}
