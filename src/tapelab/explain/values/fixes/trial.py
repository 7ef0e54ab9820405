"""A fix is run before it is shown: in the replayed program, in place of the learner's expression.

The names in it stand for what the log has: values that the same code computed before, or what an operation was given.
Where some name is not known, nothing is run. A known one may be another by now, so the learner's expression is run
first, and has to give what it gave.
"""

import ast
import concurrent.futures
import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tapelab.explain.ground import private
from tapelab.explain.ground.evaluation import CannotRun, Evaluation
from tapelab.explain.ground.expressions import contains, operands, replaced, same
from tapelab.explain.ground.lines import Frame
from tapelab.explain.ground.log import Kind
from tapelab.explain.ground.measure import Gradient, array
from tapelab.explain.values.fixes.patient import Fix, assigned
from tapelab.explain.values.rerun.backward import Replay
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import Node, Trace, of_node

import numpy as np
import tensorflow as tf

# Elements that are taken out on purpose have gradient 0; and where the value is what is wrong, it is to change.
_TAKEN_OUT = frozenset({"unselected_branch", "masked_by_zero", "empty_mask"})
# There 0 is the right gradient: of what is taken out, and of a norm or distance at its minimum.
_RIGHT_AT_ZERO = _TAKEN_OUT | {"root_at_zero"}
_DIVISIONS = frozenset({"division_by_zero", "zero_over_zero"})
_MAY_CHANGE = frozenset({"softmax_twice", "broadcast_loss", "clipped", "not_probabilities"})
_ROOT_OF_EPSILON = 2e-6  # what 1e-12 within a root makes of 0, and as much more


def tried(fix: Fix, code: str, blamed: Node, evidence: Evidence, frame: Frame) -> str:
    """Run a fix in the replayed program.

    Args:
        code: of the story, a key of `VALUES`.
        blamed: the `Node`.
        frame: the learner's frame, for what is in no log; or None.

    Returns:
        A key of `tapelab.explain.causes.TRIED`; "fails" where the fix raises or cures nothing.
    """
    if fix.part is None:
        return "untried"
    # In a thread of its own no tape of the learner's is open, and none is paused.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(_tried, fix, code, blamed, evidence, frame).result()


def _tried(fix: Fix, code: str, blamed: Node, evidence: Evidence, frame: Frame) -> str:
    runs = evidence.replay.trials  # one for all sources that share the cause
    if (blamed, fix.text) not in runs:
        runs[blamed, fix.text] = _run_with(fix, code, blamed, evidence, frame)
    place, found = runs[blamed, fix.text]
    return found if place is None else _judged(Evidence(found, evidence.source), evidence, place, code)


def _run_with(
    fix: Fix, code: str, blamed: Node, evidence: Evidence, frame: Frame
) -> "tuple[_Place | None, Replay | str]":
    """Where the fix goes and the `Replay` with it; None and what `tried` returns, where there is none."""
    try:
        place = _Place(evidence.trace, fix, code, blamed, frame)
        place.check()
    except Exception:  # whatever it is: the learner's own expression does not give again what it gave
        return None, "untried"
    try:
        mended = place.mended()
    except CannotRun:
        return None, "untried"
    except Exception:  # whatever it is: this is not to be shown
        return None, "fails"
    return place, Replay(mended, evidence.replay.targets, evidence.replay.sources)


def _judged(new: Evidence, old: Evidence, place: "_Place", code: str) -> str:
    """Compare the program with the fix and the one without."""
    if new.gradient is None:
        return "fails"
    before, after = array(old.gradient), array(new.gradient)
    targets = [(_value(new.trace, key), _value(old.trace, key)) for key in old.replay.targets]
    if not np.isfinite(after).all() or not all(np.isfinite(one).all() for one, _ in targets):
        return "fails"
    # What tf.where or a mask takes out is another.
    results = place.results if code not in _TAKEN_OUT else ()
    compared = targets + [(_value(new.trace, key), _value(old.trace, key)) for key in results]
    if code not in _MAY_CHANGE and not all(_is_kept(*pair, _ROOT_OF_EPSILON) for pair in compared):
        return "changes"
    bad, was_finite = ~np.isfinite(before), all(np.isfinite(one).all() for _, one in targets)
    if not bad.any() and was_finite:  # the gradient is what is wrong
        return "works" if after.any() else "silent"
    if not _is_kept(after, before):
        return "changes"
    if code in _DIVISIONS and not after.any():  # 0 in place of the quotient, everywhere: nothing is left of the layer
        return "silent"
    return "works" if code in _RIGHT_AT_ZERO or not bad.any() or after[bad].any() else "silent"


