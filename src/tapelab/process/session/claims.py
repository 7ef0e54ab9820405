"""The folded cells that hold a notebook's checks: they run like any cell, and say in one line what came of it.

A cell whose first line is ``# @title Check``, or ``# Check`` in a learner's copy, holds what a notebook claims:
assertions, NumPy's and TensorFlow's, and reveals of predictions. JupyterLab and Colab show that line alone. Where
everything holds, the cell says how many checks that were. Where a claim fails, it depends on who is there. A person
reads what the text says and what their run has found, and the notebook goes on: it invites to experiments. A batch
run fails, with the original traceback and the same words. They name each parameter that is outside the range which its
comment gives: ``rate = 0.4  # of gradient descent: between 0.2 and 0.5``.
"""

import ast
import html
import re
import sys
import traceback
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tapelab.process import session

TITLES = ("# @title Check", "# Check")
_PARAMETERS = ("# @title Parameters", "# Parameters")
_RANGE = re.compile(r"^(\w+) = .*# .*\bbetween (-?[\d.]+(?:e-?\d+)?) and (-?[\d.]+(?:e-?\d+)?)", re.MULTILINE)
_LONGEST = 300  # characters of a value or a message


def watch() -> None:
    """Let the cells of this session's notebook that hold checks report what came of them. Outside IPython, nothing."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None or any(isinstance(other, _Transformer) for other in shell.ast_transformers):
        return
    transformer = _Transformer()
    shell.ast_transformers.append(transformer)
    shell.events.register("pre_run_cell", transformer.starts)


@dataclass
class Cell:
    """The checks of one cell, while it runs.

    Attributes:
        claims: the statements and calls that check something, as nodes of the syntax tree.
        failures: what was found instead, one text for each claim that failed.
    """

    claims: list[ast.AST]
    failures: list[str] = field(default_factory=list)

    def failed(self, error: Exception) -> None:
        """Note a claim that does not hold. Raises the error again if it is none of a claim's own."""
        if isinstance(error, NameError):
            raise error
        frame, line = next(traceback.walk_tb(error.__traceback__))
        around = [node for node in self.claims if node.lineno <= line <= node.end_lineno]
        if not around:
            raise error
        claim = min(around, key=lambda node: node.end_lineno - node.lineno)
        said, found = ast.unparse(claim), _short(f"{type(error).__name__}: {error}")
        if isinstance(claim, ast.Assert):
            said = ast.unparse(claim.test)
            if isinstance(error, AssertionError):
                found = _measured(claim.test, frame)
        text = " ".join(filter(None, [f"It says `{said}`.", found, *_outside()]))
        self.failures.append(text)
        if isinstance(error, AssertionError) and not session.attended():
            error.args = (f"{text}\n{error}".rstrip(),)

    def broke(self, error: Exception) -> None:
        """Note that the cell could not go on, usually because a cell above it has not been run."""
        cause = "The check needs a cell above it that was not run. " if isinstance(error, NameError) else ""
        self.failures.append(f"{cause}{type(error).__name__}: {_short(str(error))}")

    def done(self) -> None:
        """Show what came of the cell."""
        from IPython.display import display

        for text in self.failures:
            display(_Line(f"✗ Your run has left the text. {text}"))
        if self.claims and not self.failures:
            display(_Line(f"✓ the text holds ({len(self.claims)} check{'s' if len(self.claims) > 1 else ''})"))


@dataclass
class _Line:
    """One small line, as HTML or as plain text."""

    text: str

    def _repr_html_(self) -> str:
        return "<small>" + re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(self.text)) + "</small>"

    def __repr__(self) -> str:
        return self.text


class _Transformer:
    """IPython's way to change a cell's syntax tree before it runs."""

    current: Cell  # of the cell that runs now; what is inserted into the tree finds it here

    def __init__(self):
        self._source = None

    def starts(self, info: Any) -> None:
        title = (info.raw_cell or "").partition("\n")[0].rstrip()
        self._source = info.raw_cell if title in TITLES else None

    def visit(self, tree: ast.Module) -> ast.Module:
        source, self._source = self._source, None
        if source is None or not tree.body:
            return tree
        claims = [node for node in ast.walk(tree) if _is_claim(node)]
        _Transformer.current = Cell(claims)
        tree.body = [_guarded([s], "failed") if _holds(s, claims) else s for s in tree.body]
        if session.attended():
            tree.body = [_guarded(tree.body, "broke")]
        tree.body.append(_call("done()"))
        return ast.fix_missing_locations(tree)


def _is_claim(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return name.startswith("assert_")


def _holds(statement: ast.stmt, claims: Container[ast.AST]) -> bool:
    return any(node in claims for node in ast.walk(statement))


def _call(method: str) -> ast.stmt:
    """A statement that calls a method of the present cell, through no name of the notebook's own."""
    return ast.parse(f"__import__('sys').modules[{__name__!r}]._Transformer.current.{method}").body[0]


def _guarded(statements: list[ast.stmt], method: str) -> ast.stmt:
    """The statements, and a call of `method` with the exception that they raise, which goes on if nobody attends."""
    guarded = ast.parse("try:\n    pass\nexcept Exception as _error_of_a_check:\n    pass").body[0]
    guarded.body = statements
    guarded.handlers[0].body = [_call(f"{method}(_error_of_a_check)"), *([] if session.attended() else [ast.Raise()])]
    return guarded


def ranges(source: str) -> dict[str, tuple[float, float]]:
    """From each parameter's name to the ends between which every check holds, as its comment gives them."""
    return {name: (float(low), float(high)) for name, low, high in _RANGE.findall(source)}


def _outside() -> Iterator[str]:
    """A sentence for each parameter of this session that is outside its range."""
    shell = sys.modules["IPython"].get_ipython()
    for source in shell.user_ns["In"]:
        for name, (low, high) in ranges(source).items() if source.startswith(_PARAMETERS) else ():
            if not low <= shell.user_ns[name] <= high:
                yield f"{name} is {shell.user_ns[name]}; the text holds between {low:g} and {high:g}."


def _measured(test: ast.expr, frame: FrameType) -> str:
    """The value of a comparison's first side that names something; nothing for what cannot be computed twice."""
    if not isinstance(test, ast.Compare):
        return ""
    sides = [test.left, *test.comparators]
    side = next((side for side in sides if any(isinstance(node, ast.Name) for node in ast.walk(side))), test.left)
    try:
        code = compile(ast.fix_missing_locations(ast.Expression(side)), "<check>", "eval")
        return f"Yours: `{_short(_plainly(eval(code, frame.f_globals, frame.f_locals)))}`."
    except Exception:  # a tape may be used up by now
        return ""


def _plainly(value: Any) -> str:
    """A value as a person writes it: the number that a tensor or a NumPy scalar holds, without its type."""
    number = value.numpy() if hasattr(value, "numpy") else value
    return str(number) if getattr(number, "shape", None) == () else repr(number)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
