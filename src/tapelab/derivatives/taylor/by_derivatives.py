"""An operation without a rule: the first and second derivatives of it alone, by nested tapes, over all lanes."""

from collections.abc import Callable, Sequence

from tapelab.derivatives.taylor.algebras import Second
from tapelab.derivatives.taylor.reissue import reissue
from tapelab.derivatives.taylor.values import NoRule, Val, full, over_lanes, plus, total
from tapelab.runtime import tf


def by_derivatives(algebra: Second, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """Return an operation's outputs: j' = D op [j], s' = D op [s] + Σ_r w_r D² op [j_r, j_r]."""
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

    def first(tangents):
        return pushed(run, at, tangents, needed=True)

    def second(tangents):
        return pushed(lambda tensors: pushed(run, tensors, tangents), at, tangents)

    def channels(k):
        found = [full(vals[i].ch[k], values[i]) for i in moving]
        lanes = next((c.shape[0] for c in found if c is not None), None)
        if lanes is None:
            return None
        pairs = zip(found, at, strict=True)
        return [tf.zeros([lanes, *x.shape], x.dtype) if c is None else c for c, x in pairs]

    j, s = channels(0), channels(1)
    nothing = [None] * len(ys)
    first_j = over_lanes(first, j) if j else nothing
    first_s = over_lanes(first, s) if s else nothing
    bends = [total(c, algebra.weights) for c in over_lanes(second, j)] if j else nothing
    return [Val(y, (a, plus(b, c))) for y, a, b, c in zip(ys, first_j, first_s, bends, strict=True)]


def pushed(
    run: Callable[[list[tf.Tensor]], list[tf.Tensor]],
    at: Sequence[tf.Tensor],
    tangents: Sequence[tf.Tensor],
    *,
    needed: bool = False,
) -> list[tf.Tensor]:
    """Compute a Jacobian-vector product: u → Jᵀu is linear, and its transpose is v → Jv.

    Args:
        needed: whether a missing gradient is an error. TensorFlow has none by some inputs of some operations (the
            parameters of Betainc), which is no reason to take it for zero.
    """
    at = list(at)
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(at)
            outputs = run(at)
        cotangents = [tf.zeros_like(output) for output in outputs]
        outer.watch(cotangents)
        products = tape.gradient(outputs, at, output_gradients=cotangents)
    pairs = [(product, v) for product, v in zip(products, tangents, strict=True) if product is not None]
    if needed and len(pairs) < len(at):
        raise NoRule("none is written, and TensorFlow has no gradient of it")
    if not pairs:
        return [tf.zeros_like(output) for output in outputs]
    return outer.gradient(
        [product for product, _ in pairs],
        cotangents,
        output_gradients=[v for _, v in pairs],
        unconnected_gradients="zero",
    )