def _value(trace: Trace, key: int) -> np.ndarray:
    """The value of a tensor, as an array; of a Cholesky factor the half that is one: the other may be anything."""
    maker = trace.producer.get(key)
    return np.tril(array(trace.values[key])) if maker and maker.op == "Cholesky" else array(trace.values[key])


def _is_kept(new: np.ndarray, old: np.ndarray, least: float = 0.0) -> bool:
    """Whether a value is as it was wherever it was finite, up to 1 % and 1e-5 of the largest, or to the least."""
    kept = np.isfinite(old)
    close = max(1e-5 * np.abs(old[kept]).max(initial=0.0), least)
    return new.shape == old.shape and np.allclose(new[kept], old[kept], rtol=1e-2, atol=close)


class _Place:
    """Where a fix goes: each time that the expression ran, with what was known then.

    Attributes:
        results: the keys of the expression's values.
    """

    def __init__(self, trace: Trace, fix: Fix, code: str, blamed: Node, frame: Frame):
        self._trace, self._fix, self._code, self._blamed, self._frame = trace, fix, code, blamed, frame
        beside = [(node, of_node(node)) for node in trace.nodes if _is_beside(node, blamed)]
        self._nodes = [(node, expression) for node, expression in beside if expression is not None]
        self._lengths = {}
        self._assigned = assigned(fix.within)
        self._whole = self._smallest_that_ran()
        own = [node for node, expression in self._nodes if same(expression, self._whole)]
        length = _period([node.op for node in own])  # of what ran again and again in a loop
        self._runs = [own[i : i + length] for i in range(0, len(own), length)]
        self.results = [run[-1].outputs[0] for run in self._runs]
        self._known = [self._known_before(run) for run in self._runs]

    def _smallest_that_ran(self) -> ast.expr:
        """The smallest expression around what is replaced whose value is in the log."""
        within = [one for one in ast.walk(self._fix.within) if isinstance(one, ast.expr)]
        around = [one for one in within if contains(one, self._fix.part)]
        ran = [one for one in around if any(same(expression, one) for _, expression in self._nodes)]
        if not ran:
            raise CannotRun
        return max(ran, key=around.index)

    def _known_before(self, run: Sequence[Node]) -> dict[str, int]:
        """Text of an expression → the key of its value, of what was known when this ran."""
        known, own = {}, [node for node in run if node.op != "ReadVariableOp"]
        for node, expression in reversed(self._nodes):
            if node.index > run[-1].index:
                continue
            is_own = same(expression, self._whole)
            if not is_own and len(node.outputs) == 1:
                known.setdefault(ast.unparse(expression), node.outputs[0])
            # What of a call made of many operations is which of their inputs is not known; one's own is checked.
            if node is own[0] if is_own else node.op != "ReadVariableOp" and self._length_of(expression) == 1:
                for part, key in operands(expression, node.inputs):
                    if not isinstance(expression, ast.Call) or isinstance(
                        part, (ast.Name, ast.Attribute, ast.Subscript)
                    ):
                        known.setdefault(ast.unparse(part), key)
        return known

    def _length_of(self, expression: ast.expr) -> int:
        """How many operations an expression is made of, but for reading variables."""
        if expression not in self._lengths:
            ops = [node.op for node, one in self._nodes if same(one, expression) and node.op != "ReadVariableOp"]
            self._lengths[expression] = _period(ops) if ops else 0
        return self._lengths[expression]

    def check(self) -> None:
        """Run the learner's expression, which has to give what it gave."""
        for run, known in zip(self._runs, self._known, strict=True):
            found = Evaluation(known, self._trace.values, self._finder(run[-1])).value(self._whole)
            found, gave = array(tf.convert_to_tensor(found)), _value(self._trace, run[-1].outputs[0])
            found = np.tril(found) if run[-1].op == "Cholesky" else found
            if found.shape != gave.shape or not np.allclose(found, gave, rtol=1e-4, atol=1e-6, equal_nan=True):
                raise CannotRun

    def mended(self) -> Trace:
        """The program with the fix, a `Trace`."""
        trace = copy.copy(self._trace)
        trace.values, trace.nodes, changed = dict(trace.values), [], set()
        new = replaced(self._whole, self._fix.part, self._fix.new)
        ends = {run[-1]: known for run, known in zip(self._runs, self._known, strict=True)}
        for node in self._trace.nodes:
            if node in ends:
                node = self._fixed(node, new, ends[node], trace.values)
                changed.update(node.outputs)
            elif not changed.isdisjoint(node.inputs):
                if node.backward is not None or node.event.kind is Kind.CUSTOM or node.is_opaque:
                    raise CannotRun
                inputs = [trace.values[key] for key in node.inputs]
                made = private.run(node.op, node.attributes, inputs, len(node.outputs)) if node.outputs else []
                trace.values.update(zip(node.outputs, made, strict=True))
                changed.update(node.outputs)
            trace.nodes.append(node)
        return trace

    def _fixed(self, node: Node, new: ast.expr, known: dict[str, int], values: dict[int, tf.Tensor]) -> Node:
        """A node that does what the fix says, with its value in place."""
        old, run = values[node.outputs[0]], Evaluation(known, values, self._finder(node))
        with tf.GradientTape(persistent=True) as tape:
            if self._fix.before:
                name, expression = self._fix.before
                run.names[name] = run.value(ast.parse(expression, mode="eval").body, tape)
            value = tf.convert_to_tensor(run.value(new, tape))
        if value.dtype != old.dtype:
            raise CannotRun  # what comes after it is in the log with the other dtype
        if value.shape != old.shape and self._code not in _MAY_CHANGE:
            raise ValueError(f"the fix has shape {value.shape} where {old.shape} was")
        values[node.outputs[0]] = value
        inputs = list(run.keys.values())

        def backward(upstream: tf.Tensor | None) -> list[Gradient | None]:
            return tape.gradient(value, inputs, output_gradients=upstream)

        return dataclasses.replace(node, inputs=tuple(run.keys), outputs=node.outputs[:1], backward=backward)

    def _finder(self, user: Node) -> Callable[[str], tuple[int | None, Any]]:
        """Return what finds a name that the log does not know, for when a node uses it."""
        return lambda name: self._in_frame(name, user)

    def _in_frame(self, name: str, user: Node) -> tuple[int | None, Any]:
        """What a name stands for in the learner's frame when a node uses it: a key of the log or None, and a value."""
        if name in self._assigned:
            raise ValueError(f"{name} is used to make itself")
        frame, code = self._frame, self._blamed.event.place.code
        if frame is None or frame.f_code.co_filename != code.co_filename:
            raise CannotRun
        scope = frame.f_locals if frame.f_code is code else frame.f_globals
        if name not in scope:
            raise CannotRun
        value = scope[name]
        if not tf.is_tensor(value) and not hasattr(value, "handle"):
            return None, value
        key = private.key(getattr(value, "handle", value))
        if hasattr(value, "handle"):
            key = next((one.outputs[0] for one in self._trace.users.get(key, ()) if one.op == "ReadVariableOp"), None)
        maker = self._trace.producer.get(key)
        if maker is not None and maker.index > user.index:
            raise ValueError(f"{name} is made later")
        return (key if key in self._trace.values else None), value


def _is_beside(node: Node, blamed: Node) -> bool:
    """Whether a node ran in the same code as another."""
    if blamed.event.place.code is None or blamed.line is None or node.line is None:
        return False
    if node.line == node.event.line and blamed.line == blamed.event.line:
        return node.event.place.code is blamed.event.place.code
    return node.event is blamed.event and node.line.file == blamed.line.file


def _period(words: Sequence[str]) -> int:
    """The length of the shortest list of which a list is made by repeating it."""
    return next(n for n in range(1, len(words) + 1) if len(words) % n == 0 and words == words[:n] * (len(words) // n))
