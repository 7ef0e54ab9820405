"""What `explain` answers, as an object and as text, Markdown and HTML."""

import collections.abc
import dataclasses
import html

from tapelab.explain.bodies import Cut
from tapelab.explain.causes import CAUSES, REMARKS
from tapelab.explain.lines import Line


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """Whether a gradient exists and, if not, why not. True in a condition if it exists.

    Attributes:
        exists: True or False; None where it could not be found out.
        code: a key of `tapelab.explain.causes.CAUSES`; "exists" where the gradient does.
        sentence: one sentence, with the learner's names.
        source, target: what they are called.
        line: the learner's own `Line` where the flow was cut, or None where no line is to blame or none is known.
        certain: False where the answer is only probable.
        fix: what to write, as code.
        cuts: the first cut on each path from the source, a tuple of `Cut`.
        further: cuts behind the first on the path with the fewest, a tuple of `Cut`.
        remarks: keys of `tapelab.explain.causes.REMARKS`.
    """

    exists: bool | None
    code: str
    sentence: str
    source: str = "source"
    target: str = "target"
    line: Line | None = None
    certain: bool = True
    fix: str = ""
    cuts: tuple[Cut, ...] = ()
    further: tuple[Cut, ...] = ()
    remarks: tuple[str, ...] = ()

    def __bool__(self):
        return self.exists is True

    def __repr__(self):
        return f"<Explanation: {self.heading}>"

    def __str__(self):
        return "\n".join(self._lines(_plain))

    def markdown(self):
        """Return the explanation as Markdown."""
        return "\n\n".join(self._lines(_markdown))

    def html(self):
        """Return the explanation as an HTML fragment."""
        return "<div>" + "".join(f"<p>{part}</p>" for part in self._lines(_html)) + "</div>"

    def _repr_markdown_(self):
        return self.markdown()

    def _lines(self, style):
        yield style.strong(self.heading) + (" " + style.text("(probable)") if not self.certain else "")
        yield style.text(self.sentence)
        if self.line is not None:
            where = style.text(f"{self.line.place}:" if self.line.text else self.line.place)
            yield where + (" " + style.code(self.line.text) if self.line.text else "")
        if self.fix:
            yield style.text("Fix:") + style.block(self.fix)
        if self.further:
            yield style.text("Then also: " + "; ".join(_describe(cut) for cut in self.further) + ".")
        for code in self.remarks:
            remark = REMARKS[code]
            yield style.text(f"Note ({code}): {remark.meaning}")

    @property
    def heading(self):
        """The answer in a few words."""
        gradient = f"d {self.target} / d {self.source}"
        if self.exists:
            return f"{gradient} exists"
        verdict = "could not be explained" if self.exists is None else "is None"
        if self.code == "no_gradient_registered":
            verdict = "raises LookupError"
        if self.code == "used_up":
            verdict = "is refused"
        return f"{gradient} {verdict}: {self.code}"


class Explanations(collections.abc.Mapping):
    """One `Explanation` for each source, by name, in the order of the sources. True in a condition if all exist."""

    def __init__(self, named):
        """Args:
        named: a list of (name, `Explanation`), the names distinct.
        """
        self._named = dict(named)

    def __getitem__(self, name):
        return self._named[name]

    def __iter__(self):
        return iter(self._named)

    def __len__(self):
        return len(self._named)

    def __bool__(self):
        return all(self._named.values())

    def missing(self):
        """Return the explanations of the gradients that do not exist, as a list."""
        return [explanation for explanation in self._named.values() if not explanation]

    def __repr__(self):
        return f"<Explanations: {'; '.join(one.heading for one in self._named.values())}>"

    def __str__(self):
        return "\n\n".join(map(str, self._named.values()))

    def markdown(self):
        """Return a Markdown table of all sources, followed by the explanations of those without a gradient."""
        rows = [
            f"| {_markdown.cell(name)} | {'yes' if one else 'no' if one.exists is False else '?'} "
            f"| {'' if one else _markdown.code(one.code)} | {_markdown.cell(one.line.place) if one.line else ''} |"
            for name, one in self._named.items()
        ]
        table = "\n".join(["| source | gradient | cause | where |", "|---|---|---|---|", *rows])
        return "\n\n".join([table, *(one.markdown() for one in self.missing())])

    def html(self):
        """Return an HTML fragment with the explanations of all sources."""
        return "".join(one.html() for one in self._named.values())

    def _repr_markdown_(self):
        return self.markdown()


def _describe(cut):
    where = f" ({cut.line.place})" if cut.line else ""
    return f"{CAUSES[cut.code].title} at {cut.op}{where}"


class _Plain:
    strong = text = code = staticmethod(str)

    @staticmethod
    def block(code):
        return "".join(f"\n    {line}" for line in code.splitlines())


class _Markdown:
    @staticmethod
    def text(text):
        return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|" else letter for letter in text)

    cell = text

    @classmethod
    def strong(cls, text):
        return f"**{cls.text(text)}**"

    @staticmethod
    def code(text):
        fence = "``" if "`" in text else "`"
        return f"{fence} {text} {fence}" if fence == "``" else f"`{text}`"

    @staticmethod
    def block(code):
        return f"\n\n```python\n{code}\n```"


class _Html:
    text = staticmethod(html.escape)

    @staticmethod
    def strong(text):
        return f"<strong>{html.escape(text)}</strong>"

    @staticmethod
    def code(text):
        return f"<code>{html.escape(text)}</code>"

    @staticmethod
    def block(code):
        return f"</p><pre><code>{html.escape(code)}</code></pre><p>"


_plain, _markdown, _html = _Plain(), _Markdown(), _Html()
