"""The fix as code with the learner's own names: the line that was blamed, rewritten.

`VALUES` has the patterns by which expressions are rewritten (`rewrites`), or an argument is (`arguments`), and what to
do where that is not possible (`advice`). What needs to know more than the expression has a rule here: it takes a
`Patient` and returns what to write: a `Fix`, or advice as text, which cannot be run; or a list of these, the likeliest
first. Where nothing is found the fix is that of the mechanism in `VALUES`, which speaks of `s`, what the operation is
given. What works when it is run is shown, and what was not run is a hint.
"""

import ast
import concurrent.futures
import copy
import dataclasses
from ast import unparse as text
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tapelab.explain.causes import VALUES, Cause
from tapelab.explain.ground import expressions, private
from tapelab.explain.ground.evaluation import CannotRun, Evaluation, in_frame
from tapelab.explain.ground.expressions import assigned_in, called, contains, operands, replaced, same, statement_at
from tapelab.explain.ground.lines import Frame
from tapelab.explain.ground.log import Kind
from tapelab.explain.ground.measure import Gradient, array
from tapelab.explain.ground.rendering import words_of
from tapelab.explain.values.fixes.patient import Fix, Patient, filled, match
from tapelab.explain.values.mechanisms import read_from
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence, Replay
from tapelab.explain.values.rerun.nodes import Node, Trace, of_node

import numpy as np
import tensorflow as tf

# Elements that are taken out on purpose have gradient 0; and where the value is what is wrong, it is to change.
_TAKEN_OUT = frozenset({"unselected_branch", "masked_by_zero", "empty_mask"})
# There 0 is the right gradient: of what is taken out, and of a norm or distance at its minimum.
_RIGHT_AT_ZERO = _TAKEN_OUT | {"root_at_zero"}
_DIVISIONS = frozenset({"division_by_zero", "zero_over_zero"})
_MAY_CHANGE = frozenset({"softmax_twice", "broadcast_loss", "clipped", "not_probabilities"})
_NAMING = (ast.Name, ast.Attribute, ast.Subscript)
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
    runs = evidence.replay.trials  # one for all sources that share the cause
    if (blamed, fix.text) not in runs:
        # In a thread of its own no tape of the learner's is open, and none is paused.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            runs[blamed, fix.text] = pool.submit(_run_with, fix, code, blamed, evidence, frame).result()
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
        self._assigned = expressions.assigned(fix.within)
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
                    if not isinstance(expression, ast.Call) or isinstance(part, _NAMING):
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
        value = in_frame(name, self._frame, self._blamed.event.place.code)
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


# What keeps an operation's argument inside, and what may stand for one that is outside.
_INSIDE = {"Exp": "< 80", "Acos": "** 2 < 1", "Asin": "** 2 < 1", "Atanh": "** 2 < 1", "RealDiv": "!= 0"}
_SAFE = {"Exp": "0.0", "Cosh": "0.0", "Sinh": "0.0", "Acos": "0.0", "Asin": "0.0", "Atanh": "0.0", "Tan": "0.0"}


def repair(story: Story, names: Mapping[str, str], evidence: Evidence, frame: Frame = None) -> tuple[str, str]:
    """Return what to write, as code, and what became of it when it was run: a key of `tapelab.explain.causes.TRIED`.

    Args:
        story: a `Story`.
        names: what `{source}`, `{target}` and `{of}` stand for where no line can be rewritten.
        evidence: the `Evidence` that it was read from.
        frame: the learner's frame, or None.
    """
    trials = evidence.replay.trials  # one for all sources that share the cause
    is_bad = evidence.measure.not_finite(evidence.gradient), evidence.measure.zero(evidence.gradient)
    case = (story.code, story.node, story.key, tuple(node for node, _ in story.then), is_bad)
    if case not in trials:
        trials[case] = _repair(story, names, evidence, frame)
    return trials[case]


def _repair(story: Story, names: Mapping[str, str], evidence: Evidence, frame: Frame) -> tuple[str, str]:
    second = None
    for fix in _proposed(story, evidence):
        result = tried(fix, story.code, story.node, evidence, frame)
        if result == "works":
            return fix.text, result
        second = second or (result != "fails" and (fix.text, result))
    return second or (VALUES[story.code].fix.format(**names), "untried")


