"""What is to be mended: the learner's line that was blamed, and how to change it."""

import ast
import dataclasses
from ast import unparse as text

from tapelab.explain.ground.expressions import called, closed, contains, replaced
from tapelab.explain.values.rerun.nodes import Node


@dataclasses.dataclass(frozen=True)
class Patient:
    """What is to be mended.

    Attributes:
        node: the `Node` to blame.
        then: the nodes that carried the trouble on.
        expression: the learner's expression that ran it.
        statement: the statement that this is in.
        values: of the story.
    """

    node: Node
    then: tuple
    expression: ast.expr
    statement: ast.stmt | None
    values: dict

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

    def with_expression(self, new: str) -> str:
        """The statement with another expression in place of the one that is blamed, as text."""
        return self.with_part(self.expression, new)

    def with_argument(self, template: str) -> str | None:
        """The statement with the argument changed: "{0}" in the template stands for it, "{1}" for it as an operand."""
        part = self.argument
        return None if part is None else self.with_part(part, template.format(text(part), closed(part)))

    def with_part(self, part: ast.expr, new: str) -> str:
        """The statement with some part of it replaced, as text; of a lambda that; of a long one the expression."""
        inside = [one for one in self.lambdas if contains(one, part)]
        simple = isinstance(self.statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr))
        whole = self.statement if simple and contains(self.statement, part) else self.expression
        whole = inside[-1] if inside else whole if contains(whole, part) else part
        return _plain_numbers(text(ast.fix_missing_locations(replaced(whole, part, new))))


def _plain_numbers(source):
    """Write 1e-6 and 1e9 as people do: Python writes 1e-06 and 1000000000.0."""
    return source.replace("1e-0", "1e-").replace("1000000000.0", "1e9")


def same(one: ast.AST, other: ast.AST) -> bool:
    """Whether two expressions are one."""
    return contains(one, other) and contains(other, one)
