"""What is to be mended: the learner's line that was blamed, and how to change it."""

import ast
import dataclasses
from ast import unparse as text

from tapelab.explain.ground.expressions import called, contains, replaced
from tapelab.explain.values.fixes.patterns import filled
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node


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

    def with_safe_argument(self, condition: str, safe: str, when: bool = True) -> Fix:
        """The statement with another argument where a condition holds not (or, without `when`, where it does)."""
        chosen = [text(self.argument), safe] if when else [safe, text(self.argument)]
        choice = f"tf.where({condition}, {', '.join(chosen)})"
        if self.lambdas:  # no line can be put before it
            return self.with_part(self.argument, choice)
        return self.with_part(self.argument, "safe", ("safe", choice))

    def with_part(self, part: ast.expr, new: str, before: tuple[str, str] | None = None) -> Fix:
        """The statement with some part of it replaced; of a lambda that is shown; of a long one the expression."""
        inside = [one for one in self.lambdas if contains(one, part)]
        simple = isinstance(self.statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr))
        whole = self.statement if simple and contains(self.statement, part) else self.expression
        whole = inside[-1] if inside else whole if contains(whole, part) else part
        line = text(ast.fix_missing_locations(replaced(whole, part, new)))
        line = line.replace("1e-0", "1e-").replace("1000000000.0", "1e9")  # as people write them, and Python does not
        return Fix(
            "\n".join([*([" = ".join(before)] if before else ()), line]), part, new, before, self.statement or whole
        )


def assigned(statement: ast.AST | None) -> set[str]:
    """Return the names that a statement assigns to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {text(target) for target in targets}
