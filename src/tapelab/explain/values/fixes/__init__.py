"""The fix as code with the learner's own names: the line that was blamed, rewritten.

Each rule takes a `Patient` and returns what to write: a `Fix`, or advice as text, which cannot be run; or a list of
these, the likeliest first. None where it does not know: then the fix is the one of the mechanism in `VALUES`, which
speaks of `s`, what the operation is given. What works when it is run is shown, and what was not run is a hint.
"""

import ast
import types
from ast import unparse as text
from collections.abc import Mapping

from tapelab.explain.causes import VALUES
from tapelab.explain.ground.expressions import called, closed, contains, same, statement_at
from tapelab.explain.values.fixes.overflow import overflow, underflow
from tapelab.explain.values.fixes.patient import Fix, Patient, assigned
from tapelab.explain.values.fixes.trial import tried
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.evidence import Evidence
from tapelab.explain.values.rerun.node_expressions import of_node

# What keeps an operation's argument inside, and what may stand for one that is outside.
_INSIDE = {"Exp": "< 80", "Acos": "** 2 < 1", "Asin": "** 2 < 1", "Atanh": "** 2 < 1", "RealDiv": "!= 0"}
_SAFE = {"Exp": "0.0", "Cosh": "0.0", "Sinh": "0.0", "Acos": "0.0", "Asin": "0.0", "Atanh": "0.0", "Tan": "0.0"}


def repair(
    story: Story, names: Mapping[str, str], evidence: Evidence, frame: types.FrameType | None = None
) -> tuple[str, str]:
    """Return what to write, as code, and what became of it when it was run: a key of `tapelab.explain.causes.TRIED`.

    Args:
        story: a `Story`.
        names: what `{source}`, `{target}` and `{of}` stand for where no line can be rewritten.
        evidence: the `Evidence` that it was read from.
        frame: the learner's frame, or None.
    """
    if story.code == "exists":
        return "", "untried"
    second = None
    for fix in _proposed(story, evidence):
        result = tried(fix, story.code, story.node, evidence, frame)
        if result == "works":
            return fix.text, result
        second = second or (result != "fails" and (fix.text, result))
    return second or (VALUES[story.code].fix.format(**names), "untried")


def _proposed(story, evidence):
    """What the rules propose, each a `Fix`, the likeliest first."""
    expression = of_node(story.node) if story.node is not None else None
    if story.code not in _RULES or (expression is None and story.code not in _OF_OPERATIONS):
        return
    line = story.node.line if story.node is not None else None
    statement = statement_at(line, expression) if line is not None else None
    found = _RULES[story.code](Patient(story.node, story.then, expression, statement, story.values, evidence))
    for one in found if isinstance(found, list) else [found]:
        if one:
            yield Fix(one) if isinstance(one, str) else one


def _other_expression(patient, *operations):
    """The expression of a node that carried the trouble on and is one of these operations, and its arguments."""
    for node, _ in patient.then:
        if node.op in operations:
            return of_node(node)
    return None


def _arguments(call):
    return [*call.args, *(keyword.value for keyword in call.keywords)] if isinstance(call, ast.Call) else []


def _unselected(patient):
    where = _other_expression(patient, "SelectV2", "Select")
    if patient.argument is None or called(where) != "where" or len(_arguments(where)) != 3:
        return None
    condition, _, second = _arguments(where)
    safe = _SAFE.get(patient.node.op, "1.0")
    # The branch that holds the operation is the one that must not run where it is not selected.
    in_second = contains(second, patient.expression) or assigned(patient.statement) == {text(second)}
    inside = f"{closed(patient.argument)} {_INSIDE.get(patient.node.op, '> 0')}"
    return [
        patient.with_safe_argument(text(condition), safe, not in_second),
        patient.with_safe_argument(f"{closed(condition)}[:, None]", safe, not in_second),
        patient.with_safe_argument(inside, safe),  # where the condition is made of what the operation gives
    ]


