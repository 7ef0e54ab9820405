"""What to write so that a tf.function is not traced again: the learner's own call or decorator, rewritten."""

import ast
from collections.abc import Sequence

from tapelab.explain.causes import RETRACED
from tapelab.explain.ground.expressions import argument, replaced
from tapelab.explain.retracing import callables, traces
from tapelab.explain.retracing.callables import Function
from tapelab.explain.retracing.traces import FunctionTrace, Leaf

import tensorflow as tf


def differing_axes(shapes: Sequence[tf.TensorShape]) -> list[int]:
    """Return the axes in which shapes of one rank differ, a list of integers."""
    return [axis for axis in range(shapes[0].rank) if len({shape[axis] for shape in shapes}) > 1]


def _passed(function: Function, call: ast.Call | None, path: str) -> ast.expr | None:
    """Return the part of a call, as an `ast.expr`, that is an argument or holds it; None where it is not known."""
    if call is None or not path:
        return None
    name = _top(path)
    code = getattr(callables.plain(function), "__code__", None)
    if code is None:
        return None
    names = list(code.co_varnames[: code.co_argcount])
    if callables.is_method(function):
        names = names[1:]
    if name in names:
        return argument(call, names.index(name), (name,))
    return next((one.value for one in call.keywords if one.arg == name), None)


def _top(path: str) -> str:
    return path.split("[")[0].split(".")[0]


def expression_of(function: Function, call: ast.Call | None, path: str) -> str | None:
    """The learner's source of an argument in the call, or None."""
    found = _passed(function, call, path)
    return ast.unparse(found) + path[len(_top(path)) :] if found is not None else None


def _call_with(function: Function, trace: FunctionTrace, path: str, wrapping: str) -> str:
    """The call's source with an argument replaced: `wrapping` is its new source, {} the old one; or that in words."""
    found = _passed(function, trace.call, path)
    if _top(path) == path and found is not None:
        return ast.unparse(replaced(trace.call, found, wrapping.format(ast.unparse(found))))
    if _top(path) == path and len({_top(one) for one in trace.leaves}) == 1:
        return f"{callables.name_of(function)}({wrapping.format(path)})"
    said = expression_of(function, trace.call, path) or path
    return f"# pass {wrapping.format(said)} in place of {said}"


def fix_of(function: Function, path: str, code: str, last: int, found: Sequence[FunctionTrace]) -> str:
    """Return what to write against one cause, as code; empty where nothing is to be mended.

    Args:
        function: the ``tf.function``.
        path: the place in the arguments.
        code: of the cause.
        last: the number of the last trace that it brought.
        found: all traces.
    """
    name, latest = callables.name_of(function), found[last]
    leaves = [trace.leaves[path] for trace in found[: last + 1] if path in trace.leaves]
    if code == "shape":
        return _fix_of_shape(function, path, leaves)
    if code == "dtype":
        return _call_with(function, latest, path, f"tf.cast({{}}, {leaves[0].dtype!r})") + "  # one dtype in every call"
    if code == "python_value":
        made = "tf.constant({})"
        floating = [one.dtype for one in latest.leaves.values() if one.dtype is not None and one.dtype.is_floating]
        if floating and all(isinstance(leaf.value, int | float) for leaf in leaves):
            # A Python number takes the dtype of what it meets; a tensor has one of its own.
            made = f"tf.constant({{}}, {floating[0]!r})"
        fixed = _call_with(function, latest, path, made)
        why = f"# if {name} needs it in Python, as a shape or for a Python loop, a trace for each value is the price"
        return f"{fixed}  # a tensor: one trace for all values\n{why}"
    if code == "object" and any("function" in leaf.value for leaf in leaves):
        return f"# define the function once, outside the loop, and pass the same one in each call of {name}"
    if code == "structure" and any("list" in str(leaf.value) or "tuple" in str(leaf.value) for leaf in leaves):
        fixed = _call_with(function, latest, path, "tf.stack({})")
        return f"{fixed}  # one tensor; or a list or tuple of one length in every call"
    if code == "kind":
        values = [trace for trace in found if path in trace.leaves and trace.leaves[path].kind == "value"]
        dtypes = [leaf.dtype for leaf in leaves if leaf.dtype is not None]
        if values and dtypes and values[-1].leaves[path].value is not None:
            fixed = _call_with(function, values[-1], path, f"tf.constant({{}}, {dtypes[-1]!r})")
            return f"{fixed}  # a tensor in every call"
    return RETRACED[code].fix.format(name=name, path=path)


def _fix_of_shape(function: Function, path: str, leaves: Sequence[Leaf]) -> str:
    shapes = [leaf.shape for leaf in leaves if leaf.shape is not None]
    if traces.compiled_by_xla(function):
        first = f"# XLA compiles anew for each shape, so pad {path} to one shape, for instance:"
        return f"{first}\ndataset.batch(n, drop_remainder=True)  # or dataset.padded_batch(n, padded_shapes)"
    is_batch = len({shape.rank for shape in shapes}) == 1 and shapes[0].rank and differing_axes(shapes) == [0]
    more = "\n# or one batch size: dataset.batch(n, drop_remainder=True)" if is_batch else ""
    return "@tf.function(reduce_retracing=True)  # one trace for all sizes" + more
