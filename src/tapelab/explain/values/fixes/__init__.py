"""The fix as code with the learner's own names: the line that was blamed, rewritten.

Each rule takes a `Patient` and returns what to write, or None where it does not know: then the fix is the one of the
mechanism in `VALUES`, which speaks of `s`, what the operation is given.
"""

import ast
from ast import unparse as text
from collections.abc import Mapping

from tapelab.explain.causes import VALUES
from tapelab.explain.ground.expressions import called, closed, contains, statement_at
from tapelab.explain.values.fixes.overflow import overflow, underflow
from tapelab.explain.values.fixes.patient import Patient, same
from tapelab.explain.values.not_finite import Story
from tapelab.explain.values.rerun.node_expressions import of_node

_SAFE = {"Exp": "0.0", "Cosh": "0.0", "Sinh": "0.0", "Acos": "0.0", "Asin": "0.0", "Atanh": "0.0", "Tan": "0.0"}


def repair(story: Story, names: Mapping[str, str]) -> str:
    """Return what to write, as code.

    Args:
        story: a `Story`.
        names: what `{source}`, `{target}` and `{of}` stand for where no line can be rewritten.
    """
    if story.code == "exists":
        return ""
    if story.node is not None and story.code in _RULES:
        expression = of_node(story.node)
        if expression is not None:
            statement = statement_at(story.node.line)
            found = _RULES[story.code](Patient(story.node, story.then, expression, statement, story.values))
            if found:
                return found
    return VALUES[story.code].fix.format(**names)


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
    condition, _, second = map(text, _arguments(where))
    part, safe = text(patient.argument), _SAFE.get(patient.node.op, "1.0")
    if patient.lambdas:
        inner = (
            [condition, part, safe] if contains(_arguments(where)[1], patient.expression) else [condition, safe, part]
        )
        return patient.with_part(patient.argument, f"tf.where({', '.join(inner)})")
    # The branch that holds the operation is the one that must not run where it is not selected.
    if contains(_arguments(where)[2], patient.expression) or _names(patient) == {second}:
        choice = f"safe = tf.where({condition}, {safe}, {part})"
    else:
        choice = f"safe = tf.where({condition}, {part}, {safe})"
    return f"{choice}\n{patient.with_part(patient.argument, 'safe')}"


def _names(patient):
    """What the statement assigns to."""
    targets = patient.statement.targets if isinstance(patient.statement, ast.Assign) else []
    return {text(target) for target in targets}


def _masked(patient):
    product = _other_expression(patient, "Mul", "MulNoNan")
    if patient.argument is None or product is None:
        return None
    operands = [product.left, product.right] if isinstance(product, ast.BinOp) else _arguments(product)[:2]
    mask = [one for one in operands if not contains(one, patient.expression) and text(one) not in _names(patient)]
    if len(mask) != 1 or len(operands) != 2:
        return None
    safe = _SAFE.get(patient.node.op, "1.0")
    if patient.lambdas:
        inner = f"tf.where({closed(mask[0])} != 0, {text(patient.argument)}, {safe})"
        return patient.with_part(patient.argument, inner)
    choice = f"safe = tf.where({closed(mask[0])} != 0, {text(patient.argument)}, {safe})"
    return f"{choice}\n{patient.with_part(patient.argument, 'safe')}"


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
    word, inner = called(patient.expression), patient.argument
    if word != "log":
        return None
    if called(inner) == "softmax":
        rest = "".join(f", {text(keyword)}" for keyword in inner.keywords)
        return patient.with_expression(f"tf.nn.log_softmax({', '.join(map(text, inner.args))}{rest})")
    if called(inner) == "sigmoid":
        return patient.with_expression(f"tf.math.log_sigmoid({text(inner.args[0])})")
    return patient.with_argument("{1} + 1e-7")


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
    "softmax_twice": _twice,
    "broadcast_loss": _broadcast,
}
