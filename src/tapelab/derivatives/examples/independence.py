"""Whether the examples of a batch depend on each other: proved from the graph, or else compared at every call.

The proof is that of `tapelab.graphs.batch`. Where it fails, that is not yet a coupling: products are compared.
"""

from collections.abc import Callable, Sequence

from tapelab.derivatives.first_order import Recording, dense_gradient
from tapelab.derivatives.machinery.errors import CoupledExamplesError
from tapelab.derivatives.machinery.problem import Problem
from tapelab.graphs.batch import APART, FIXED, Examples
from tapelab.process.tensorflow import tf

import numpy as np
from ml_dtypes import finfo

_COMPARED = "examples are compared at every call: that they are independent is not proved, because of {0}"


def coupling(problem: Problem, why: str, recording: Recording) -> tf.Tensor:
    """Return by how much each example depends on others, for `require_uncoupled`, where that is not proved.

    If the rows of the Jacobian J of an example have no entries for other examples, then Jᵀ(a ∘ u) = a ∘ Jᵀu for
    cotangents u and a number a for each example; random ones are taken.

    Args:
        why: there is no proof: a note in the plan.
        recording: of the function, with a persistent tape.

    Returns:
        The largest relative difference of an element, shape (batch,), float64.
    """
    problem.note(_COMPARED.format(why))
    tape, sources, outputs = recording
    batch = problem.source_shapes[0][0]
    generator = np.random.default_rng(0)
    factors = generator.uniform(0.5, 2.0, batch)
    cotangents = [generator.standard_normal(shape) for shape in problem.returned.shapes]

    def products(scale: np.ndarray) -> list[tf.Tensor]:
        scaled = [tf.constant((u.T * scale).T, output.dtype) for u, output in zip(cotangents, outputs, strict=True)]
        found = dense_gradient(tape, outputs, sources, scaled)
        return [tf.reshape(tf.cast(part, tf.float64), [batch, -1]) for part in found]

    # Where everything cancels, as in sin² + cos², products are rounding error of about this size.
    size = tf.add_n([_largest(output) for output in outputs])
    found = []
    for plain, whole, source in zip(products(np.ones(batch)), products(factors), sources, strict=True):
        own = plain * factors[:, None]
        floor = size / tf.maximum(_largest(tf.convert_to_tensor(source)), 1)
        found.append(_relative(problem, tf.abs(whole - own), tf.abs(own), floor))
    return tf.reduce_max(tf.stack(found), axis=0)


def _relative(problem: Problem, difference: tf.Tensor, scale: tf.Tensor, floor: tf.Tensor) -> tf.Tensor:
    """For each example, its largest difference relative to a scale, both of shape (batch, elements).

    Rounding in an element is about that of its example's largest: there, and at the floor, it is allowed to be a
    hundred times what one operation leaves, but no more than a tenth, which in bfloat16 is a dozen times.
    """
    tolerance = tolerance_of(problem)
    rounding = min(100 * tolerance, 0.1 / tolerance)
    largest = tf.reduce_max(scale, axis=1, keepdims=True)
    scale += rounding * (largest + floor) + np.finfo(np.float64).tiny
    return tf.maximum(tf.reduce_max(difference / scale, axis=1), 0)


def _largest(tensor: tf.Tensor) -> tf.Tensor:
    """The largest finite magnitude, 0 where there is none."""
    sizes = tf.where(tf.math.is_finite(tensor), tf.abs(tensor), 0)
    return tf.maximum(tf.cast(tf.reduce_max(sizes), tf.float64), 0)


def require_proved_if_changing(problem: Problem) -> None:
    """Raise CoupledExamplesError if `coupling` would evaluate a function again that changes something each time."""
    if problem.changes and why_unproved(problem) is not None:
        raise CoupledExamplesError(
            f"{problem.name}: whether an example depends on other examples is not clear from the function's graph, and "
            "to compare them, what it changes would be changed twice in a call: a variable, a generator of random "
            "numbers, an iterator. Look for batch normalisation in training mode; take what changes out of the "
            "function, or use check_independence=False"
        )


def require_uncoupled(problem: Problem, found: tf.Tensor, advice: str) -> None:
    """Raise CoupledExamplesError if `coupling` found one; the advice says what to do."""
    require_values(problem, "whether examples are independent is not clear from the function's graph")
    relative, tolerance = found.numpy(), tolerance_of(problem)
    require_independent(
        problem,
        relative > tolerance,  # NaN says nothing
        lambda first: (
            "a product with the Jacobian of the whole batch differs from its own by "
            f"{relative[first]:.2g} of its size, and rounding explains {tolerance:.1g}"
        ),
        f"Look for batch normalisation in training mode, or a mean or attention over the batch axis; {advice}",
        more=", or they on it",
    )


def require_values(problem: Problem, why: str) -> None:
    """Raise RuntimeError inside a `tf.function`, where examples cannot be compared."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{problem.name}: {why}, and the check reads values, which a tf.function does not have. Call it outside "
            "once, then use check_independence=False inside"
        )


def require_independent(
    problem: Problem, coupled: np.ndarray, evidence: Callable[[int], str], advice: str, *, more: str = ""
) -> None:
    """Raise CoupledExamplesError if examples were found to depend on others, wherever they were compared.

    Args:
        coupled: for each example whether it does.
        evidence: says what was compared, given the number of an example.
        advice: what to look for and what to do.
        more: on what else it may depend.
    """
    if coupled.any():
        first = int(np.argmax(coupled))
        raise CoupledExamplesError(
            f"{problem.name}: example {first} depends on other examples{more} (coupled examples: {coupled.sum()} of "
            f"{coupled.size}): {evidence(first)}. {advice}"
        )


def tolerance_of(problem: Problem) -> float:
    """Return what rounding may explain: the square root of the coarsest among the dtypes of sources and results."""
    dtypes = {*problem.source_dtypes, *problem.returned.dtypes}
    return max(float(finfo(dtype.as_numpy_dtype).eps) for dtype in dtypes) ** 0.5


def followed(graph: tf.Graph, by_example: Sequence[bool], batch: int) -> Examples:
    """Follow the values of a graph, of whose first inputs these have the examples along their first axis."""
    examples = Examples(batch)
    for tensor, one in zip(graph.inputs, by_example, strict=False):
        if one:
            examples.begin(tensor)
    examples.follow_all(graph)
    return examples


def why_unproved(problem: Problem) -> str | None:
    """Say why the examples of a function's arguments are not proved independent; None if they are."""
    batch = problem.source_shapes[0][0]
    if batch <= 1:
        return None
    try:
        graph = problem.graph()
    except Exception as error:  # whatever the function raises
        return f"a trace into a graph, which raises {type(error).__name__}"
    examples = followed(graph, [True] * problem.data_start, batch)
    for output in graph.outputs:
        state = examples.state(output)
        if state.kind not in (FIXED, APART):
            return state.why
        if state.kind == APART and not (examples.in_rows(output) and output.shape[0] == batch):
            return "its results, which have the examples elsewhere"
    return None
