"""Whether an example's loss on a batch of one is its own part of the batch's: proved from the graph, or compared.

Losses of the examples, shape (batch,), are to be the same one by one. A scalar is to be their sum or mean, times and
plus what depends on no example. Both follow from two graphs, for the whole batch and for one example: in the first no
example meets another, by the rules of `kept_apart`, and the second is the same but for the number of examples. Where
that is not proved, losses are compared at every call.
"""

from collections import defaultdict
from typing import NamedTuple

from tapelab.derivatives.examples.chunks import Twins
from tapelab.derivatives.examples.custom_gradients import follow
from tapelab.derivatives.examples.independence import Unproven
from tapelab.derivatives.examples.kept_apart import APART, FIXED, VALUELESS, Examples
from tapelab.derivatives.examples.source_sites import sums_over_examples
from tapelab.derivatives.first_order import recorded
from tapelab.derivatives.machinery.errors import CoupledExamplesError
from tapelab.derivatives.machinery.problem import Problem, repeatable
from tapelab.graphs.program import CALLS, function_body, has_custom_gradient, place
from tapelab.runtime import tf

import numpy as np
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too

_SUMMED = "summed"
_LOOK_FOR = (
    "Look for batch normalisation in training mode (call it with training=False, or use group or layer "
    "normalisation), a mean or attention over the batch axis, {0}or a division by the batch's size; use "
    "check_independence=False for the gradients of batches of one"
)


class _Trace(NamedTuple):
    """The function's graph for some number of examples.

    Attributes:
        known: the axis of the examples in each tensor, `Tensor.ref` → axis; None where there is none.
        coupled: why they are not proved to be apart, or None.
    """

    function: tf.types.experimental.ConcreteFunction
    known: dict
    coupled: str | None


def require_alone_as_in_batch(problem: Problem) -> None:
    """Raise Unproven unless the loss of each example on a batch of one is its part of the batch's loss.

    Random numbers, where a function draws them anew at each evaluation, may be others.
    """
    if not problem.traceable:
        raise Unproven("the function cannot be traced into a graph")
    batch = problem.data_shapes[0][0]
    whole = _traced(problem, batch)
    if whole.coupled is not None:
        raise Unproven(whole.coupled)
    try:
        single = _traced(problem, 1)
    except Exception as error:  # whatever the function raises for one example
        raise Unproven(f"for one example it raises {type(error).__name__}") from error
    captured = [[id(tensor) for tensor in one.function.captured_inputs] for one in (whole, single)]
    if captured[0] != captured[1]:
        raise Unproven("it reads other tensors from outside for one example")
    graph = whole.function.graph
    sized = Twins(whole.known, batch, 1, draws=not problem.repeatable).sized(
        graph, single.function.graph, [False] * len(graph.inputs)
    )
    if any(sized) and problem.output_shapes != [()]:  # of a scalar, it is a factor or an offset
        raise Unproven("its losses depend on how many examples there are")


def require_comparable(problem: Problem, reason: Unproven | str, *, apart_from_python: bool = False) -> None:
    """Raise CoupledExamplesError where losses cannot be compared: two evaluations are not known to agree.

    Args:
        reason: why there is no proof.
        apart_from_python: whether to take Python that a graph calls for a function of its arguments.
    """
    calls = ("EagerPyFunc", "PyFunc") if apart_from_python else ()
    if not repeatable(op for op in problem.operations if not op.startswith(calls)):
        raise CoupledExamplesError(
            f"{problem.name}: whether an example's loss depends on other examples is not known, because of {reason}; "
            "and as the function draws random numbers or changes variables, its losses one by one cannot be compared "
            "with those of the batch. Look for batch normalisation in training mode: call it with training=False, or "
            "use group or layer normalisation; check_independence=False takes the gradients of batches of one"
        )


