"""The fix as code with the learner's own names: the line that was blamed, rewritten.

`VALUES` has the patterns by which expressions are rewritten (`rewrites`), or an argument is (`arguments`), and what to
do where that is not possible (`advice`). What needs to know more than the expression has a rule here: it takes a
`Patient` and returns what to write: a `Fix`, or advice as text, which cannot be run; or a list of these, the likeliest
first. Where nothing is found the fix is that of the mechanism in `VALUES`, which speaks of `s`, what the operation is
given. What works when it is run is shown, and what was not run is a hint.
"""

import ast
from ast import unparse as text
from collections.abc import Iterator, Mapping

from tapelab.explain.causes import VALUES, Cause
from tapelab.explain.ground.expressions import assigned_in, called, contains, operands, statement_at
from tapelab.explain.ground.lines import Frame
from tapelab.explain.values.fixes.patient import Fix, Patient, assigned, filled, match
from tapelab.explain.values.fixes.trial import tried
from tapelab.explain.values.mechanisms import read_from
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.nodes import of_node

import numpy as np

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
    case = (story.code, story.node, story.key, tuple(node for node, _ in story.then), evidence.gradient_is_bad)
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
    found = _RULES.get(story.code, lambda _: _advice(patient, cause))(patient)
    for one in found if isinstance(found, list) else [found]:
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
    for node, _ in patient.then:
        if node.op in operations:
            return of_node(node)
    return None


def _arguments(call: ast.expr | None) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)] if isinstance(call, ast.Call) else []


def _unselected(patient: Patient) -> list[Fix | None] | None:
    where = _other_expression(patient, "SelectV2", "Select")
    if patient.argument is None or called(where) != "where" or len(_arguments(where)) != 3:
        return None
    condition, _, second = _arguments(where)
    safe = _SAFE.get(patient.node.op, "1.0")
    # The branch that holds the operation is the one that must not run where it is not selected.
    in_second = contains(second, patient.expression) or assigned(patient.statement) == {text(second)}
    inside = filled(f"s {_INSIDE.get(patient.node.op, '> 0')}", s=patient.argument)
    return [
        patient.with_safe_argument(text(condition), safe, not in_second),
        patient.with_safe_argument(filled("c[:, None]", c=condition), safe, not in_second),
        patient.with_safe_argument(inside, safe),  # where the condition is made of what the operation gives
    ]


def _masked(patient: Patient) -> Fix | None:
    product = _other_expression(patient, "Mul", "MulNoNan")
    if patient.argument is None or product is None:
        return None
    operands = [product.left, product.right] if isinstance(product, ast.BinOp) else _arguments(product)[:2]
    made = assigned(patient.statement)
    mask = [one for one in operands if not contains(one, patient.expression) and text(one) not in made]
    if len(mask) != 1 or len(operands) != 2:
        return None
    return patient.with_safe_argument(filled("m != 0", m=mask[0]), _SAFE.get(patient.node.op, "1.0"))


def _too_large(patient: Patient) -> str | list[Fix | str] | None:
    """What to do where a number is more than its dtype can hold, and it is not an exponential that made it so."""
    if patient.node.op in ("Exp", "Expm1", "Cosh", "Sinh"):
        return None
    if not patient.values.get("is_half"):
        return "# smaller numbers: scale what goes in, a smaller learning rate, clipping, or work with logarithms"
    if patient.values.get("is_backward"):
        return "# a smaller loss scale, a larger epsilon where something is normalised, or this part in float32"
    if patient.argument is None or called(patient.expression) not in _MAKES_LARGE:  # somebody else's function
        return _SMALLER_OR_WIDER
    if isinstance(patient.expression, ast.BinOp) and not isinstance(patient.expression.op, ast.Pow):
        return f"tf.cast({text(patient.argument)}, tf.float32)  # and the other operand"
    return [patient.with_argument("tf.cast(s, tf.float32)"), _SMALLER_OR_WIDER]


def _of_constant(patient: Patient) -> str | None:
    if patient.evidence.array(patient.evidence.target).size > 1:
        return "# the gradient of a tensor is that of its sum: take one element, or tape.jacobian"
    return None


def _at_kink(patient: Patient) -> str | None:
    if patient.evidence.target_changes():  # where the source moves: it is what has to
        return None
    return "# what goes in is all 0: look for the weights, or the factor, that make it so"


def _zero_factor(patient: Patient) -> str | None:
    zeros = [key for key in patient.node.inputs if not patient.evidence.array(key).any()]
    if any(read_from(patient.evidence, key) is not None for key in zeros):
        return None
    return "# look at the other factor in the line named here: should it be 0?"


def _other_factor(patient: Patient) -> str | None:
    """Where the factor that is 0 was last assigned, if it has a name; else what the table advises."""
    for part, key in operands(patient.expression, patient.node.inputs) if patient.expression is not None else ():
        if isinstance(part, ast.Name) and not patient.evidence.array(key).any():
            for made in assigned_in(patient.node.event.place.code, part.id, patient.node.line.number)[:1]:
                return f"# {part.id} is 0; it is made in line {made.lineno}: {part.id} = {text(made)}"
    return _advice(patient, VALUES["multiplied_by_zero"])


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
    for part in ast.walk(patient.expression) if patient.expression is not None else ():
        if called(part) == "softmax" and part.args:
            return patient.with_part(part, text(part.args[0]))
    return None


def _broadcast(patient: Patient) -> Fix | None:
    expression = patient.expression
    if not isinstance(expression, ast.BinOp):
        return None
    row = expression.left if len(patient.values["shapes"][0]) == 1 else expression.right
    return patient.with_part(row, filled("r[:, None]", r=row))


_SMALLER_OR_WIDER = "# smaller numbers: scale what goes in; or this part in float32, of a layer by its dtype"
# What makes large numbers, and can do so in float32.
_MAKES_LARGE = {"square", "pow", "multiply", "matmul", "add", "subtract", "reduce_sum", "reduce_mean"}
_MAKES_LARGE |= {"reduce_prod", "**", "*", "@", "+", "-"}
_OUTSIDE = "# take @tf.function away while you look for the cause: the inside of this one could not be run again"
_RULES = {
    "unselected_branch": _unselected,
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
    "unexplained": lambda patient: _OUTSIDE if patient.node.is_opaque else None,
}
