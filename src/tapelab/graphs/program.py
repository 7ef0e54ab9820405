"""A traced graph as a program: the functions that it calls, and the lines of its operations."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tapelab.graphs.libraries import is_library
from tapelab.graphs.operations import with_fact
from tapelab.process.tensorflow import Tensors, tf

CALLS, BRANCHES, LOOPS = with_fact("call"), with_fact("branch"), with_fact("loop")
_HOLDERS = CALLS | BRANCHES | LOOPS  # of functions
SHAPES = with_fact("shape")  # what they give depends on no value
Calls = tuple[tuple[tf.Operation, tf.Graph], ...]  # each with its function's graph, the outermost first
_READING, _DRAWING = with_fact("reads"), with_fact("random")  # stateful, and they change nothing that anybody has


def has_custom_gradient(op: tf.Operation) -> bool:
    """Whether an operation's gradient was given by the function's author: tf.custom_gradient, gradient_override_map."""
    if op.type in CALLS:
        return False  # every traced function has this attribute
    return "_gradient_op_type" in op.node_def.attr


def is_safe_to_run(op: tf.Operation) -> bool:
    """Whether running an operation once more changes nothing: it is not stateful, or reads, or draws random numbers."""
    return not op.op_def.is_stateful or op.type in _READING or op.type in _DRAWING


def attributes_of(operation: tf.Operation) -> tuple[Any, ...]:
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


def place(op: tf.Operation) -> str:
    """Name an operation and the line that made it: the innermost one that is in no library."""
    frames = [frame for frame in op.traceback or [] if not is_library(frame.filename)]
    return f"{op.type} at {frames[-1].filename}:{frames[-1].lineno}" if frames else f"{op.type} ({op.name})"


def in_order(graph: tf.Graph, ends: Tensors | None = None) -> list[tf.Operation]:
    """Return a graph's operations, each after those of its inputs: a loop gets further ones with its gradient.

    Args:
        ends: tensors whose operations and what they are made of are wanted alone; None for all.
    """
    found: list[tf.Operation] = []
    last = graph.get_operations() if ends is None else [tensor.op for tensor in ends]
    met, left = set(), [(op, False) for op in reversed(last)]
    while left:
        op, ready = left.pop()
        if ready:
            found.append(op)
        elif op not in met:
            met.add(op)
            left += [(op, True), *((tensor.op, False) for tensor in reversed(op.inputs))]
    return found


def behind(tensors: Iterable[tf.Tensor], ends: frozenset[str]) -> set[tf.Operation]:
    """Return the operations from which tensors of a graph are computed; nothing behind those of the types ``ends``."""
    met: set[tf.Operation] = set()
    left = [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op not in met:
            met.add(op)
            left += [] if op.type in ends else [tensor.op for tensor in op.inputs]
    return met


def made_of(tensors: Iterable[tuple[Any, Calls]], ends: frozenset[str]) -> set[tuple[Any, Calls]]:
    """Return the tensors of which tensors are computed, within the functions that are called on the way, too.

    A result of a call is made of what it is made of in the function's body. Where no body is found, and in loops and
    branches, each result counts as made of all that is given.

    Args:
        tensors: pairs of a tensor's reference and the calls within whose functions it is.
        ends: types of operations behind which nothing is looked for.
    """
    met: set[tuple[Any, Calls]] = set()
    left = list(tensors)
    while left:
        one = left.pop()
        if one in met:
            continue
        met.add(one)
        reference, calls = one
        tensor = reference.deref()
        op, body = tensor.op, _body_of_call(tensor.op)
        if body is not None:
            left.append((body.outputs[tensor.value_index].ref(), (*calls, (op, body))))
        elif op.type == "Placeholder" and calls:
            *outer, (caller, within) = calls
            number = [given.ref() for given in within.inputs].index(reference)
            left.append((caller.inputs[number].ref(), tuple(outer)))
        elif op.type not in ends:
            left += [(given.ref(), calls) for given in op.inputs]
    return met


def _body_of_call(op: tf.Operation) -> tf.Graph | None:
    if op.type in CALLS:
        with contextlib.suppress(LookupError):
            body = function_body(op.graph, _functions(op)[0])
            if len(body.outputs) == len(op.outputs) and len(body.inputs) == len(op.inputs):
                return body
    return None


def branches_of(op: tf.Operation) -> list[str]:
    """Return the names of the functions of which a conditional runs one: of an if the second one first."""
    if op.type in ("If", "StatelessIf"):
        return [op.get_attr("else_branch").name, op.get_attr("then_branch").name]
    return [branch.name for branch in op.get_attr("branches")]


def function_body(graph: tf.Graph, name: str) -> tf.Graph:
    """Return the graph of a function that a graph calls by name.

    Raises:
        LookupError: if it is not found, or this release keeps it elsewhere.
    """
    while graph is not None:
        body = getattr(getattr(graph, "_functions", {}).get(name), "graph", None)
        if body is not None:
            return body
        graph = getattr(graph, "outer_graph", None)
    try:
        from tensorflow.python.eager import context
        from tensorflow.python.framework import function_def_to_graph

        return function_def_to_graph.function_def_to_graph(context.get_function_def(name))
    except (ImportError, AttributeError, RuntimeError) as error:  # the last where it calls another by its bare name
        raise LookupError(f"the body of the function {name} is not found") from error


def captures(graph: tf.Graph) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Return what the graph of a function has taken from outside: pairs of the tensor there and the one inside.

    ``captures`` has them. Without it none are found, and so no use of a variable.
    """
    return list(getattr(graph, "captures", ()))


def everything(operations: Iterable[tf.Operation]) -> Iterator[tf.Operation]:
    """Operations, and those of the functions that they call, as far as they are found."""
    for op in operations:
        yield op
        if op.type in _HOLDERS:
            for name in _functions(op):
                with contextlib.suppress(LookupError):
                    yield from everything(function_body(op.graph, name).get_operations())


def _functions(op: tf.Operation) -> list[str]:
    found: list[str] = []
    for attribute in op.op_def.attr:
        if "func" in attribute.type:
            value = op.get_attr(attribute.name)
            found += [function.name for function in (value if isinstance(value, list) else [value])]
    return found


def inside(graph: tf.Graph, sources: Iterable[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """Return the tensors that stand for tensors and variables in a graph, which may be within others."""
    chain = [graph]
    while getattr(chain[0], "outer_graph", None) is not None:
        chain.insert(0, chain[0].outer_graph)
    found = [source.handle if isinstance(source, tf.Variable) else source for source in sources]
    ids = {id(tensor) for tensor in found}
    for each in chain:
        for outside, within in captures(each):
            if id(outside) in ids:
                found.append(within)
                ids.add(id(within))
    return found
