"""A program with its calls opened: the operations of the functions that it calls, in the graph that is being built."""

from tapelab.graphs.flow import Walk
from tapelab.graphs.operations import known
from tapelab.graphs.program import CALLS, function_body, has_custom_gradient, reissue
from tapelab.process.tensorflow import Tensors, tf


def can_be_opened(graph: tf.Graph) -> bool:
    """Whether a graph's operations, and those of the functions that it calls, can be issued again one by one.

    What changes something, has a gradient of its own, or holds functions of its own (loops) is left as it is; so is
    what is to be compiled by XLA as a whole.
    """
    for op in graph.get_operations():
        if op.type in CALLS:
            if op.node_def.attr["_XlaMustCompile"].b or not _body_can_be_opened(op):
                return False
        elif op.type not in ("Const", "NoOp", "Placeholder") and (
            has_custom_gradient(op)
            or (op.op_def.is_stateful and not known(op.type).has("reads"))
            or any("func" in attribute.type for attribute in op.op_def.attr)
            or not hasattr(tf.raw_ops, op.type)
        ):
            return False
    return True


def issued(graph: tf.Graph, inputs: Tensors) -> list[tf.Tensor]:
    """Issue a graph's operations on these inputs, captured ones last, with calls opened. Returns its outputs."""
    return _Issued().run(graph, inputs)


class _Issued(Walk[tf.Tensor]):
    def step(self, op: tf.Operation, known: list[tf.Tensor]) -> list[tf.Tensor]:
        results = reissue(op, known)
        for result in results:
            result.op.issued_from = op  # whose line is that of both: see `place`
        return results


def _body_can_be_opened(op: tf.Operation) -> bool:
    try:
        return can_be_opened(function_body(op.graph, op.get_attr("f").name))
    except LookupError:
        return False
