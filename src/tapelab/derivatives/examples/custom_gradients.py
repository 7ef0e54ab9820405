"""What the backward pass of a custom gradient does to the examples of a batch."""

from collections.abc import Sequence

from tapelab.graphs.batch import APART, FIXED, SUMMED, Examples, State, fixed, refuse_custom
from tapelab.graphs.batch.examples import Custom
from tapelab.graphs.linear import is_purely_linear
from tapelab.graphs.operations import known
from tapelab.graphs.program import has_custom_gradient, place
from tapelab.process.tensorflow import tf


def by_backward_pass(tape: tf.GradientTape) -> Custom:
    """Return what `Examples` asks of a custom gradient: its backward pass is looked at, and keeps them apart or not.

    Args:
        tape: persistent, has recorded the operations.
    """

    def states(examples: Examples, op: tf.Operation) -> list[State]:
        kept = examples.keeps(op)
        if kept and any(state.kind == APART for state in kept) and backward_keeps(op, kept, tape, examples):
            return kept
        return refuse_custom(examples, op)

    return states


def by_linear_backward_pass(tape: tf.GradientTape) -> Custom:
    """Return the same, where the backward pass must be linear in its cotangents as well, and what is fixed is so."""

    def states(examples: Examples, op: tf.Operation) -> list[State]:
        if all(examples.state(tensor) == fixed for tensor in op.inputs):
            return [fixed] * len(op.outputs)
        kept = examples.keeps(op)
        if kept is None:
            return refuse_custom(examples, op)
        if not backward_keeps(op, kept, tape, examples, linear=True):
            return examples.lose(op, f"the custom gradient of {place(op)}")
        return kept

    return states


def backward_keeps(
    op: tf.Operation, kept: Sequence[State], tape: tf.GradientTape, examples: Examples, *, linear: bool = False
) -> bool:
    """Whether the backward pass of an operation with a custom gradient keeps the examples apart.

    Args:
        op: the operation, in the graph that is being built, to which its backward pass is added.
        kept: the states of its outputs, since it keeps the examples.
        tape: persistent, has recorded the operation.
        examples: the states of the graph's tensors; those of the backward pass are noted in it, too.
        linear: whether the pass must be linear in its cotangents as well.
    """
    inputs = [tensor for tensor in op.inputs if examples.state(tensor).kind == APART]
    pairs = zip(op.outputs, kept, strict=True)
    outputs = {output.ref(): state for output, state in pairs if state.kind == APART and output.dtype.is_floating}
    before = len(op.graph.get_operations())
    cotangents = [tf.ones_like(output.deref()) for output in outputs]
    given = {cotangent.op.name for cotangent in cotangents}
    straight, bent = {cotangent.ref() for cotangent in cotangents}, set()  # linear in the cotangents, or not
    for cotangent, state in zip(cotangents, outputs.values(), strict=True):
        examples.note(cotangent, state)
    targets = [output.deref() for output in outputs]
    gradients = tape.gradient(targets, inputs, output_gradients=cotangents)
    added = op.graph.get_operations()[before:]
    backward = {new.name for new in added}
    for new in added:
        if new.name in given:
            continue
        varying = [tensor for tensor in new.inputs if examples.state(tensor) != fixed]
        if varying and has_custom_gradient(new):
            return False
        if any(examples.state(tensor).kind == SUMMED and tensor.op.name not in backward for tensor in varying):
            return False  # what comes in from the function is a sum over examples
        if new.type != "StopGradient":
            examples.meet(new)
        own = {output.ref() for output in new.outputs}
        if any(tensor.ref() in bent for tensor in new.inputs):
            bent |= own
        elif any(tensor.ref() in straight for tensor in new.inputs) and not known(new.type).has("valueless"):
            inside = [index for index, tensor in enumerate(new.inputs) if tensor.ref() in straight]
            (straight if is_purely_linear(new, inside) else bent).update(own)
    found = [gradient for gradient in gradients if gradient is not None]
    return all(
        isinstance(gradient, tf.Tensor)
        and examples.state(gradient).kind in (FIXED, APART)
        and (gradient.ref() in straight or not linear)
        for gradient in found
    )