def _masked(patient):
    product = _other_expression(patient, "Mul", "MulNoNan")
    if patient.argument is None or product is None:
        return None
    operands = [product.left, product.right] if isinstance(product, ast.BinOp) else _arguments(product)[:2]
    made = assigned(patient.statement)
    mask = [one for one in operands if not contains(one, patient.expression) and text(one) not in made]
    if len(mask) != 1 or len(operands) != 2:
        return None
    return patient.with_safe_argument(f"{closed(mask[0])} != 0", _SAFE.get(patient.node.op, "1.0"))


def _root(patient):
    word, call = called(patient.expression), patient.expression
    if word in ("norm", "reduce_euclidean_norm", "reduce_std") and len(call.args) == 1:
        rest = "".join(f", {text(keyword)}" for keyword in call.keywords if keyword.arg in ("axis", "keepdims"))
        if any(keyword.arg not in ("axis", "keepdims", "name") for keyword in call.keywords):
            return None
        inside = text(call.args[0])
        if word == "reduce_std":
            return patient.with_expression(f"tf.sqrt(tf.math.reduce_variance({inside}{rest}) + 1e-12)")
        return patient.with_expression(f"tf.sqrt(tf.reduce_sum(tf.square({inside}){rest}) + 1e-12)")
    if word in ("sqrt", "rsqrt", "pow", ast.Pow):
        return patient.with_argument("{1} + 1e-12")
    return None


def _log(patient):
    """The logarithm of a probability from its logits; elsewhere an argument that stays away from 0."""
    if called(patient.expression) != "log":
        return None
    evidence, minus = patient.evidence, False
    maker = evidence.maker(patient.node.inputs[0])
    if maker is not None and maker.op == "Sub" and (evidence.array(maker.inputs[0]) == 1).all():
        maker, minus = evidence.maker(maker.inputs[1]), True
    made = of_node(maker) if maker is not None else None
    away = patient.with_argument("{1} + 1e-7")
    if called(made) == "softmax" and not minus:
        rest = "".join(f", {text(keyword)}" for keyword in made.keywords)
        return [patient.with_expression(f"tf.nn.log_softmax({', '.join(map(text, made.args))}{rest})"), away]
    if called(made) == "sigmoid" and made.args:
        logits = text(made.args[0])
        return [
            _softplus(patient, logits) if minus else patient.with_expression(f"tf.math.log_sigmoid({logits})"),
            away,
        ]
    return away


def _softplus(patient, logits):
    """-softplus for log(1 - sigmoid), and softplus where a minus stands before it."""
    for around in ast.walk(patient.statement or patient.expression):
        if isinstance(around, ast.UnaryOp) and same(around.operand, patient.expression):
            return patient.with_part(around, f"tf.nn.softplus({logits})")
    return patient.with_expression(f"-tf.nn.softplus({logits})")


def _product(patient):
    product = _other_expression(patient, "Mul")
    if not isinstance(product, ast.BinOp) or called(patient.expression) != "log":
        return None
    other = [one for one in (product.left, product.right) if not contains(one, patient.expression)]
    if len(other) != 1 or not any(same(one, patient.expression) for one in (product.left, product.right)):
        return None
    return patient.with_part(product, f"tf.math.xlogy({text(other[0])}, {text(patient.argument)})")


def _division(patient):
    expression = patient.expression
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div):
        above, below = expression.left, expression.right
    elif called(expression) in ("divide", "truediv"):
        above, below = expression.args[:2]
    elif called(expression) == "reciprocal":
        above, below = ast.Constant(1.0), expression.args[0]
    else:
        return None
    return patient.with_expression(f"tf.math.divide_no_nan({text(above)}, {text(below)})")


def _domain(patient):
    word = called(patient.expression)
    if word == "log":
        return patient.with_argument("tf.nn.softplus({0}) + 1e-6")
    if word in ("sqrt", "rsqrt", "pow", ast.Pow):
        return patient.with_argument("tf.maximum({0}, 1e-12)")
    return _edge(patient)


