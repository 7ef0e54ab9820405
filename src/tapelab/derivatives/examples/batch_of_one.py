"""Whether an example's loss on a batch of one is its own part of the batch's: proved from the graph, or compared.

Losses of the examples, shape (batch,), are to be the same one by one. A scalar is to be their sum or mean, times and
plus what depends on no example. Both follow from two graphs, for the whole batch and for one example: in the first no
example meets another, by the rules of `tapelab.graphs.batch`, and the second is the same but for the number of
examples. Where that is not proved, losses are compared at every call.
"""

from typing import NamedTuple

from tapelab.derivatives.examples.chunks import called_with, sized_outputs
from tapelab.derivatives.examples.custom_gradients import by_backward_pass
from tapelab.derivatives.examples.independence import require_independent, require_values
from tapelab.derivatives.first_order import recorded
from tapelab.derivatives.machinery.errors import CoupledExamplesError
from tapelab.derivatives.machinery.problem import Problem, repeatable
from tapelab.graphs.batch import LOST, Examples, Unproven
from tapelab.process.tensorflow import tf

import numpy as np
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too

_LOOK_FOR = (
    "Look for batch normalisation in training mode (call it with training=False, or use group or layer "
    "normalisation), a mean or attention over the batch axis, {0}or a division by the batch's size; use "
    "check_independence=False for the gradients of batches of one"
)


class _Trace(NamedTuple):
    """The function's graph for some number of examples.

    Attributes:
        examples: the states of its tensors.
        coupled: why they are not proved to be apart, or None.
    """

    function: tf.types.experimental.ConcreteFunction
    examples: Examples
    coupled: str | None


def require_alone_as_in_batch(problem: Problem) -> None:
    """Raise Unproven unless the loss of each example on a batch of one is its part of the batch's loss.

    Random numbers, where a function draws them anew at each evaluation, may be others.
    """
    if not problem.facts.traceable:
        raise Unproven("the function cannot be traced into a graph")
    batch = problem.data_shapes[0][0]
    whole = _traced(problem, batch)
    if whole.coupled is not None:
        raise Unproven(whole.coupled)
    single = _traced(problem, 1)
    sized = sized_outputs(whole.function, single.function, whole.examples, 1, draws=not problem.repeatable)
    if any(sized) and problem.returned.shapes != [()]:  # of a scalar, it is a factor or an offset
        raise Unproven("its losses depend on how many examples there are")


def require_comparable(problem: Problem, reason: Unproven | str, *, apart_from_python: bool = False) -> None:
    """Raise CoupledExamplesError where losses cannot be compared: two evaluations are not known to agree.

    Args:
        reason: why there is no proof.
        apart_from_python: whether to take Python that a graph calls for a function of its arguments.
    """
    calls = ("EagerPyFunc", "PyFunc") if apart_from_python else ()
    if not repeatable(op for op in problem.facts.operations if not op.startswith(calls)):
        raise CoupledExamplesError(
            f"{problem.name}: whether an example's loss depends on other examples is not known, because of {reason}; "
            "and as the function draws random numbers or changes variables, its losses one by one cannot be compared "
            "with those of the batch. Look for batch normalisation in training mode: call it with training=False, or "
            "use group or layer normalisation; check_independence=False takes the gradients of batches of one"
        )


def require_same_losses(problem: Problem, together: tf.Tensor, single: tf.Tensor) -> None:
    """Raise CoupledExamplesError if the losses of the batch, or their sum or mean, are not those of batches of one."""
    require_values(problem, "examples go one by one, to see that none depends on another")
    tolerance = float(finfo(problem.returned.dtypes[0].as_numpy_dtype).eps) ** 0.5
    together, single = (tf.cast(losses, tf.float64).numpy() for losses in (together, single))
    if not together.ndim:
        _require_sum_or_mean(problem, together, single, tolerance)
        return
    sizes = np.maximum(np.abs(together), np.abs(single))
    finite = np.isfinite(together) & np.isfinite(single)  # NaN says nothing
    largest = sizes.max(where=finite, initial=0.0)
    difference = np.abs(together - single, where=finite, out=np.zeros_like(sizes))
    require_independent(
        problem,
        difference > tolerance * (sizes + tolerance * largest) + np.finfo(np.float64).tiny,
        lambda first: f"its loss is {together[first]:.6g} in the batch and {single[first]:.6g} in a batch of one",
        _LOOK_FOR.format(""),
        more=", or on how many there are",
    )


def _require_sum_or_mean(problem: Problem, together: np.float64, single: np.ndarray, tolerance: float) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        found, sizes = (np.array([part.sum(), part.mean()]) for part in (single, np.abs(single)))
        differ = np.abs(found - together) > tolerance * np.maximum(sizes, np.abs(together)) + np.finfo(np.float64).tiny
    if differ.all():  # NaN says nothing
        raise CoupledExamplesError(
            f"{problem.name}: examples depend on other examples, or on how many there are: the loss of the batch is "
            f"{together:.6g}, and those of batches of one have the sum {found[0]:.6g} and the mean {found[1]:.6g}. "
            f"{_LOOK_FOR.format('weights or a mask that a mean is divided by, a penalty that is added to a sum, ')}"
        )


def _traced(problem: Problem, size: int) -> _Trace:
    found = []

    def trace(*tensors: tf.Tensor) -> tf.Tensor:
        with called_with(size):
            tape, _, (loss,) = recorded(problem, tensors, persistent=True)
        examples = Examples(size, by_backward_pass(tape))
        for tensor in tensors[problem.data_start :]:
            examples.begin(tensor)
        examples.follow_all(loss.graph)
        found.append((examples, loss))
        return loss

    by_example = [index >= problem.data_start for index in range(len(problem.specs))]
    function = problem.traced(trace, problem.sized(size, by_example))
    examples, loss = found[-1]
    for output in function.graph.outputs:  # a copy, made after the function was followed
        examples.note(output, examples.state(loss))
    return _Trace(function, examples, _why_not(examples, loss))


def _why_not(examples: Examples, loss: tf.Tensor) -> str | None:
    """Why the losses are not proved to be the examples' own, or a scalar the sum of them; None if they are."""
    state = examples.state(loss)
    if state.kind == LOST:
        return state.why
    if loss.shape.rank == 0:
        return None
    return None if examples.in_rows(loss) else "the losses do not depend on the arguments, or are sums over examples"
