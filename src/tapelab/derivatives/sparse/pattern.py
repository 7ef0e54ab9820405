"""The pattern of a Jacobian or a Hessian, from the graph of the function or of its gradient.

Every element of every tensor gets the set of the elements of the sources that it depends on (`Dependences`). The
pattern of a Hessian is that of the gradient's Jacobian.
"""

from collections.abc import Callable, Sequence

from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.hessians.hessian import hessian_products
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.sparse.dependence import Dependence, identity, room_for
from tapelab.derivatives.sparse.walk import Dependences, static_shape
from tapelab.process.tensorflow import Tensors, tf

import numpy as np
from scipy import sparse


class Pattern:
    """Where a matrix of derivatives may have entries.

    Attributes:
        matrix: shape (rows, columns), boolean, canonical.
        dense: a list of strings: operations that were taken to depend on all of their inputs.
    """

    def __init__(self, matrix: sparse.csr_array, dense: Sequence[str] = ()):
        self.matrix = matrix.tocsr()
        self.matrix.sum_duplicates()
        self.dense = list(dense)


def jacobian_pattern(problem: Problem, limit: float) -> Pattern:
    """Return the pattern of the Jacobian of all outputs by all sources, rows and columns in the order of `pack`.

    Where gradients were given with `tf.custom_gradient`, the pattern is that of the product with cotangents.

    Raises:
        MemoryLimitError: if it is so dense that following it does not fit ``limit`` bytes.
    """
    if not problem.custom_gradients:
        return _traced(problem, limit, problem.evaluate, problem.output_sizes)

    def product(tensors: Tensors, cotangents: Tensors) -> list[tf.Tensor]:
        tape, sources, outputs = recorded(problem, tensors)
        return dense_gradient(tape, outputs, sources, cotangents)

    found = _traced(problem, limit, product, problem.source_sizes, vector=problem.output_specs)
    return Pattern(found.matrix.T, found.dense)


def hessian_pattern(problem: Problem, limit: float) -> Pattern:
    """Return the pattern of the Hessian of a scalar by all sources, symmetric.

    It is that of the Jacobian of the gradient's graph. Each half may say too much: an entry is where both have one.

    Raises:
        MemoryLimitError: as for `jacobian_pattern`.
    """
    if problem.custom_gradients:
        product = lambda tensors, tangents: hessian_products(problem, tensors)(tangents)  # noqa: E731
        found = _traced(problem, limit, product, problem.source_sizes, vector=problem.source_specs)
        return Pattern(found.matrix + found.matrix.T, found.dense)

    def gradient(tensors: Tensors) -> list[tf.Tensor]:
        tape, sources, outputs = recorded(problem, tensors)
        return dense_gradient(tape, outputs[0], sources)

    found = _traced(problem, limit, gradient, problem.source_sizes)
    return Pattern(found.matrix.multiply(found.matrix.T), found.dense)


def _traced(
    problem: Problem,
    limit: float,
    compute: Callable[..., list[tf.Tensor]],
    sizes: Sequence[int],
    vector: Sequence[tf.TensorSpec] | None = None,
) -> Pattern:
    """Trace a function of tensors and follow the sources, or the vector if there is one, to its results."""
    specs = problem.specs

    def trace(*tensors: tf.Tensor) -> list[tf.Tensor]:
        parts = [tensors[: len(specs)]] if vector is None else [tensors[: len(specs)], tensors[len(specs) :]]
        return [tf.identity(result) for result in compute(*parts)]

    concrete = problem.traced(trace, [*specs, *(vector or ())])
    followed = vector or problem.source_specs
    total = sum(spec.shape.num_elements() for spec in followed)
    start, moving = 0, []
    for spec in followed:
        count = spec.shape.num_elements()
        moving.append(Dependence(tuple(spec.shape), identity(count, start, total)))
        start += count
    still = [Dependence(tuple(spec.shape)) for spec in specs]
    held = {}
    if vector is not None:
        inputs = [*still, *moving]
    elif problem.data_start == 0:
        inputs = still
        held = {id(variable.handle): one for variable, one in zip(problem.sources(()), moving, strict=True)}
    else:
        inputs = [*moving, *still[len(moving) :]]
    inputs += [held.get(id(tensor)) or _captured(tensor) for tensor in concrete.captured_inputs]
    room = room_for(problem.name, limit)
    walk = Dependences(room)
    outputs = walk.run(concrete.graph, inputs)
    blocks = []
    for one, size in zip(outputs, sizes, strict=True):
        matrix = one.matrix
        if matrix is None:
            matrix = sparse.csr_array((size, total), dtype=bool)
        elif one.shape is None:
            matrix = sparse.csr_array(np.ones([size, 1], bool)) @ matrix
        blocks.append(matrix)
    return Pattern(sparse.vstack(blocks, format="csr"), walk.dense)


def _captured(tensor: tf.Tensor) -> Dependence:
    """What is known of a tensor from outside: its value, unless it is a variable, or of the graph around."""
    if tensor.dtype in (tf.resource, tf.variant):
        return Dependence(None if tensor.dtype == tf.variant else ())
    symbolic = tf.is_symbolic_tensor(tensor)
    return Dependence(static_shape(tensor), value=None if symbolic else tensor)
