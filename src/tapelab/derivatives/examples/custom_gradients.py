"""What the backward pass of a custom gradient does to the examples of a batch."""

from collections.abc import Container, Sequence

from tapelab.derivatives.examples.kept_apart import APART, FIXED, LOST, VALUELESS, Examples
from tapelab.graphs.program import has_custom_gradient
from tapelab.runtime import tf

ADDING = {"Add", "AddN", "AddV2", "BiasAdd"}
LINEAR = {"Cast", "ExpandDims", "Identity", "Mean", "Neg", "Reshape", "Squeeze", "Sum"}  # in their first input
QUOTIENTS = {"Div", "DivNoNan", "RealDiv"}


def follow(op: tf.Operation, examples: Examples, tape: tf.GradientTape) -> None:
    """Note the states of an operation's outputs. Of a custom gradient, the backward pass is looked at as well.

    Args:
        op: in the graph that is being built; its inputs were noted before.
        examples: the states of the graph's tensors.
        tape: persistent, has recorded the operation.
    """
    states = [examples.state(tensor) for tensor in op.inputs]
    varies = [state == APART for state in states]
    known = has_custom_gradient(op) and any(varies) and LOST not in states and examples.keeps(op)
    if known and backward_keeps(op, varies, tape, examples):
        for output in outputs_that_vary(op, varies):
            examples.begin(output)
        return
    examples.follow(op)


def outputs_that_vary(op: tf.Operation, varies: Sequence[bool]) -> list[tf.Tensor]:
    """Return the outputs that vary if these of its inputs do. `tf.custom_gradient` passes on what it is given."""
    passes_on = varies if op.type == "IdentityN" else [True] * len(op.outputs)
    return [output for output, varying in zip(op.outputs, passes_on, strict=True) if varying]


def backward_keeps(
    op: tf.Operation,
    varies: Sequence[bool],
    tape: tf.GradientTape,
    examples: Examples,
    *,
    summed: Container = (),
    linear: bool = False,
) -> bool:
    """Whether the backward pass of an operation with a custom gradient keeps the examples apart.

    Args:
        op: the operation, in the graph that is being built, to which its backward pass is added.
        varies: for each of its inputs, whether it does.
        tape: persistent, has recorded the operation.
        examples: the states of the graph's tensors; those of the backward pass are noted in it, too.
        summed: what holds a `Tensor.ref` for each sum over examples, which may not come in.
        linear: whether the pass must be linear in its cotangents as well.
    """
    inputs = [tensor for tensor, varying in zip(op.inputs, varies, strict=True) if varying]
    outputs = [output for output in outputs_that_vary(op, varies) if output.dtype.is_floating]
    before = len(op.graph.get_operations())
    cotangents = [tf.ones_like(output) for output in outputs]
    given = {cotangent.op.name for cotangent in cotangents}
    straight, bent = {cotangent.ref() for cotangent in cotangents}, set()  # linear in the cotangents, or not
    for cotangent in cotangents:
        examples.begin(cotangent)
    gradients = tape.gradient(outputs, inputs, output_gradients=cotangents)
    for new in op.graph.get_operations()[before:]:
        if new.name in given:
            continue
        comes_in = [tensor for tensor in new.inputs if examples.state(tensor) != FIXED]
        if any(tensor.ref() in summed for tensor in new.inputs) or (comes_in and has_custom_gradient(new)):
            return False
        if new.type not in ("StopGradient", *VALUELESS):
            examples.follow(new)
        own = {output.ref() for output in new.outputs}
        if any(tensor.ref() in bent for tensor in new.inputs):
            bent |= own
        elif any(tensor.ref() in straight for tensor in new.inputs) and new.type not in VALUELESS:
            stays = _is_linear(new, [tensor.ref() in straight for tensor in new.inputs])
            (straight if stays else bent).update(own)
    found = [gradient for gradient in gradients if gradient is not None]
    return all(
        isinstance(gradient, tf.Tensor)
        and examples.state(gradient) != LOST
        and (gradient.ref() in straight or not linear)
        for gradient in found
    )


def _is_linear(op, linear):
    """Whether an operation's result is linear in the inputs that are."""
    if op.type in LINEAR:
        return linear[0] and not any(linear[1:]) and op.outputs[0].dtype.is_floating
    if op.type in ADDING or op.type == "Sub":
        return all(linear)
    if op.type in ("BatchMatMulV2", "MatMul", "Mul"):
        return sum(linear) == 1
    return op.type in QUOTIENTS and linear == [True, False]