def require_independent(problem: Problem, together: tf.Tensor, single: tf.Tensor) -> None:
    """Raise CoupledExamplesError if the losses of the batch, or their sum or mean, are not those of batches of one."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{problem.name}: examples go one by one, and the check that none depends on another reads values, "
            "which a tf.function does not have. Call it outside once, then use check_independence=False inside"
        )
    tolerance = float(finfo(problem.output_dtypes[0].as_numpy_dtype).eps) ** 0.5
    together, single = (tf.cast(losses, tf.float64).numpy() for losses in (together, single))
    if not together.ndim:
        _require_sum_or_mean(problem, together, single, tolerance)
        return
    sizes = np.maximum(np.abs(together), np.abs(single))
    finite = np.isfinite(together) & np.isfinite(single)  # NaN says nothing
    largest = sizes.max(where=finite, initial=0.0)
    difference = np.abs(together - single, where=finite, out=np.zeros_like(sizes))
    coupled = np.flatnonzero(difference > tolerance * (sizes + tolerance * largest) + np.finfo(np.float64).tiny)
    if coupled.size:
        first = coupled[0]
        raise CoupledExamplesError(
            f"{problem.name}: example {first} depends on other examples, or on how many there are (coupled examples: "
            f"{coupled.size} of {sizes.size}): its loss is {together[first]:.6g} in the batch and {single[first]:.6g} "
            f"in a batch of one. {_LOOK_FOR.format('')}"
        )


def _require_sum_or_mean(problem, together, single, tolerance):
    with np.errstate(over="ignore", invalid="ignore"):
        found, sizes = (np.array([part.sum(), part.mean()]) for part in (single, np.abs(single)))
        differ = np.abs(found - together) > tolerance * np.maximum(sizes, np.abs(together)) + np.finfo(np.float64).tiny
    if differ.all():  # NaN says nothing
        raise CoupledExamplesError(
            f"{problem.name}: examples depend on other examples, or on how many there are: the loss of the batch is "
            f"{together:.6g}, and those of batches of one have the sum {found[0]:.6g} and the mean {found[1]:.6g}. "
            f"{_LOOK_FOR.format('weights or a mask that a mean is divided by, a penalty that is added to a sum, ')}"
        )


def _traced(problem, size):
    found = []

    def trace(*tensors):
        tape, _, (loss,) = recorded(problem, tensors, persistent=True)
        states = _States(size, tensors[problem.data_start :], tape)
        states.follow_all(loss.graph)
        found.append((states, loss, states.why_not(loss)))
        return loss

    pairs = zip(problem.data_shapes, problem.data_dtypes, strict=True)
    specs = [tf.TensorSpec((size, *shape[1:]), dtype) for shape, dtype in pairs]
    sources = problem.source_specs if problem.data_start else []
    function = tf.function(trace, autograph=False).get_concrete_function(*sources, *specs)
    states, loss, coupled = found[-1]
    known = defaultdict(lambda: None)
    tensors = [output for graph in states.graphs for op in graph.get_operations() for output in op.outputs]
    known.update((tensor.ref(), 0) for tensor in tensors if states.examples.state(tensor) == APART)
    if loss.ref() in known:  # a copy, made after the function was followed
        known.update((losses.ref(), 0) for losses in function.graph.outputs)
    return _Trace(function, known, coupled)


class _States:
    """What keeps the examples apart, in a graph and in the functions that it calls, and what is a sum over them."""

    def __init__(self, batch, data, tape):
        self.examples = Examples(batch, data)
        self.graphs = []
        self._summed = set()
        self._tape = tape
        self._bodies = {}

    def follow_all(self, graph):
        self.graphs.append(graph)
        for op in graph.get_operations():
            self._follow(op, self._tape if len(self.graphs) == 1 else None)

    def why_not(self, loss):
        """Why the losses are not proved to be the examples' own, or a scalar the sum of them; None if they are."""
        if loss.shape.rank == 0 or self.examples.state(loss) != FIXED:
            return self.examples.lost.get(loss.ref())
        return "the losses do not depend on the arguments, or are sums over examples"

    def _follow(self, op, tape):
        summed = any(tensor.ref() in self._summed for tensor in op.inputs)
        lost = any(tensor.ref() in self.examples.lost for tensor in op.inputs)
        if op.type in CALLS:
            self._follow_call(op)
        elif not lost and not has_custom_gradient(op) and sums_over_examples(op, self.examples, self._summed):
            self._summed.update(output.ref() for output in op.outputs)
        elif summed and not lost and op.type not in VALUELESS:
            self._lose(op, ", of a sum over examples")
        elif tape is not None:
            follow(op, self.examples, tape)
        else:
            self.examples.follow(op)

    def _follow_call(self, op):
        """Follow the function that an operation calls, with the states that its arguments have."""
        states = [self._state(tensor) for tensor in op.inputs]
        if set(states) <= {FIXED}:
            return
        name = op.get_attr("f").name
        known = self._bodies.setdefault(name, states)
        try:
            body = function_body(op.graph, name)
        except LookupError:
            body = None
        if body is None or known != states:  # not found, or its tensors have other states in another call
            self._lose(op)
            return
        if known is states:
            for inside, state in zip(body.inputs, states, strict=True):
                self._note(inside, state)
            self.follow_all(body)
        pairs = [*zip(op.outputs, body.outputs, strict=False), *zip(op.inputs, body.inputs, strict=True)]
        for outside, inside in pairs:  # what is written into a variable there is read here
            self._note(outside, self._state(inside))

    def _state(self, tensor):
        """FIXED, APART or _SUMMED; or why it is lost."""
        reference = tensor.ref()
        return _SUMMED if reference in self._summed else self.examples.lost.get(reference, self.examples.state(tensor))

    def _note(self, tensor, state):
        if state == APART:
            self.examples.begin(tensor)
        elif state == _SUMMED:
            self._summed.add(tensor.ref())
        elif state != FIXED:
            self.examples.lost[tensor.ref()] = state

    def _lose(self, op, more=""):
        written = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]  # read later, it gives this back
        self.examples.lost.update((tensor.ref(), place(op) + more) for tensor in [*op.outputs, *written])
