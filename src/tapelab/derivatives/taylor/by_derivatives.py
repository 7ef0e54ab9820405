"""An operation without a rule: its derivatives along curves through its inputs, by nested tapes around it alone."""

from collections.abc import Callable, Sequence

from tapelab.derivatives.taylor.algebras import Algebra
from tapelab.derivatives.taylor.reissue import reissue
from tapelab.derivatives.taylor.values import NoRule, Val, full, over_lanes, zeros_if_none
from tapelab.runtime import tf


def by_derivatives(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """Return an operation's outputs with their channels, which the algebra finds along curves."""
    moving = [i for i, v in enumerate(vals) if v.ch]
    at = [values[i] for i in moving]

    def run(tensors):
        inputs = list(values)
        for i, tensor in zip(moving, tensors, strict=True):
            inputs[i] = tensor
        return reissue(op, inputs)

    ys = run(at)
    if not all(tensor.dtype.is_floating for tensor in [*ys, *at]):
        raise NoRule("none is written, and not all of its inputs and results are real numbers")
    curves = [algebra.curves(values[i], [full(c, values[i]) for c in vals[i].ch]) for i in moving]
    lanes = next(c.shape[0] for curve in curves for c in curve if c is not None)
    orders = [
        [zeros_if_none(c, lanes, x) for c, x in zip(coefficients, at, strict=True)]
        if any(c is not None for c in coefficients)
        else None
        for coefficients in zip(*curves, strict=True)
    ]

    def lane(flat):
        rest = iter(flat)
        found = along(run, at, [part and [next(rest) for _ in at] for part in orders])
        return [derivative for part in found for derivative in part]

    flat = over_lanes(lane, [c for part in orders if part for c in part])
    by_order = [flat[k : k + len(ys)] for k in range(0, len(flat), len(ys))]
    return [Val(y, algebra.gathered(derivatives)) for y, *derivatives in zip(ys, *by_order, strict=True)]


def along(
    run: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    at: Sequence[tf.Tensor],
    coefficients: Sequence[Sequence[tf.Tensor] | None],
    *,
    needed: bool = True,
) -> list[list[tf.Tensor]]:
    """Differentiate run(x(t)) at t = 0 along the curve x(t) = at + Σ_k c_k tᵏ / k!, as often as it has coefficients.

    u·run(x(t)) is a number, of which reverse mode takes the derivatives by t, one after the other. Each is linear in u,
    and its gradient by u is what is wanted.

    Args:
        run: takes and returns lists of tensors.
        at: its arguments.
        coefficients: c_1, c_2, …, each a list of tensors like ``at``, None for zeros.
        needed: whether a missing gradient is an error. TensorFlow has none by some inputs of some operations (the
            parameters of Betainc), which is no reason to take it for zero.

    Returns:
        For each order, from the first, a list of tensors like the results.

    Raises:
        NoRule: if a gradient is needed, and TensorFlow has none.
    """
    at = list(at)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(at)
        outputs = run(at)
    if needed and any(gradient is None for gradient in tape.gradient(outputs, at)):
        raise NoRule("none is written, and TensorFlow has no gradient of it")
    cotangents = [tf.zeros_like(output) for output in outputs]

    def paired(t):
        products = [
            tf.cast(tf.reduce_sum(u * y), t.dtype)
            for u, y in zip(cotangents, run(_curve(at, coefficients, t)), strict=True)
        ]
        return tf.add_n(products)

    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(cotangents)
        rates = _rates(paired, tf.constant(0.0, tf.float64), len(coefficients))
    return [outer.gradient(rate, cotangents, unconnected_gradients="zero") for rate in rates[1:]]


def _curve(at, coefficients, t):
    points = []
    for i, x in enumerate(at):
        rest, now = None, tf.cast(t, x.dtype)
        for k in range(len(coefficients), 0, -1):  # Horner's scheme
            c = None if coefficients[k - 1] is None else coefficients[k - 1][i]
            rest = c if rest is None else rest if c is None else c + rest
            rest = None if rest is None else now / k * rest
        points.append(x if rest is None else x + rest)
    return points


def _rates(number, t, order):
    """A function of t, and its derivatives up to an order, by nested tapes."""
    if order == 0:
        return [number(t)]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(t)
        found = _rates(number, t, order - 1)
    return [*found, tape.gradient(found[-1], t, unconnected_gradients="zero")]
