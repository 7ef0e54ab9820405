"""Every private TensorFlow symbol that `explain_retracing` needs: a function's traces, and word of each new one.

A ``tf.function`` keeps its traces by the types of its arguments and by the setting in which it was called. TensorFlow
shows neither to the public. Here both become plain data: `FunctionTrace`, with a `Leaf` for each tensor, number or
object in the arguments. `BLIND` says what is missing in this TensorFlow; then `explain_retracing` gives the number of
traces, which is public, and no causes.
"""

import ast
import contextlib
import dataclasses
import pathlib
import sys
import typing
from collections.abc import Iterator
from types import FrameType

from tapelab.explain.ground import lines
from tapelab.explain.ground.lines import Line
from tapelab.explain.retracing import callables
from tapelab.explain.retracing.callables import Function

import tensorflow as tf

BLIND = None
try:
    from tensorflow.core.function.trace_type import default_types
    from tensorflow.python.eager.polymorphic_function import function_context, tracing_compilation, transform
    from tensorflow.python.ops.resource_variable_ops import VariableSpec

    # What is read of these below is there as well, or the import says what is not.
    _ = transform.CONCRETE_FUNCTION_CALLBACKS, tracing_compilation.ScopeType.VARIABLE_CREATION
    _ = function_context.make_function_context
    _ = tf.function(lambda: None)._function_cache._primary
except (ImportError, AttributeError) as error:
    BLIND = f"TensorFlow {tf.__version__} lacks a symbol that explain_retracing looks through: {error}"

_POLYMORPHIC = "polymorphic_function/polymorphic_function.py"
_TENSORFLOW = str(pathlib.Path(tf.__file__).parent)
PFOR = "parallel_for/control_flow_ops.py"  # where tape.jacobian, batch_jacobian and tf.vectorized_map make functions
_WRAPPER = "util/traceback_utils.py"  # a frame of it lies between a call and the function


class Leaf(typing.NamedTuple):
    """One tensor, number or object in the arguments, or the shape of the structure around several.

    Attributes:
        kind: "tensor", "variable", "value" (a Python value), "object", "structure", or the name of a `tf.TypeSpec`.
        shape: a `tf.TensorShape`, or None.
        dtype: a `tf.DType`, or None.
        value: what else it is: a value, a description, an object's type. Objects also have their identity.
        type: TensorFlow's own description, which decides whether two leaves are the same.
    """

    kind: str
    shape: object
    dtype: object
    value: object
    type: object

    def same(self, other: "Leaf") -> bool:
        """Whether TensorFlow takes the two for the same. An object that is gone is not even the same as itself."""
        return self.kind == other.kind and bool(self.type == other.type)


@dataclasses.dataclass(frozen=True)
class FunctionTrace:
    """One trace of a function.

    Attributes:
        leaves: path in the arguments, such as ``batch['image']`` → `Leaf`.
        setting: what else decides: the code of the cause where it changes → hashable.
        makes_variables: True for the trace of a first call that made variables, False for that of one after it, None
            where there are none.
        line: the learner's `Line` with the call, or None.
        call: that call as an `ast.Call`, or None.
    """

    leaves: dict
    setting: dict
    makes_variables: bool | None
    line: Line | None = None
    call: ast.Call | None = None


@dataclasses.dataclass(frozen=True)
class New:
    """A trace that was made while `noticing`.

    Attributes:
        function: the ``tf.function``.
        before: the traces it had before, a list of `FunctionTrace`.
        trace: the new one.
        captured: names that its Python code reads from outside, with their values, where these are plain numbers or
            texts.
    """

    function: object
    before: list
    trace: FunctionTrace
    captured: dict


def traces_of(function: Function) -> list[FunctionTrace]:
    """Return a function's traces, oldest first, as a list of `FunctionTrace`."""
    found = []
    for (context, function_type), concrete in list(function._function_cache._primary.items()):
        found.append(_trace(function_type, context, *_call_of(function, concrete)))
    return mark_makers(found)


@contextlib.contextmanager
def noticing(found: list[New]) -> Iterator[None]:
    """While this context lasts, append a `New` to the list `found` for each trace that is made, in any thread."""

    def notice(concrete: typing.Any) -> None:
        # A trace that cannot be read must not become the learner's error.
        with contextlib.suppress(AttributeError, KeyError, ValueError, TypeError):
            new = _new(concrete, sys._getframe(1))
            if new is not None:
                found.append(new)

    transform.CONCRETE_FUNCTION_CALLBACKS.append(notice)
    try:
        yield
    finally:
        transform.CONCRETE_FUNCTION_CALLBACKS.remove(notice)


