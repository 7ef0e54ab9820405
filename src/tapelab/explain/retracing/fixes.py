"""What to write so that a tf.function is not traced again: the learner's own call or decorator, rewritten."""

import ast
from collections.abc import Sequence
from typing import Any

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
    """The call's source with an argument, or a part of one, replaced: `wrapping` is its new source, {} the old one."""
    name, found = callables.name_of(function), _passed(function, trace.call, path)
    if found is None:
        alone = len({_top(one) for one in trace.leaves}) == 1 and _top(path) == path
        return f"{name}({wrapping.format(path)})" if alone else _in_words(path, wrapping)
    part, new = _part(found, _steps(path), wrapping)
    return _in_words(path, wrapping) if part is None else ast.unparse(replaced(trace.call, part, new))


def _in_words(path: str, wrapping: str) -> str:
    return f"# pass {wrapping.format(path)} in place of {path}"


def _steps(path: str) -> list[Any]:
    """The keys and numbers that lead from an argument to a part of it; None for what is no key."""
    steps, node = [], ast.parse(path, mode="eval").body
    while not isinstance(node, ast.Name):
        steps.append(ast.literal_eval(node.slice) if isinstance(node, ast.Subscript) else None)
        node = node.value
    return steps[::-1]


def _part(expression: ast.expr | None, steps: Sequence[Any], wrapping: str) -> tuple[ast.expr | None, str]:
    """The part of an argument to replace, and by what; (None, "") where it is not written out in the call."""
    for number, step in enumerate(steps):
        if isinstance(expression, ast.Dict) and None not in expression.keys:
            named = dict(zip(map(ast.unparse, expression.keys), expression.values, strict=True))
            expression = named.get(repr(step))
        elif isinstance(expression, (ast.List, ast.Tuple)) and isinstance(step, int):
            is_plain = not any(isinstance(one, ast.Starred) for one in expression.elts)
            expression = expression.elts[step] if is_plain else None
        elif isinstance(step, str) and number == len(steps) - 1 and expression is not None:
            whole = ast.unparse(expression)
            return expression, f"{{**{whole}, {step!r}: {wrapping.format(f'{whole}[{step!r}]')}}}"
        else:
            return None, ""
    return (None, "") if expression is None else (expression, wrapping.format(ast.unparse(expression)))


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
        return _fix_of_shape(function, path, leaves, found)
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


def _fix_of_shape(function: Function, path: str, leaves: Sequence[Leaf], found: Sequence[FunctionTrace]) -> str:
    shapes = [leaf.shape for leaf in leaves if leaf.shape is not None]
    is_batch = len({shape.rank for shape in shapes}) == 1 and shapes[0].rank and differing_axes(shapes) == [0]
    if traces.compiled_by_xla(function):
        first = [f"# XLA compiles anew for each shape, so pad {path} to one shape, for instance:"]
        return "\n".join([*first, "dataset.batch(n, drop_remainder=True)  # or dataset.padded_batch(n, padded_shapes)"])
    signature = _signature(function, found)
    lines = ["@tf.function(reduce_retracing=True)"]
    if signature:
        lines = [f"@tf.function(input_signature=[{signature}])", "# or: @tf.function(reduce_retracing=True)"]
    if is_batch:
        lines.append("# or one batch size: dataset.batch(n, drop_remainder=True)")
    return "\n".join(lines)


def _signature(function: Function, found: Sequence[FunctionTrace]) -> str | None:
    """The source of an input signature that fits all traces, or None where the arguments are not tensors alone.

    Parameters at the end that always have their default may be left out of it.
    """
    if any(trace.leaves.keys() != found[0].leaves.keys() for trace in found):
        return None
    paths, defaults = list(found[0].leaves), list(getattr(callables.plain(function), "__defaults__", None) or ())
    while paths and defaults and all(_is_value(trace.leaves[paths[-1]], defaults[-1]) for trace in found):
        paths.pop()
        defaults.pop()
    specs = []
    for path in paths:
        leaves = [trace.leaves[path] for trace in found]
        if any(leaf.kind != "tensor" for leaf in leaves) or len({leaf.dtype for leaf in leaves}) > 1:
            return None
        shape = leaves[0].shape
        for leaf in leaves[1:]:
            shape = shape.most_specific_compatible_shape(leaf.shape)
        sizes = None if shape.rank is None else tuple(shape.as_list())
        specs.append(f"tf.TensorSpec({sizes}, {leaves[0].dtype!r})")
    return ", ".join(specs) if all(path.isidentifier() for path in paths) else None


def _is_value(leaf: Leaf, value: Any) -> bool:
    return leaf.kind == "value" and leaf.value is value
