"""The learner's expression that ran a node."""

import ast

from tapelab.explain.ground.expressions import at, called, statement_at
from tapelab.explain.values.rerun.nodes import Node

# By which words a line calls an operation, where only the line is known: within a tf.function.
_WORDS = {
    "Log": ("log",),
    "Log1p": ("log1p",),
    "Sqrt": ("sqrt", "norm", "reduce_std"),
    "Rsqrt": ("rsqrt",),
    "EuclideanNorm": ("reduce_euclidean_norm",),
    "Exp": ("exp",),
    "Acos": ("acos",),
    "Asin": ("asin",),
    "Relu": ("relu",),
    "Softmax": ("softmax",),
    "Sigmoid": ("sigmoid",),
    "Tanh": ("tanh",),
    "Sign": ("sign",),
    "Pow": ("pow", ast.Pow),
    "RealDiv": ("divide", "truediv", ast.Div),
    "Mul": ("multiply", ast.Mult),
    "Sub": ("subtract", ast.Sub),
    "AddV2": ("add", ast.Add),
    "MatMul": ("matmul", ast.MatMult),
    "Cholesky": ("cholesky",),
    "Cumprod": ("cumprod",),
    "SelectV2": ("where",),
    "Maximum": ("maximum",),
    "Minimum": ("minimum",),
}


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
    words = _WORDS.get(node.op, ())
    statement = statement_at(line)
    if statement is None or not words:
        return None
    found = [one for one in ast.walk(statement) if called(one) in words]
    return found[0] if len(found) == 1 else None
