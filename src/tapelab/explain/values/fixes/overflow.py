"""What to write where a number is too large or too small for its dtype."""

import ast
from ast import unparse as text

from tapelab.explain.ground.expressions import called, contains, same
from tapelab.explain.values.fixes.patient import Fix, Patient

_MAKES_LARGE = (
    "square",
    "pow",
    "multiply",
    "matmul",
    "cast",
    "add",
    "subtract",
    "reduce_sum",
    "reduce_mean",
    "reduce_prod",
)
_MAKES_LARGE += (ast.Pow, ast.Mult, ast.MatMult, ast.Add, ast.Sub)


def overflow(patient: Patient) -> Fix | str | None:
    """Known forms in which exp overflows and the whole does not; float32 for what is too much for float16."""
    if patient.node.op not in ("Exp", "Expm1", "Cosh", "Sinh"):
        return _wider(patient)
    if patient.statement is None or called(patient.expression) not in ("exp", "cosh"):
        return None
    inside = text(patient.argument)
    for whole in ast.walk(patient.statement):
        if isinstance(whole, ast.expr) and contains(whole, patient.expression):
            new = _stable(whole, patient.expression, inside)
            if new:
                return patient.with_part(whole, new)
    return patient.with_argument("tf.minimum({0}, 80.0)")


def _wider(patient):
    part = patient.argument
    if not patient.values.get("is_half"):
        return "# smaller numbers: scale what goes in, a smaller learning rate, clipping, or work with logarithms"
    if patient.values.get("is_backward"):
        return "# a smaller loss scale, a larger epsilon where something is normalised, or this part in float32"
    if (
        part is None or called(patient.expression) not in _MAKES_LARGE
    ):  # in somebody else's function, which has a dtype of its own
        return "# smaller numbers: scale what goes in; or this part in float32, of a layer by its dtype"
    if isinstance(patient.expression, ast.BinOp) and not isinstance(patient.expression.op, ast.Pow):
        return f"tf.cast({text(part)}, tf.float32)  # and the other operand"
    return patient.with_argument("tf.cast({0}, tf.float32)")


def _stable(whole, exp, inside):
    """What to write for an expression around exp(s), or None."""
    word, one = called(whole), text(exp)
    one_more = {form for n in ("1.0", "1", "1.") for form in (f"{n} + {one}", f"{one} + {n}")}
    if word == "log" and called(exp) == "cosh" and same(whole.args[0], exp):
        return f"tf.abs({inside}) + tf.nn.softplus(-2.0 * tf.abs({inside})) - tf.math.log(2.0)"
    if word in ("log", "log1p") and whole.args:
        within = whole.args[0]
        if word == "log" and called(exp) == "exp" and same(within, exp):
            return f"({inside})"
        if called(within) == "reduce_sum" and within.args and same(within.args[0], exp):
            rest = "".join(f", {text(part)}" for part in (*within.args[1:], *within.keywords))
            return f"tf.reduce_logsumexp({inside}{rest})"
        if (word == "log1p" and same(within, exp)) or text(within) in one_more:
            return f"tf.nn.softplus({inside})"
    if word is ast.Div:
        above, below = text(whole.left), text(whole.right)
        if above == one and below.startswith(("tf.reduce_sum", "tf.math.reduce_sum")) and one in below:
            axis = next((keyword for keyword in whole.right.keywords if keyword.arg == "axis"), None)
            return f"tf.nn.softmax({inside}{', ' + text(axis) if axis else ''})"
        if above in ("1.0", "1") and below in one_more:
            return f"tf.sigmoid(-({inside}))" if not inside.startswith("-") else f"tf.sigmoid({inside[1:]})"
        if above == one and below in one_more:
            return f"tf.sigmoid({inside})"
    return None


def underflow(patient: Patient) -> Fix | str | None:
    """The sum of logarithms for the logarithm of a product."""
    if patient.node.op not in ("Prod", "Cumprod"):
        return "# larger numbers: scale what goes in, or work with logarithms, or in a wider dtype"
    if called(patient.expression) != "reduce_prod" or patient.statement is None:
        return None
    for whole in ast.walk(patient.statement):
        if called(whole) == "log" and whole.args and same(whole.args[0], patient.expression):
            rest = "".join(f", {text(keyword)}" for keyword in patient.expression.keywords)
            return patient.with_part(whole, f"tf.reduce_sum(tf.math.log({text(patient.argument)}){rest})")
    return None
