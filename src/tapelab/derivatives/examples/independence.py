"""Whether the examples of a batch depend on each other: proved from the graph, or else compared at every call.

The proof is that of `tapelab.graphs.batch`. Where it fails, that is not yet a coupling: products are compared.
"""

from collections.abc import Callable, Sequence

from tapelab.derivatives.first_order import linearized
from tapelab.derivatives.machinery.errors import CoupledExamplesError
from tapelab.derivatives.machinery.problem import Problem
from tapelab.graphs.batch import APART, FIXED, Examples
from tapelab.process.tensorflow import tf

import numpy as np
from ml_dtypes import finfo

COMPARED = "examples are compared at every call: that they are independent is not proved, because of {0}"
LOOK_FOR = "Look for batch normalisation in training mode, or a mean or attention over the batch axis"


def coupling(problem: Problem, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return nothing if examples are proved independent; else by how much each differs, for `require_uncoupled`.

    If the rows of the Jacobian J of an example have no entries for other examples, then J(a ∘ t) = a ∘ Jt for tangents
    t and a number a for each example; random ones are taken.
    """
    why = why_unproved(problem)
    if why is None:
        return []
    problem.note(COMPARED.format(why))
    (_, _, outputs), push = linearized(problem, tensors, persistent=True, exact=False)
    batch = problem.source_shapes[0][0]
    generator = np.random.default_rng(0)
    factors = generator.uniform(0.5, 2.0, batch)
    tangents = [generator.standard_normal(shape) for shape in problem.source_shapes]

    def pushed(scale):
        scaled = [(t.T * scale).T for t in tangents]
        return push([tf.constant(t, dtype) for t, dtype in zip(scaled, problem.source_dtypes, strict=True)])

    found = []
    for plain, whole, output in zip(pushed(np.ones(batch)), pushed(factors), outputs, strict=True):
        plain, whole = (tf.reshape(tf.cast(part, tf.float64), [batch, -1]) for part in (plain, whole))
        own = plain * factors[:, None]
        largest = tf.reduce_max(tf.abs(own), axis=1)
        # Where everything cancels, products are rounding error of about this size.
        floor = tf.reduce_max(tf.abs(tf.cast(output, tf.float64))) + tf.reduce_max(largest)
        scale = largest + min(100 * tolerance_of(problem), 0.1) * floor + np.finfo(np.float64).tiny
        found.append(tf.reduce_max(tf.abs(whole - own), axis=1) / scale)
    return [tf.reduce_max(tf.stack(found), axis=0)]


def require_proved_if_changing(problem: Problem) -> None:
    """Raise CoupledExamplesError if `coupling` would evaluate a function again that changes something each time."""
    if problem.changes and why_unproved(problem) is not None:
        raise CoupledExamplesError(
            f"{problem.name}: whether an example depends on other examples is not clear from the function's graph, and "
            "to compare them, what it changes would be changed twice in a call: a variable, a generator of random "
            "numbers, an iterator. Look for batch normalisation in training mode; take what changes out of the "
            "function, or use check_independence=False"
        )


def require_uncoupled(problem: Problem, found: Sequence[tf.Tensor]) -> None:
    """Raise CoupledExamplesError if `coupling` found one."""
    require_values(problem, "whether examples are independent is not clear from the function's graph")
    relative, tolerance = found[0].numpy(), tolerance_of(problem)
    require_independent(
        problem,
        relative > tolerance,  # NaN says nothing
        lambda first: (
            "a product with the Jacobian of the whole batch differs from its own by "
            f"{relative[first]:.2g} of its size, and rounding explains {tolerance:.1g}"
        ),
        f"{LOOK_FOR}; use batched=False for a sum over the whole batch",
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
    dtypes = {*problem.source_dtypes, *problem.output_dtypes}
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
    data = [tf.TensorSpec(*pair) for pair in zip(problem.data_shapes, problem.data_dtypes, strict=True)]
    specs = [*problem.source_specs[: problem.data_start], *data]
    batch = problem.source_shapes[0][0]
    if batch <= 1:
        return None
    try:
        traced = tf.function(lambda *own: problem.evaluate(own), autograph=False).get_concrete_function(*specs)
    except Exception as error:  # whatever the function raises
        return f"a trace into a graph, which raises {type(error).__name__}"
    examples = followed(traced.graph, [True] * problem.data_start, batch)
    for output in traced.graph.outputs:
        state = examples.state(output)
        if state.kind not in (FIXED, APART):
            return state.why
        if state.kind == APART and not (examples.in_rows(output) and output.shape[0] == batch):
            return "its results, which have the examples elsewhere"
    return None
