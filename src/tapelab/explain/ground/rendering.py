"""How an answer is told: as plain text and as Markdown."""

import re
from collections.abc import Sequence

from tapelab.explain.ground.lines import Line
from tapelab.graphs.operations import known


def escaped(text: str) -> str:
    """Return text with the letters that Markdown takes as its own escaped."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|" else letter for letter in text)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names, or other words, in a row; of many the first and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def spelled(op: str) -> str:
    """Return what the learner calls an operation of this type: `multiply` for `Mul`, `log_softmax` for `LogSoftmax`."""
    return words_of(op)[0]


def words_of(op: str) -> tuple[str, ...]:
    """Return by which functions and signs a line may call an operation of this type."""
    return known(op).words or (re.sub(r"(?<=[a-z])(?=[A-Z])", "_", re.sub(r"V\d$", "", op)).lower(),)


class Style:
    """Plain text: what the parts of an answer look like."""

    between = "\n"
    strong = text = code = staticmethod(str)

    @staticmethod
    def block(code: str) -> str:
        """Code of several lines."""
        return "".join(f"\n    {line}" for line in code.splitlines())

    @staticmethod
    def table(rows: Sequence[Sequence[str]], rule: str = "") -> str:
        """A table; the first row has the heads, which a rule of this letter may divide from the rest."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        head, *rest = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join([head, *(["  ".join(rule * width for width in widths)] if rule else ()), *rest])

    def line(self, line: Line, layer: str = "") -> str:
        """Where a line of the learner's is, and what it says."""
        place = line.place + (f" (layer {layer})" if layer else "")
        return f"{self.text(f'{place}:')} {self.code(line.text)}" if line.text else self.text(place)


class _Markdown(Style):
    between = "\n\n"
    text = cell = staticmethod(escaped)

    @classmethod
    def strong(cls, text: str) -> str:
        return f"**{cls.text(text)}**"

    @staticmethod
    def code(text: str) -> str:
        fence = "``" if "`" in text else "`"
        return f"{fence} {text} {fence}" if fence == "``" else f"`{text}`"

    @staticmethod
    def block(code: str) -> str:
        return f"\n\n```python\n{code}\n```"

    @classmethod
    def table(cls, rows: Sequence[Sequence[str]], rule: str = "") -> str:
        head, *rest = ("| " + " | ".join(map(cls.cell, row)) + " |" for row in rows)
        return "\n".join([head, "|---" * len(rows[0]) + "|", *rest])


PLAIN, MARKDOWN = Style(), _Markdown()


class Told:
    """An answer that has a `heading` and `lines`, which take a `Style`; `between` is what stands between these."""

    between = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.heading}>"

    def __str__(self) -> str:
        return (self.between or PLAIN.between).join(self.lines(PLAIN))

    def markdown(self) -> str:
        """Return the answer as Markdown."""
        return (self.between or MARKDOWN.between).join(self.lines(MARKDOWN))

    def _repr_markdown_(self) -> str:
        return self.markdown()
