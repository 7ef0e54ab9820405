"""Operations of a graph, as they can be run again eagerly: in which order, with which attributes, which must not."""

from collections.abc import Callable, Mapping
from typing import Any

from tapelab.explain.ground import private
from tapelab.explain.ground.measure import Attributes, items
from tapelab.graphs.operations import with_fact
from tapelab.graphs.program import has_custom_gradient
from tapelab.process.tensorflow import Tensors, tf

# Operations that TensorFlow calls stateful and that can be run again without changing what the learner has: they read,
# or they draw random numbers that belong to nobody.
_READING, _DRAWING = with_fact("reads"), with_fact("random")


def is_safe_to_run(operation: tf.Operation) -> bool:
    """Whether running an operation of a graph once more changes nothing."""
    return not operation.op_def.is_stateful or operation.type in _READING or operation.type in _DRAWING


def pushed_in(body: tf.Graph, lists: Mapping[int, tf.Tensor]) -> dict[str, list[tf.Tensor]]:
    """Find what each round of a loop kept for the backward pass.

    Args:
        body: the graph of one round.
        lists: position of an output of the loop → its value; those that are not tensor lists are left out.

    Returns:
        Name of a tensor in the body → the list of its values, one for each round.
    """
    found = {}
    for position, value in lists.items():
        push = body.outputs[position].op
        if push.type != "TensorListPushBack" or value.dtype != tf.variant:
            continue
        tensor = push.inputs[1]
        if tensor.dtype not in (tf.variant, tf.resource):
            found[tensor.name] = items(value, tensor.dtype)
    return found


def attributes_of(operation: tf.Operation) -> Attributes:
    """Return an operation's attributes as eager execution takes them: a tuple of alternating names and values."""
    names = [attribute.name for attribute in operation.op_def.attr]
    return tuple(one for name in names for one in (name, _plain(operation.get_attr(name))))


def _plain(attribute: Any) -> Any:
    """An attribute of a graph's operation as eager execution takes it."""
    if isinstance(attribute, list):
        return [_plain(one) for one in attribute]
    if isinstance(attribute, tf.DType):
        return attribute.as_datatype_enum
    if hasattr(attribute, "unknown_rank"):  # a shape
        return None if attribute.unknown_rank else [size.size for size in attribute.dim]
    return getattr(attribute, "name", attribute)  # of a function its name


def custom_gradient(
    operation: tf.Operation,
    evaluate: Callable[[tf.Graph, Tensors], Tensors],
    value_of: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[..., list[tf.Tensor | None]] | None:
    """Return the backward function of an operation in a graph that has a custom gradient; None where it has none.

    Args:
        operation: of a graph.
        evaluate: takes a graph and the eager tensors for its inputs, and returns those of its outputs.
        value_of: takes a symbolic tensor of the operation's graph and returns the eager tensor that it stood for.
    """
    if not has_custom_gradient(operation):
        return None

    def backward(*upstream: tf.Tensor | None) -> list[tf.Tensor | None]:
        graph, captured, positions = private.inside_custom_gradient(operation, upstream)
        found = evaluate(graph, [*(one for one in upstream if one is not None), *map(value_of, captured)])
        return [None if position is None else found[position] for position in positions]

    return backward
