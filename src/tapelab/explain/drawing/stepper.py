"""`step_through`: the table of a tape, one operation at a time: down with the values, then up with the gradients."""

import dataclasses
import hashlib
import html
import sys
from collections.abc import Sequence
from typing import Any

from tapelab.explain.drawing.numbered_table import Row, Table, table_of
from tapelab.explain.ground.explain_tape import ExplainTape

# Radio buttons and style sheets: they need no script and no kernel, and arrow keys move from one to the next, which
# JupyterLab would take for its own (`data-lm-suppress-shortcuts`). In print, and where a front-end takes styles away,
# as JupyterLab does in a notebook that it does not trust, the whole table stands there, and the buttons stay hidden.
_HIDDEN = 'hidden="hidden"'  # JupyterLab takes away what has no value
_STYLE = """
#ID { border: 0; margin: 0; padding: 0; min-width: 0; }
#ID legend { padding: 0; }
#ID label { margin: 0 0.9em 0 0.2em; cursor: pointer; }
#ID p { display: none; margin: 0.5em 0; }
#ID table { border-collapse: collapse; margin: 0; font-size: inherit; }
#ID :is(th, td) { text-align: left; padding: 0.25em 0.9em 0.25em 0.4em; }
@media screen {
#ID legend { display: block; }
#ID :is(input, label) { display: inline-block; }
"""
_STEP = """#ID input:nth-of-type(NOW):checked ~ p:nth-of-type(NOW) { display: block; }
#ID input:nth-of-type(NOW):checked ~ table .at-NOW { background: #2f81c730; }
"""
_LATER = "#ID input:nth-of-type(NOW):checked ~ table :is(LATER) { visibility: hidden; }\n"


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps through a table, from `step_through`: a notebook shows them with a button for each.

    Attributes:
        table: the whole `Table`, which is also what `print` shows.
        told: a sentence for each step.
    """

    table: Table
    told: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.table)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        name = "tape-" + hashlib.sha256(f"{self.table}{self.told}".encode()).hexdigest()[:8]
        buttons = "".join(
            f'<input type="radio" name="{name}" id="{name}-{step}" aria-label="{html.escape(f"{step}. {text}")}"'
            f"{' checked' if step == 1 else ''} data-lm-suppress-shortcuts {_HIDDEN}>"
            f'<label for="{name}-{step}" {_HIDDEN}>{step}</label>\n'
            for step, text in enumerate(self.told, 1)
        )
        sentences = "".join(f"<p>{html.escape(text)}</p>\n" for text in self.told)
        return (
            f'<fieldset id="{name}">\n<style>{self._style(name)}</style>\n'
            f"<legend {_HIDDEN}>One operation at a time (a click, or the arrow keys):</legend>\n{buttons}{sentences}"
            f"<table>\n{self._rows()}</table>\n</fieldset>"
        )

    def _style(self, name: str) -> str:
        count, rules = len(self.told), _STYLE
        for now in range(1, count + 1):
            later = ", ".join(f".from-{step}" for step in range(now + 1, count + 1))
            rules += (_STEP + (_LATER.replace("LATER", later) if later else "")).replace("NOW", str(now))
        return rules.replace("ID", name) + "}\n"

    def _rows(self) -> str:
        """The table's rows. What a step brings is in a span that says from which step on it is seen."""
        rows = self.table.rows
        heads = ("#", "operation", "of", "value ↓", f"gradient of {self.table.target} ↑")
        lines = ["<tr>" + "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads) + "</tr>\n"]
        for row in rows:
            down, up = row.number + 1, 2 * len(rows) + 1 - row.number  # when it is run, and when it is read
            cells = [str(row.number), row.title, row.source, _seen_from(down, row.value), _received(row, rows)]
            inside = "".join(f"<td>{cell}</td>" for cell in [*map(html.escape, cells[:3]), *cells[3:]])
            lines.append(f'<tr class="at-{down} at-{up}">{inside}</tr>\n')
        return "".join(lines)


def step_through(tape: ExplainTape, target: Any, sources: Any) -> Steps:
    """Go through what a tape recorded between some sources and a target, one operation at a time.

    Downwards each step brings a value. Then the target's gradient with respect to itself is 1, and upwards each step
    reads one row, and shows what it hands to the rows that it used. It is for short programs: there is a button for
    each step.

    Args:
        tape: an `ExplainTape`; it is not used up by this.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.

    Returns:
        The `Steps`. A notebook shows them; they need neither a script nor a kernel, so they work on a web page, too.

    Raises:
        TypeError: if `tape` is not an `ExplainTape`.
        ValueError: if there is nothing to list: no sources, or something that was not seen or is not a tensor.
    """
    whole = table_of(tape, target, sources, sys._getframe(1))
    rows = whole.rows
    down = [f"Down: row {row.number}, {row.source or row.title}, has the value {row.value}." for row in rows]
    start = f"Up: the gradient of {whole.target} with respect to itself is 1."
    up = [_handed(row, rows) for row in reversed(rows) if row.source]
    return Steps(whole, (*down, start, *up))


def _handed(row: Row, rows: Sequence[Row]) -> str:
    """A sentence on what one row hands to those above it."""
    parts = [(other.number, text) for other in rows for user, text in other.received if user == row.number]
    told = " and ".join(f"{text} to row {number}" for number, text in parts)
    return f"Up: row {row.number} hands {told or 'nothing on'}."


def _received(row: Row, rows: Sequence[Row]) -> str:
    """What a row has received, part by part, and the sum where there are several."""
    step, told = 0, ""
    for user, text in row.received:
        step = 2 * len(rows) + 1 - (len(rows) if user is None else user)
        told += _seen_from(step, f", {text}" if told else text)
    return told + (_seen_from(step, f"; sum {row.gradient}") if len(row.received) > 1 else "")


def _seen_from(step: int, text: str) -> str:
    return f'<span class="from-{step}">{html.escape(text)}</span>'
