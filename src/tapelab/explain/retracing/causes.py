"""What made TensorFlow trace a function again: how its traces differ, in words and with the fix as code."""

import ast
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tapelab.explain.causes import RETRACED
from tapelab.explain.ground.expressions import argument, replaced
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.rendering import listed
from tapelab.explain.retracing import callables
from tapelab.explain.retracing.callables import Function
from tapelab.explain.retracing.traces import FunctionTrace, Leaf

_GONE = " One that no longer exists can never be passed again, and its trace stays."


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
    return argument(call, names.index(name) if name in names else len(call.args), (name,))


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
    if getattr(function, "_jit_compile", False):
        first = f"# XLA compiles anew for each shape, so pad {path} to one shape, for instance:"
        return f"{first}\ndataset.batch(n, drop_remainder=True)  # or dataset.padded_batch(n, padded_shapes)"
    is_batch = len({shape.rank for shape in shapes}) == 1 and shapes[0].rank and len({str(s[1:]) for s in shapes}) == 1
    more = "\n# or one batch size: dataset.batch(n, drop_remainder=True)" if is_batch else ""
    return "@tf.function(reduce_retracing=True)  # one trace for all sizes" + more


@dataclasses.dataclass(frozen=True)
class RetracingCause:
    """One reason for which a function was traced again.

    Attributes:
        code: a key of `tapelab.explain.RETRACING`.
        sentence: what differed.
        argument: where in the arguments, such as ``x`` or ``batch['image']``; empty where it is no argument.
        values: what it was, in the order of the traces, each once, as text.
        traces: how many traces it brought beyond the first.
        line: the learner's `Line` that called for the last of them, or None.
        fix: what to write, as code.
        expected: whether this is how TensorFlow works: their number is limited, and nothing is to be mended.
    """

    code: str
    sentence: str
    argument: str = ""
    values: tuple[str, ...] = ()
    traces: int = 1
    line: Line | None = None
    fix: str = ""
    expected: bool = False


def causes_of(function: Function, found: Sequence[FunctionTrace], since: int = 0) -> list[RetracingCause]:
    """Return why a function has more than one trace.

    Args:
        function: a ``tf.function``.
        found: its traces, a list of `tapelab.explain.retracing.traces.FunctionTrace`, oldest first.
        since: the number of the first trace to explain.

    Returns:
        A list of `RetracingCause`, the one with the most traces first.
    """
    by_cause = {}
    for number in range(max(since, 1), len(found)):
        trace = found[number]
        earlier = [_differences(old, trace) for old in found[:number]]
        # Of those that resemble it as much, the latest. A list built in another way is less alike than all its values.
        differences = min(reversed(earlier), key=lambda one: (sum(code == "structure" for _, code in one), len(one)))
        if getattr(function, "_reduce_retracing", False):
            differences = [(path, "relaxed" if code == "shape" else code) for path, code in differences]
        for difference in differences:
            by_cause.setdefault(difference, []).append(number)
    causes = [_cause(function, difference, numbers, found) for difference, numbers in by_cause.items()]
    return sorted(causes, key=lambda cause: -cause.traces)


def merged(causes: Iterable[RetracingCause]) -> list[RetracingCause]:
    """Return the causes of several functions with one definition, each once, its traces and values together."""
    by_place = {}
    for cause in causes:
        old = by_place.get((cause.code, cause.argument))
        if old is not None:
            values = tuple(dict.fromkeys(old.values + cause.values))
            cause = dataclasses.replace(cause, traces=old.traces + cause.traces, values=values)
        by_place[cause.code, cause.argument] = cause
    return sorted(by_place.values(), key=lambda cause: -cause.traces)


def _differences(old: FunctionTrace, new: FunctionTrace) -> list[tuple[str, str]]:
    """Return [(path, code)] of what two traces differ in."""
    if old.makes_variables is not new.makes_variables and _same_leaves(old, new):
        return [("", "variables_made")]
    found = [("", code) for code in new.setting if old.setting[code] != new.setting[code]]
    structures = []
    for path in dict.fromkeys([*old.leaves, *new.leaves]):
        before, after = old.leaves.get(path), new.leaves.get(path)
        if any(path.startswith(outer) and path != outer for outer in structures):
            continue
        if before is None or after is None:
            found.append((path, "structure"))
        elif not before.same(after):
            found += [(path, code) for code in _codes(before, after)]
            if "structure" in (before.kind, after.kind):
                structures.append(path)
    return found


