"""The recipes of sparse Jacobians and Hessians: a pattern from the graph, colours, and a product for each colour."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from tapelab.derivatives import costs
from tapelab.derivatives.examples.independence import tolerance_of
from tapelab.derivatives.first_order import dense_gradient, linearized, recorded
from tapelab.derivatives.hessians.hessian import hessian_products, require_hessian
from tapelab.derivatives.machinery.arguments.checks import check_chunks, require_one_of
from tapelab.derivatives.machinery.arguments.packing import require_one_dtype, split
from tapelab.derivatives.machinery.errors import MemoryLimitError, SparsityError
from tapelab.derivatives.machinery.memory import counted, current_limit, rows_at_once
from tapelab.derivatives.machinery.plan import Plan, SparsePlan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import map_rows, row_ways
from tapelab.derivatives.sparse.colouring import (
    Colouring,
    colour,
    colour_columns,
    colour_rows,
    colour_symmetric,
)
from tapelab.derivatives.sparse.dependence import room_for
from tapelab.derivatives.sparse.layout import FORMATS, Layout
from tapelab.derivatives.sparse.pattern import Pattern, hessian_pattern, jacobian_pattern
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf

import numpy as np
from scipy import sparse

Product = Callable[[Tensors], list[tf.Tensor]]

_ENTRY = 64  # bytes: of an entry's value in a product and in the result, and of its row and column, copied once


@dataclass(eq=False)
class _Sparse(Recipe):
    """What both have in common. Subclasses find the pattern, colour it, and compute products.

    A layout depends on the function's signature: it is kept on the `Problem`.
    """

    packed: bool
    format: str
    check_pattern: bool
    chunk_size: int | None
    memory_limit: int | None
    mode_names = {"columns": "forward", "rows": "reverse", "symmetric": "reverse over reverse"}  # noqa: RUF012
    checked, compared = "", ""  # by which product the matrix is checked, and its name
    streams: ClassVar[int]  # how often as much memory as the function's largest tensor a product takes

    def __post_init__(self) -> None:
        require_one_of(FORMATS, format=self.format)
        check_chunks(self.memory_limit, chunk_size=self.chunk_size)

    def heights(self, problem: Problem) -> Sequence[int]:
        """How many rows each row of blocks has."""
        raise NotImplementedError

    def find(self, problem: Problem, limit: float) -> Pattern:
        """Return the `Pattern`."""
        raise NotImplementedError

    def colour(self, problem: Problem, pattern: sparse.csr_array) -> Colouring:
        raise NotImplementedError

    def product(self, problem: Problem, by: str, tensors: Tensors) -> Product:
        """Return a function from a vector to its product with the matrix, from the side that has colours."""
        raise NotImplementedError

    def structured(self, problem: Problem, rows: list) -> Any:
        """Return rows of blocks in the structure of what the function returned and of the sources."""
        raise NotImplementedError

    def plan(self, problem: Problem) -> SparsePlan:
        self.require(problem)
        limit = current_limit(self.memory_limit)
        heights, widths = self.heights(problem), problem.source_sizes
        pattern = self._pattern(problem, sum(heights), sum(widths), limit)
        colouring = self.colour(problem, pattern.matrix)
        if self.packed:
            problem.layout = Layout(pattern.matrix, colouring, [sum(heights)], [sum(widths)], problem.source_dtypes[:1])
        else:
            problem.layout = Layout(pattern.matrix, colouring, heights, widths, problem.source_dtypes)
        if self.check_pattern and not problem.repeatable:
            problem.note("not compared with a product: the function draws random numbers or changes variables")
        chunk, needed = rows_at_once(
            what=self.name,
            shapes=f"{counted(sum(heights), 'row')} by {counted(sum(widths), 'column')}, with "
            f"{counted(pattern.matrix.nnz, 'place')} for entries and {counted(colouring.count, 'colour')}",
            result=_ENTRY * pattern.matrix.nnz,
            rows=colouring.count,
            per_row=self.streams * problem.facts.largest,
            advice="jvp, vjp or hvp, which never build the matrix, or fewer sources",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return SparsePlan(
            self.mode_names[colouring.by],
            colouring.count,
            chunk,
            needed,
            pattern=pattern.matrix,
            coloured=colouring.by,
            colours=colouring.colours,
            dense=tuple(pattern.dense),
        )

    def require(self, problem: Problem) -> None:
        """Raise what cannot be done."""
        if self.packed:
            require_one_dtype(problem.source_dtypes)
        if self.format != "tensorflow":
            if not tf.executing_eagerly():
                raise RuntimeError(
                    f'{problem.name}: format="{self.format}" makes a SciPy array, which needs values, and a '
                    'tf.function has none. Use format="tensorflow" inside'
                )
            small = [dtype.name for dtype in problem.source_dtypes if dtype not in (tf.float32, tf.float64)]
            if small:
                raise TypeError(
                    f'{problem.name}: SciPy has no sparse arrays of {small[0]}; use format="tensorflow", or cast the '
                    "sources to float32"
                )

    def _pattern(self, problem: Problem, rows: int, columns: int, limit: float) -> Pattern:
        if problem.facts.traceable:
            try:
                return self.find(problem, limit)
            except MemoryLimitError:
                raise
            except (LookupError, TypeError, ValueError, tf.errors.OpError) as error:  # not traced, or not looked into
                problem.remarks.append(f"a pattern from the graph: {type(error).__name__}: {str(error)[:200]}")
        room_for(problem.name, limit)(rows * columns)
        return Pattern(sparse.csr_array(np.ones([rows, columns], bool)))

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        slow = LOOPS.union(costs.UNMAPPED_REVERSE if plan.mode == "reverse" else costs.UNMAPPED)
        return plan.passes * problem.facts.largest <= costs.XLA_SPARSE and not problem.facts.operations & slow

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        return row_ways(f"{plan.mode} mode, colours", partial(self._compute, problem, plan.chunk), plan.chunk)

    def _compute(self, problem: Problem, chunk: int, how: str, tensors: Tensors) -> list[tf.Tensor]:
        colouring = problem.layout.colouring
        product = self.product(problem, colouring.by, tensors)
        given, found = problem.source_specs, problem.source_specs
        if colouring.by == "rows":
            given = problem.output_specs
        elif colouring.by == "columns":
            found = problem.output_specs

        def row(index: int | tf.Tensor) -> list[tf.Tensor]:
            """The product with the sum of all columns, or rows, of one colour."""
            return product(_parts(tf.equal(tf.constant(colouring.colours, tf.int32), tf.cast(index, tf.int32)), given))

        return problem.layout.values(map_rows(row, found, colouring.count, how, chunk))

    def verify(self, problem: Problem, tensors: Tensors, outputs: Tensors) -> None:
        """Compare with one product; with random factors, what is missing in the matrix does not cancel."""
        super().verify(problem, tensors, outputs)
        if not self.check_pattern or not problem.repeatable or not problem.facts.traceable:
            return
        layout = problem.layout
        rows, columns, (height, width) = layout.rows, layout.columns, layout.pattern.shape
        if self.checked == "rows":  # the product's elements are the matrix's columns
            rows, columns, height, width = columns, rows, width, height
        vector = np.random.default_rng(0).uniform(0.5, 1.5, width)
        product = self._product(problem, vector, tensors)
        values = tf.concat([tf.cast(part, tf.float64) for part in outputs], axis=0)
        terms = values * vector[columns]
        own = tf.math.unsorted_segment_sum(terms, rows, height)
        sizes = tf.math.unsorted_segment_sum(tf.abs(terms), rows, height)
        tolerance = tolerance_of(problem)
        finite = tf.math.is_finite(product) & tf.math.is_finite(own)  # NaN says nothing
        largest = tf.reduce_max(tf.where(finite, tf.maximum(sizes, tf.abs(product)), 0.0))
        wrong = finite & (tf.abs(product - own) > tolerance * sizes + 100 * tolerance**2 * largest)
        message = (
            f"{problem.name}: the sparse matrix differs from a random {self.compared}, so the pattern leaves out an "
            "entry, or the derivative that a custom gradient gives is not symmetric. Use jacobian or hessian; with "
            "check_pattern=False this is not looked at"
        )
        if not tf.executing_eagerly():
            tf.debugging.Assert(~tf.reduce_any(wrong), [message])
        elif bool(tf.reduce_any(wrong)):
            raise SparsityError(message)

    def _product(self, problem: Problem, vector: np.ndarray, tensors: Tensors) -> tf.Tensor:
        """A product with the matrix, float64."""
        given = problem.output_specs if self.checked == "rows" else problem.source_specs

        def compute(*tensors: tf.Tensor) -> tf.Tensor:
            parts = self.product(problem, self.checked, tensors)(_parts(tf.constant(vector), given))
            return tf.concat([tf.cast(tf.reshape(part, [-1]), tf.float64) for part in parts], axis=0)

        return problem.traced(compute)(*tensors)

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        matrices = problem.layout.matrices(outputs, self.format)
        return matrices[0] if self.packed else self.structured(problem, problem.structured_rows(matrices))

    def numbers(self, result: Any) -> Any:
        return tf.nest.map_structure(
            lambda part: part.values if isinstance(part, tf.SparseTensor) else tf.constant(part.data), result
        )


@dataclass(eq=False)
class SparseJacobian(_Sparse):
    mode: str
    name = "sparse_jacobian"
    checked, compared = "rows", "vector-Jacobian product"
    streams = 2

    def heights(self, problem: Problem) -> Sequence[int]:
        return problem.output_sizes

    def find(self, problem: Problem, limit: float) -> Pattern:
        return jacobian_pattern(problem, limit)

    def colour(self, problem: Problem, pattern: sparse.csr_array) -> Colouring:
        found = {"auto": colour, "forward": colour_columns, "reverse": colour_rows}[self.mode](pattern)
        if self.mode == "auto" and found.by == "columns" and problem.facts.traceable:
            missing = _without_forward_mode(problem)
            if missing:
                problem.remarks.append(f"forward mode: {missing}")
                return colour_rows(pattern)
        return found

    def product(self, problem: Problem, by: str, tensors: Tensors) -> Product:
        if by == "columns":
            return linearized(problem, tensors, persistent=True)[1]
        tape, sources, outputs = recorded(problem, tensors, persistent=True)
        return lambda cotangents: dense_gradient(tape, outputs, sources, cotangents)

    def structured(self, problem: Problem, rows: list) -> Any:
        return problem.structured_outputs(rows)


class SparseHessian(_Sparse):
    name = "sparse_hessian"
    checked, compared = "symmetric", "Hessian-vector product"
    streams = 5

    def require(self, problem: Problem) -> None:
        require_hessian(problem)
        super().require(problem)

    def heights(self, problem: Problem) -> Sequence[int]:
        return problem.source_sizes

    def find(self, problem: Problem, limit: float) -> Pattern:
        return hessian_pattern(problem, limit)

    def colour(self, problem: Problem, pattern: sparse.csr_array) -> Colouring:
        return colour_symmetric(pattern)

    def product(self, problem: Problem, by: str, tensors: Tensors) -> Product:
        return hessian_products(problem, tensors, persistent=True)

    def structured(self, problem: Problem, rows: list) -> Any:
        return problem.structured(rows)


def _without_forward_mode(problem: Problem) -> str | None:
    """Why TensorFlow has no Jacobian-vector product of a function; None if it has. It differentiates gradients."""
    if Needs.TANGENTS in problem.facts.gaps:
        return problem.facts.gaps[Needs.TANGENTS]

    def trace(*tensors: tf.Tensor) -> list[tf.Tensor]:
        _, push = linearized(problem, tensors)
        push([tf.zeros(spec.shape, spec.dtype) for spec in problem.source_specs])
        return []

    try:
        problem.traced(trace)
    except LookupError as error:
        return str(error)
    return None


def _parts(vector: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Cut a vector into tensors of these shapes and dtypes."""
    parts = split(vector, [spec.shape for spec in specs])
    return [tf.cast(part, spec.dtype) for part, spec in zip(parts, specs, strict=True)]
