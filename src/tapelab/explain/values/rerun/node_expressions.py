"""The learner's expression that ran a node."""

import ast

from tapelab.explain.ground.expressions import at, called, statement_at
from tapelab.explain.ground.rendering import words_of
from tapelab.explain.values.rerun.nodes import Node


def of_node(node: Node) -> ast.expr | None:
    """Return the expression that ran a `Node`, an `ast.expr`, or None.

    In eager code it is the call or the operator that the learner wrote. Within a tf.function only the line is known:
    there it is the one expression in it that can have made this operation, if there is one.
    """
    line = node.line
    if line is None:
        return None
    if line == node.event.line and node.event.place.code is not None:
        found = at(node.event.place.code, node.event.place.instruction)
        if found is not None:
            return found
    statement = statement_at(line)
    if statement is None:
        return None
    found = [one for one in ast.walk(statement) if called(one) in words_of(node.op)]
    return found[0] if len(found) == 1 else None
