"""An operation without a rule: its derivatives along curves through its inputs, by nested tapes around it alone."""

import itertools
from collections.abc import Callable, Sequence

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val, full, over_lanes, zeros_if_none
from tapelab.graphs.program import reissue
from tapelab.process.tensorflow import Tensors, tf


def by_derivatives(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Return an operation's outputs with their channels, which the algebra finds along curves."""
    moving = [i for i, v in enumerate(vals) if v.ch]
    at = [values[i] for i in moving]

    def run(tensors: Tensors) -> list[tf.Tensor]:
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

    def lane(flat: Tensors) -> list[tf.Tensor]:
        rest = iter(flat)
        found = along(run, at, [part and [next(rest) for _ in at] for part in orders])
        return [derivative for part in found for derivative in part]

    flat = over_lanes(lane, [c for part in orders if part for c in part])
    by_order = [flat[k : k + len(ys)] for k in range(0, len(flat), len(ys))]
    return [Val(y, algebra.gathered(derivatives)) for y, *derivatives in zip(ys, *by_order, strict=True)]


def along(
    run: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    at: Tensors,
    coefficients: Sequence[Tensors | None],
    *,
    needed: bool = True,
) -> list[list[tf.Tensor]]:
    """Differentiate run(x(t)) at t = 0 along the curve x(t) = at + Σ_k c_k tᵏ / k!, as often as it has coefficients.

    u·run(x) is a number. While t passes, x changes by c_1, c_1 by c_2 and so on: the derivative by t of a number that
    is computed from them is Σ_k ∂/∂c_k · c_{k+1}, c_0 being x. Reverse mode takes one after the other. Each is linear
    in u, and its gradient by u is what is wanted. The function itself is evaluated at x alone, whatever the curves:
    what `tf.vectorized_map` meets are operations of its gradients.

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
    # One tensor may stand in two places, and a tape would add up what belongs to each.
    start = [tf.identity(tensor) for tensor in at]
    changes = [part and [tf.identity(tensor) for tensor in part] for part in coefficients]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(start)
        outputs = run(start)
    if needed and any(gradient is None for gradient in tape.gradient(outputs, start)):
        raise NoRule("none is written, and TensorFlow has no gradient of it")
    cotangents = [tf.zeros_like(output) for output in outputs]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(cotangents)
        rates = _rates(lambda: _inner(cotangents, run(start)), [start, *changes], len(coefficients))
    return [outer.gradient(rate, cotangents, unconnected_gradients="zero") for rate in rates[1:]]


def _rates(number: Callable[[], tf.Tensor], points: Sequence[Tensors | None], order: int) -> list[tf.Tensor]:
    """A number and its derivatives by t, up to an order."""
    if order == 0:
        return [number()]
    pairs = [(now, change) for now, change in itertools.pairwise(points) if now and change]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch([now for now, _ in pairs])
        found = _rates(number, points, order - 1)
    gradients = tape.gradient(found[-1], [now for now, _ in pairs])
    parts = [_inner(gradient, change) for gradient, (_, change) in zip(gradients, pairs, strict=True)]
    return [*found, tf.add_n(parts)]


def _inner(left: Sequence[tf.Tensor | None], right: Tensors) -> tf.Tensor:
    """The inner product of two lists of tensors, None on the left for zero."""
    products = [
        tf.cast(tf.reduce_sum(tf.convert_to_tensor(a) * b), tf.float64)
        for a, b in zip(left, right, strict=True)
        if a is not None
    ]
    return tf.add_n([tf.constant(0.0, tf.float64), *products])