def _new(concrete: typing.Any, frame: FrameType | None) -> New | None:
    """Read what was traced from the stack; None for what is no learner's function (a dataset's, TensorFlow's own)."""
    options = None
    while frame is not None:
        code = frame.f_code
        if options is None and code is tracing_compilation.trace_function.__code__:
            options = frame.f_locals.get("tracing_options")
        elif options is not None and code.co_filename.endswith(_POLYMORPHIC):
            function = frame.f_locals.get("self")
            if callables.is_function(function) and function._function_cache is options.function_cache:
                break
        frame = frame.f_back
    else:
        return None
    file = getattr(callables.code_of(function), "co_filename", "")
    if file.startswith(_TENSORFLOW) and not file.endswith(PFOR):
        return None
    setting = function_context.make_function_context(options.scope_type)
    trace = _trace(concrete.function_type, setting, *_call_of(function, concrete))
    return New(function, traces_of(function), trace, callables.captured(function))


def mark_makers(found: list[FunctionTrace]) -> list[FunctionTrace]:
    """Return traces of one function, marked as `FunctionTrace.makes_variables` says.

    TensorFlow marks each trace as one that may make variables until one has.
    """
    if all(one.makes_variables for one in found):
        return [dataclasses.replace(one, makes_variables=None) for one in found]
    return found


def _trace(function_type: typing.Any, context: typing.Any, line: Line | None, call: ast.Call | None) -> FunctionTrace:
    eager = context.context
    setting = {
        "graph": (None if eager.parent_graph is None else id(eager.parent_graph), eager.xla_context_id),
        "strategy": (eager.in_cross_replica_context, tuple(map(str, eager.device_functions))),
        "saving": str(eager.variable_policy),
    }
    leaves = {}
    for name, parameter in function_type.parameters.items():
        _flatten(name, parameter.type_constraint, leaves)
    makes = context.scope_type is tracing_compilation.ScopeType.VARIABLE_CREATION
    return FunctionTrace(leaves, setting, makes, line, call)


def _flatten(path: str, kind: typing.Any, leaves: dict[str, Leaf]) -> None:
    inner, what = _inner(path, kind)
    if inner is not None:
        leaves[path] = Leaf("structure", None, None, what, what)
        for part, inside in inner.items():
            _flatten(part, inside, leaves)
    elif isinstance(kind, default_types.Literal):
        value = float("nan") if kind.value is default_types.NanMarker else kind.value
        leaves[path] = Leaf("value", None, None, value, kind)
    elif isinstance(kind, default_types.Weakref):
        leaves[path] = Leaf("object", None, None, _object(kind.placeholder_value(None)), kind)
    elif isinstance(kind, VariableSpec):
        leaves[path] = Leaf("variable", kind.shape, kind.dtype, (kind.trainable, kind.alias_id), kind)
    elif isinstance(kind, tf.TensorSpec):
        leaves[path] = Leaf("tensor", kind.shape, kind.dtype, None, (kind.shape, kind.dtype))
    else:
        name = type(kind).__name__.removesuffix("Spec")
        shape, dtype = getattr(kind, "shape", None), getattr(kind, "dtype", None)
        leaves[path] = Leaf(name, shape, dtype, str(kind), kind)


def _inner(path: str, kind: typing.Any) -> tuple[dict[str, typing.Any] | None, str | None]:
    """Return ({path: type} of what is inside, a description), or (None, None) where a type is no structure."""
    if isinstance(kind, (default_types.List, default_types.Tuple)):
        inner = {f"{path}[{i}]": part for i, part in enumerate(getattr(kind, "components_tuple", kind).components)}
        return inner, f"a {type(kind).__name__.lower()} of {len(inner)}"
    if isinstance(kind, default_types.Dict):
        inner = {f"{path}[{key!r}]": inside for key, inside in kind.mapping.items()}
        return inner, "a dict with " + (", ".join(sorted(map(repr, kind.mapping))) or "no keys")
    if isinstance(kind, default_types.NamedTuple):
        fields = zip(kind.attribute_names, kind.attributes.components, strict=True)
        return {f"{path}.{name}": inside for name, inside in fields}, f"a {kind.type_name}"
    return None, None


def _object(value: object) -> str:
    if value is None:
        return "an object that no longer exists"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return f"a {type(value).__name__} object"


def _call_of(function: Function, concrete: typing.Any) -> tuple[Line | None, ast.Call | None]:
    """The learner's `Line` that called for a trace, and that call; None where it called, say, fit."""
    found = (None, None, None)
    for operation in concrete.graph.get_operations()[:8]:
        stack = list(operation.traceback)
        inside = ((i, entry) for i, entry in enumerate(stack) if entry.filename.endswith(_POLYMORPHIC))
        calls = [i for i, entry in inside if entry.name in ("__call__", "get_concrete_function")]
        # An operation inside another function's call has more of these frames: the fewest are this function's own.
        if calls and (found[0] is None or len(calls) < found[0]):
            outside = stack[: calls[-1]]
            while outside and outside[-1].filename.endswith(_WRAPPER):
                outside.pop()
            line = lines.first_own(outside)
            is_direct = bool(outside) and line == lines.first_own(outside[-1:])
            found = (len(calls), line, callables.call_on(line, callables.name_of(function)) if is_direct else None)
    return found[1:]