def _edge(patient):
    if called(patient.expression) in ("acos", "asin", "atanh"):
        return patient.with_argument("tf.clip_by_value({0}, -1 + 1e-6, 1 - 1e-6)")
    return None


def _steep(patient):
    """What to do where no line of the learner's has a pole to keep away from: the mechanism's fix is for a division."""
    word = called(patient.expression)
    if word in (ast.Div, "divide", "truediv", "reciprocal"):
        return None
    if word == "log" and called(patient.argument) in ("softmax", "sigmoid"):
        return _log(patient)
    if word in (ast.Mult, ast.MatMult, "multiply", "matmul"):
        return "# a smaller factor, or smaller numbers: scale what goes in"
    if patient.node.op in ("Log", "Sqrt", "Rsqrt", "RealDiv", "Reciprocal", "Mul"):
        return "# keep what goes in away from 0; a larger epsilon, if this call takes one"
    return "# smaller numbers: scale what goes in"


def _difference(patient):
    if not isinstance(patient.expression, ast.BinOp) or not isinstance(patient.expression.op, ast.Sub):
        return None
    left, right = text(patient.expression.left), text(patient.expression.right)
    return patient.with_expression(f"tf.maximum({left}, -1e9) - tf.maximum({right}, -1e9)")


def _softmax(patient):
    return patient.with_argument("tf.maximum({0}, -1e9)") if called(patient.expression) == "softmax" else None


def _cholesky(patient):
    if called(patient.expression) != "cholesky":
        return None
    return patient.with_argument("{1} + 1e-3 * tf.eye({1}.shape[-1])")


def _relu(patient):
    if called(patient.expression) == "relu" and len(patient.expression.args) == 1:
        return patient.with_expression(f"tf.nn.leaky_relu({text(patient.argument)})")
    return None


def _sign(patient):
    if called(patient.expression) != "sign":
        return None
    inside = closed(patient.argument)
    return patient.with_expression(f"{inside} + tf.stop_gradient(tf.sign({inside}) - {inside})")


def _cumprod(patient):
    call = patient.expression
    if called(call) != "cumprod" or len(call.args) != 1 or call.keywords:
        return None
    inside = closed(patient.argument)
    return patient.with_expression(
        f"tf.stack([tf.reduce_prod({inside}[: i + 1], axis=0) for i in range({inside}.shape[0])])"
    )


def _clip(patient):
    """A Keras loss for probabilities that was given logits."""
    call = patient.expression
    if "crossentropy" not in str(called(call)).lower() or any(one.arg == "from_logits" for one in call.keywords):
        return None
    return patient.with_expression(f"{text(call)[:-1]}, from_logits=True)")


def _twice(patient):
    for part in ast.walk(patient.expression):
        if called(part) == "softmax" and part.args:
            return patient.with_part(part, text(part.args[0]))
    return None


def _broadcast(patient):
    expression = patient.expression
    if not isinstance(expression, ast.BinOp):
        return None
    row = expression.left if len(patient.values["shapes"][0]) == 1 else expression.right
    return patient.with_part(row, f"{closed(row)}[:, None]")


# Where there is advice about the operation alone, too.
_OF_OPERATIONS = frozenset({"overflow", "underflow", "steep"})
_RULES = {
    "unselected_branch": _unselected,
    "masked_by_zero": _masked,
    "root_at_zero": _root,
    "log_of_zero": _log,
    "zero_times_infinity": _product,
    "division_by_zero": _division,
    "zero_over_zero": _division,
    "domain": _domain,
    "pole": _edge,
    "overflow": overflow,
    "underflow": underflow,
    "steep": _steep,
    "inf_minus_inf": _difference,
    "all_masked": _softmax,
    "not_positive_definite": _cholesky,
    "dead_relu": _relu,
    "flat_operation": _sign,
    "wrong_at_zero": _cumprod,
    "clipped": _clip,
    "not_probabilities": _clip,
    "softmax_twice": _twice,
    "broadcast_loss": _broadcast,
}