def _proposed(story: Story, evidence: Evidence) -> Iterator[Fix]:
    """What the patterns and the rules propose, each a `Fix`, the likeliest first."""
    if story.node is None:
        return
    expression, line = of_node(story.node), story.node.line
    statement = statement_at(line, expression) if line is not None else None
    patient = Patient(story.node, story.then, expression, statement, story.values, evidence)
    cause = VALUES[story.code]
    if expression is not None:
        yield from _rewritten(patient, cause)
    rule = _RULES.get(story.code)
    found = rule and rule(patient)
    for one in [*(found if isinstance(found, list) else [found]), _advice(patient, cause)]:
        if one:
            yield Fix(one) if isinstance(one, str) else one


def _rewritten(patient: Patient, cause: Cause) -> Iterator[Fix]:
    """What the patterns of a cause make of the expression, or of one around it."""
    inside = [one for one in ast.walk(patient.statement or patient.expression) if contains(one, patient.expression)]
    around = [one for one in inside[::-1] if isinstance(one, ast.expr)]
    for old, new in cause.rewrites:
        for whole in around:
            found = match(old, whole, patient.expression, patient.node, patient.evidence)
            if found is not None:
                yield patient.with_part(whole, filled(new, **found))
    for words, new in cause.arguments:
        if called(patient.expression) in words.split() and patient.argument is not None:
            yield patient.with_argument(new)


def _advice(patient: Patient, cause: Cause) -> str | None:
    """What a cause's table advises for the operation, or for the call or sign by which the learner ran it."""
    words = {called(patient.expression), patient.node.op}
    return next((text for names, text in cause.advice if not names or not words.isdisjoint(names.split())), None)


def _other_expression(patient: Patient, *operations: str) -> ast.expr | None:
    """The expression of a node that carried the trouble on and is one of these operations, and its arguments."""
    return next((of_node(node) for node, _ in patient.then if node.op in operations), None)


def _arguments(call: ast.expr | None) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)] if isinstance(call, ast.Call) else []


def _unselected(patient: Patient) -> list[Fix | None] | None:
    where = _other_expression(patient, "SelectV2", "Select")
    if patient.argument is None or called(where) != "where" or len(_arguments(where)) != 3:
        return None
    condition, _, second = _arguments(where)
    safe = _SAFE.get(patient.node.op, "1.0")
    # The branch that holds the operation is the one that must not run where it is not selected.
    in_second = contains(second, patient.expression) or expressions.assigned(patient.statement) == {text(second)}
    inside = filled(f"s {_INSIDE.get(patient.node.op, '> 0')}", s=patient.argument)
    return [
        patient.with_safe_argument(text(condition), safe, not in_second),
        patient.with_safe_argument(filled("c[:, None]", c=condition), safe, not in_second),
        patient.with_safe_argument(inside, safe),  # where the condition is made of what the operation gives
    ]


def _root(patient: Patient) -> list[Fix] | None:
    """An epsilon where the slope meets a 0, as in a norm; a root alone would have a slope of 500,000 with it."""
    if patient.argument is None or called(patient.expression) not in _ROOTS:
        return None
    chosen = patient.with_safe_argument(filled("s > 0", s=patient.argument), "1.0", other="0.0")
    is_steep = np.isinf(array(patient.evidence.gradient)).any()
    return [chosen] if is_steep else [patient.with_argument("s + 1e-12"), chosen]


def _masked(patient: Patient) -> Fix | None:
    product = _other_expression(patient, "Mul", "MulNoNan")
    if patient.argument is None or product is None:
        return None
    operands = [product.left, product.right] if isinstance(product, ast.BinOp) else _arguments(product)[:2]
    made = expressions.assigned(patient.statement)
    mask = [one for one in operands if not contains(one, patient.expression) and text(one) not in made]
    if len(mask) != 1 or len(operands) != 2:
        return None
    return patient.with_safe_argument(filled("m != 0", m=mask[0]), _SAFE.get(patient.node.op, "1.0"))


def _too_large(patient: Patient) -> list[Fix | str] | None:
    """What to do where a number is more than its dtype can hold, and it is not an exponential that made it so."""
    if patient.node.op in ("Exp", "Expm1", "Cosh", "Sinh"):
        return None
    is_widened = patient.argument is not None and called(patient.expression) in _WIDENED and _is_half(patient)
    more = "; or this part in float32, of a layer by its dtype" if _is_half(patient) else ""
    if patient.values.get("is_backward"):  # of a variance near 0 no scale of the numbers helps
        more += "; or a larger epsilon where something is normalised"
    advice = f"# smaller numbers: scale what goes in, a smaller learning rate or loss scale, clipping{more}"
    return [*([patient.with_argument("tf.cast(s, tf.float32)")] if is_widened else ()), advice]


