"""What is to be mended: the learner's line that was blamed, and how to change it."""

import ast
import copy
import dataclasses
from ast import unparse as text
from collections.abc import Mapping
from typing import Any

from tapelab.explain.ground.expressions import called, contains, operands, replaced, same
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node, of_node


def match(pattern: str, whole: ast.expr, blamed: ast.expr, node: Node, evidence: Evidence) -> dict[str, Any] | None:
    """Return what the names of a pattern stand for in an expression; None where it is not of that form.

    Args:
        whole: an expression of the learner's.
        blamed: that or a part of it, which has to be more to the pattern than a part of what a name stands for.
        node: that ran `blamed`. What goes into that may have been computed on another line.
        evidence: the `Evidence` about it.
    """
    one = _Match(blamed, node, evidence)
    if not one.fits(ast.parse(pattern, mode="eval").body, whole, None):
        return None
    parts = [part for found in one.found.values() for part in (found if isinstance(found, list) else [found])]
    return None if any(contains(part, blamed) for part in parts) else one.found


class _Match:
    def __init__(self, blamed: ast.expr, node: Node, evidence: Evidence):
        self._blamed, self._node, self._evidence = blamed, node, evidence
        self.found = {}

    def fits(self, pattern: ast.AST, one: ast.AST | None, maker: Node | None) -> bool:
        """Whether an expression, which a node ran if that is known, is of the form of a pattern."""
        if isinstance(pattern, ast.Name):
            return ast.unparse(self.found.setdefault(pattern.id, one)) == ast.unparse(one)
        if same(one, self._blamed):
            maker = self._node
        elif maker is not None and not _is_like(pattern, one):  # a name for what was computed before
            one = of_node(maker)
        if one is None or not _is_like(pattern, one):
            return False
        pairs = self._arguments(pattern, one) if isinstance(one, ast.Call) else _parts(pattern, one)
        known = operands(one, maker.inputs) if maker is not None else ()
        makers = {id(part): self._evidence.maker(key) for part, key in known}
        return pairs is not None and all(self.fits(*pair, makers.get(id(pair[1]))) for pair in pairs)

    def _arguments(self, pattern: ast.Call, call: ast.Call) -> list[tuple[ast.expr, ast.expr]] | None:
        """Pair the arguments of a pattern with those of a call; None where they are not of one number."""
        wanted = [one for one in pattern.args if not isinstance(one, ast.Starred)]
        named = {one.arg: one.value for one in pattern.keywords}
        others = [*call.args[len(wanted) :], *(one for one in call.keywords if one.arg not in named)]
        if len(wanted) < len(pattern.args):
            self.found[pattern.args[-1].value.id] = others
        elif others:
            return None
        given = {one.arg: one.value for one in call.keywords}
        if len(call.args) < len(wanted) or not named.keys() <= given.keys():
            return None
        return [*zip(wanted, call.args, strict=False), *((value, given[name]) for name, value in named.items())]


def _is_like(pattern: ast.AST, one: ast.AST) -> bool:
    if type(pattern) is not type(one):
        return False
    if isinstance(pattern, ast.Constant):
        return pattern.value == one.value
    return not isinstance(pattern, ast.Call) or pattern.func.id == {"truediv": "divide"}.get(called(one), called(one))


def _parts(pattern: ast.AST, one: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    return list(zip(ast.iter_child_nodes(pattern), ast.iter_child_nodes(one), strict=False))


class _Filling(ast.NodeTransformer):
    def __init__(self, found: Mapping[str, Any]):
        self._found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self._found.get(node.id, node))

    def visit_Call(self, node: ast.Call) -> ast.Call:
        rest = [one for part in node.args if isinstance(part, ast.Starred) for one in self._found[part.value.id]]
        node.args = [one for one in node.args if not isinstance(one, ast.Starred)]
        self.generic_visit(node)
        node.args += [one for one in rest if not isinstance(one, ast.keyword)]
        node.keywords += [one for one in rest if isinstance(one, ast.keyword)]
        return node


def filled(template: str, **found: Any) -> str:
    """Return the source of an expression in which names stand for others, as `match` returns them."""
    return ast.unparse(_Filling(found).visit(ast.parse(template, mode="eval").body))


@dataclasses.dataclass(frozen=True)
class Fix:
    """What to write.

    Attributes:
        text: as it is shown.
        part: the learner's expression that is replaced; None for advice, which cannot be run.
        new: what stands in its place.
        before: (name, expression) of a line that comes before it, or None.
        within: the statement or expression that it is in.
    """

    text: str
    part: ast.expr | None = None
    new: str = ""
    before: tuple[str, str] | None = None
    within: ast.AST | None = None


@dataclasses.dataclass(frozen=True)
class Patient:
    """What is to be mended.

    Attributes:
        node: the `Node` to blame.
        then: the nodes that carried the trouble on.
        expression: the learner's expression that ran it, or None.
        statement: the statement that this is in.
        values: of the story.
        evidence: the `Evidence`.
    """

    node: Node
    then: tuple
    expression: ast.expr | None
    statement: ast.stmt | None
    values: dict
    evidence: Evidence

    @property
    def argument(self) -> ast.expr | None:
        """The expression to blame within: the first argument, the denominator, the base of a power."""
        if isinstance(self.expression, ast.BinOp):
            return self.expression.right if isinstance(self.expression.op, ast.Div) else self.expression.left
        if isinstance(self.expression, ast.Call) and self.expression.args:
            return self.expression.args[1 if called(self.expression) in ("divide", "truediv") else 0]
        return None

    @property
    def lambdas(self) -> list[ast.Lambda]:
        """The lambdas that the expression is in, the innermost last: no line can be put before it."""
        around = ast.walk(self.statement) if self.statement is not None else ()
        return [one for one in around if isinstance(one, ast.Lambda) and contains(one, self.expression)]

    def with_argument(self, template: str) -> Fix:
        """The statement with the argument changed: `s` in the template stands for it."""
        return self.with_part(self.argument, filled(template, s=self.argument))

    def with_safe_argument(self, condition: str, safe: str, when: bool = True, other: str = "") -> Fix:
        """The statement with another argument where a condition holds not (or, without `when`, where it does).

        With `other`, that stands there for the expression itself.
        """
        chosen = [text(self.argument), safe] if when else [safe, text(self.argument)]
        choice = f"tf.where({condition}, {', '.join(chosen)})"
        # In a lambda no line can be put before it.
        argument, before = (choice, None) if self.lambdas else ("safe", ("safe", choice))
        if not other:
            return self.with_part(self.argument, argument, before)
        inner = text(replaced(self.expression, self.argument, argument))
        return self.with_part(self.expression, f"tf.where({condition}, {inner}, {other})", before)

    def with_part(self, part: ast.expr, new: str, before: tuple[str, str] | None = None) -> Fix:
        """The statement with some part of it replaced; of a lambda that is shown; of a long one the expression."""
        inside = [one for one in self.lambdas if contains(one, part)]
        simple = isinstance(self.statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr))
        whole = self.statement if simple and contains(self.statement, part) else self.expression
        whole = inside[-1] if inside else whole if contains(whole, part) else part
        line = text(ast.fix_missing_locations(replaced(whole, part, new)))
        line = line.replace("1e-0", "1e-").replace("1000000000.0", "1e9")  # as people write them, and Python does not
        written = "\n".join([*([" = ".join(before)] if before else ()), line])
        return Fix(written, part, new, before, self.statement or whole)