def _same_leaves(old: FunctionTrace, new: FunctionTrace) -> bool:
    return old.leaves.keys() == new.leaves.keys() and all(
        leaf.same(new.leaves[path]) for path, leaf in old.leaves.items()
    )


def _codes(before: Leaf, after: Leaf) -> list[str]:
    """Return the codes of what two leaves in one place differ in."""
    if before.kind != after.kind:
        return ["kind"]
    if before.kind == "value":
        return ["flag" if all(isinstance(one.value, bool | None) for one in (before, after)) else "python_value"]
    if before.kind in ("object", "structure"):
        return [before.kind]
    codes = []
    if before.dtype != after.dtype:
        codes.append("dtype")
    if before.shape is not None and str(before.shape) != str(after.shape):
        codes.append("shape")
    if before.kind == "variable" and not codes:
        return ["variable" if before.value[0] != after.value[0] else "same_variable_twice"]
    return codes or ["other_type"]


def _text(leaf: Leaf | None, code: str) -> str:
    """What one leaf was, as text."""
    if leaf is None:
        return "not passed"
    if code in ("shape", "relaxed"):
        return str(leaf.shape)
    if code == "dtype":
        return leaf.dtype.name
    if leaf.kind == "value":
        return repr(leaf.value)
    if leaf.kind in ("tensor", "variable"):
        return f"a {leaf.kind} of {leaf.dtype.name} {leaf.shape}"
    return str(leaf.value)


def _cause(
    function: Function, difference: tuple[str, str], numbers: Sequence[int], found: Sequence[FunctionTrace]
) -> RetracingCause:
    """Put one cause into words. `numbers` are those of the traces that it brought."""
    path, code = difference
    seen = [trace.leaves.get(path) for trace in found[: numbers[-1] + 1]]
    texts = [_text(leaf, code) for leaf in seen] if path else []
    values = tuple(dict.fromkeys(texts))
    last = found[numbers[-1]]
    expression = expression_of(function, last.call, path)
    subject = f"Argument {path}" + (f" ({expression} in the call)" if expression not in (None, path) else "")
    sentence = RETRACED[code].sentence.format(
        name=callables.name_of(function),
        subject=subject,
        listed=listed(values),
        count=len(values),
        extra=_GONE if "an object that no longer exists" in texts else "",
    )
    fix = fix_of(function, path, code, numbers[-1], found)
    return RetracingCause(code, sentence, path, values, len(numbers), last.line, fix, RETRACED[code].expected)


def made_anew(
    code: str, name: str, count: int, line: Line | None, changed: Mapping[str, Any] | None = None, models: int = 1
) -> RetracingCause:
    """Return the cause of several functions that have one definition.

    Args:
        code: "made_anew", "wrapped_anew", "new_objects" or "keras_recompiled".
        name: of the function.
        count: how many there are.
        line: that of the last call.
        changed: names that the function's code reads from outside and that were not the same: name → values as text.
        models: the number of models that they belong to.
    """
    changed = changed or {}
    why = f", for {models} models." if models > 1 else ": compile() forgets what was traced."
    cause = RETRACED[code]
    said, fix = (text.format(name=name, count=count, why=why) for text in (cause.sentence, cause.fix))
    for key, values in changed.items():
        said += f" It reads {key} from outside, which was {listed(values)}."
    if changed:
        key = next(iter(changed))
        fix += f"\n# and pass what changes as a tensor: {name}(..., tf.constant({key}))"
    values = next(iter(changed.values())) if changed else ()
    return RetracingCause(code, said, next(iter(changed), ""), values, count - 1, line, fix)


def stale(before: Mapping[str, Any], now: Mapping[str, Any], line: Line | None, name: str) -> list[RetracingCause]:
    """Return a cause for each Python value that a function read when it was traced and that has changed since.

    Args:
        before, now: name → value.
        line: that of the trace.
        name: of the function.
    """
    found, cause = [], RETRACED["stale_global"]
    for key, value in before.items():
        if key in now and now[key] != value:
            said = {"name": name, "key": key, "old": value, "new": now[key]}
            sentence, fix = (text.format(**said) for text in (cause.sentence, cause.fix))
            found.append(RetracingCause("stale_global", sentence, key, (repr(value), repr(now[key])), 0, line, fix))
    return found