def _is_half(patient: Patient) -> bool:
    return any(patient.evidence.trace.values[key].dtype.size == 2 for key in patient.node.outputs)


def _of_constant(patient: Patient) -> str | None:
    if patient.evidence.array(patient.evidence.target).size > 1:
        return "# the gradient of a tensor is that of its sum: take one element, or tape.jacobian"
    node, evidence, cause = patient.node, patient.evidence, VALUES["constant_output"]
    moments = [one for one in evidence.replay.nodes_of["SquaredDifference"] if one.scope == node.scope and one.scope]
    if not moments or node.op == "Softmax":
        return None  # the table's advice follows
    return cause.fix.splitlines()[any(evidence.array(one.outputs[0]).any() for one in moments)]


def _at_kink(patient: Patient) -> str | None:
    said = "# what goes in is all 0: look for the weights, or the factor, that make it so"
    return None if patient.evidence.target_changes() else said  # where the source moves: it is what has to


def _zero_factor(patient: Patient) -> str | None:
    zeros = [key for key in patient.node.inputs if not patient.evidence.array(key).any()]
    is_read = any(read_from(patient.evidence, key) is not None for key in zeros)
    return None if is_read else "# look at the other factor in the line named here: should it be 0?"


def _other_factor(patient: Patient) -> str | None:
    """Where the factor that is 0 was last assigned, if it has a name; else what the table advises."""
    is_own = called(patient.expression) in words_of(patient.node.op)  # and no call of a function that multiplies
    for part, key in operands(patient.expression, patient.node.inputs) if is_own else ():
        if isinstance(part, ast.Name) and not patient.evidence.array(key).any():
            for made in assigned_in(patient.node.event.place.code, part.id, patient.node.line.number)[:1]:
                return f"# {part.id} is 0; it is made in line {made.lineno}: {part.id} = {text(made)}"
    return None


def _infinity_put_in(patient: Patient) -> str | None:
    """What to do where an infinity was put in, such as a mask of -inf, and met a 0 or another."""
    known = [key for key in patient.node.inputs if not patient.evidence.is_learned(key)]
    if any(np.isinf(patient.evidence.array(key)).any() for key in known):
        return "# in a mask, a large number in place of infinity: 1e9, in float16 1e4; in data, find where it is made"
    return "# write small whole powers as products, such as x * x" if patient.node.op == "Pow" else None


def _clip(patient: Patient) -> Fix | str | None:
    """A Keras loss for probabilities that was given logits."""
    call = patient.expression
    if "crossentropy" not in str(called(call)).lower() or any(one.arg == "from_logits" for one in call.keywords):
        return _advice(patient, VALUES["clipped"])
    return patient.with_part(call, f"{text(call)[:-1]}, from_logits=True)")


def _twice(patient: Patient) -> Fix | None:
    calls = ast.walk(patient.expression) if patient.expression is not None else ()
    part = next((one for one in calls if called(one) == "softmax" and one.args), None)
    return part and patient.with_part(part, text(part.args[0]))


def _broadcast(patient: Patient) -> Fix | None:
    expression = patient.expression
    if not isinstance(expression, ast.BinOp):
        return None
    row = expression.left if len(patient.values["shapes"][0]) == 1 else expression.right
    return patient.with_part(row, filled("r[:, None]", r=row))


_WIDENED = {"square", "pow", "reduce_sum", "reduce_mean", "reduce_prod", "**"}  # of one argument, and large in float16
OUTSIDE = "# take @tf.function away while you look for the cause: the inside of this one could not be run again"
_ROOTS = {"sqrt", "rsqrt", "pow", "power", "**"}
_RULES = {
    "unselected_branch": _unselected,
    "root_at_zero": _root,
    "masked_by_zero": _masked,
    "overflow": _too_large,
    "constant_output": _of_constant,
    "at_kink": _at_kink,
    "multiplied_by_zero": _other_factor,
    "zero_weights": _zero_factor,
    "zero_times_infinity": _infinity_put_in,
    "source_not_finite": _infinity_put_in,
    "clipped": _clip,
    "not_probabilities": _clip,
    "softmax_twice": _twice,
    "broadcast_loss": _broadcast,
    "unexplained": lambda patient: OUTSIDE if patient.node.is_opaque else None,
}
