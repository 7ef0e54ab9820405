"""Norms of the examples' gradients, and the sum of clipped ones, without building the gradients."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives.examples.batch_of_one import require_comparable, require_same_losses
from tapelab.derivatives.examples.contributions import Built, contribution, in_turn
from tapelab.derivatives.examples.per_example import require_batch, rows_of_examples
from tapelab.derivatives.examples.summed_chunks import (
    Survey,
    chunk_within,
    over_chunks,
    require_same_in_chunks,
    sizes_of,
    survey,
)
from tapelab.derivatives.examples.variable_uses import Uses
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.machinery.arguments.calling import ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks
from tapelab.derivatives.machinery.arguments.kept import changed, require_kept
from tapelab.derivatives.machinery.errors import FallbackWarning, warn_caller
from tapelab.derivatives.machinery.failures import UNROLL
from tapelab.derivatives.machinery.memory import counted, rows_at_once
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import LOOP, VECTORIZED, row_ways
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.graphs.batch import Unproven
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf


@options_by_keyword
def per_example_norms(
    f: Callable,
    *,
    wrt: Any,
    check_independence: bool = True,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the norm of the gradient of each example's loss.

    One backward pass gives the cotangents of what each variable's uses compute, and those and the activations the norms
    (`tapelab.derivatives.examples.variable_uses` has the rules, and their sources). That examples do not depend on each
    other is proved from the graph. A variable with a use that has no rule goes example by example, as
    `per_example_gradients` does; so do all of them if the proof fails, or if f then draws random numbers or changes
    variables: it does so once for each example, and in the one backward pass once for all. Where examples are evaluated
    one by one, and f does neither, their losses are compared with those of the whole batch.

    A pass holds the cotangents of all layers and the patches of convolutions, some times what a gradient does where
    layers are many or convolutions. Then a batch of more than 256 examples is taken in chunks, each with a backward
    pass of its own, where the graph proves that a chunk's losses are those in the batch: `Transform.plan` has how many
    examples at once.

    Args:
        f: takes tensors whose first axis is the batch; returns the examples' losses, shape (batch,), not their mean.
        wrt: variables, nested; the norm is over all of them together. There is no ``argnums``: the arguments are the
            batch; `per_example_gradients` has it.
        check_independence: whether to compare losses where examples go one by one; False inside a `tf.function`, which
            has no values to compare.
        batch_chunk_size: by default so many that one backward pass takes about the memory of the batch's gradient, at
            least 256; of those that go one by one, as many as fit the memory limit.
        memory_limit: bytes, for what goes one by one; by default the one of `set_memory_limit`.
        return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns a tensor of shape (batch,), of dtype float64 if a variable has it, and
        float32 otherwise.

    Raises:
        CoupledExamplesError: when called, if an example's loss depends on other examples, or that cannot be excluded.
        MemoryLimitError: when called, if what goes example by example would not fit.
        ValueError, TypeError: when called, as `value_and_gradient`; also if there is no common batch axis.
    """
    recipe = _Norms(check_independence, batch_chunk_size, memory_limit, options["compile"])
    return _transform(f, recipe, wrt, **options)


@options_by_keyword
def clipped_gradient(
    f: Callable,
    *,
    wrt: Any,
    max_norm: float,
    check_independence: bool = True,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the sum of the examples' gradients, each clipped to a norm.

    The gradient g of an example becomes g min(1, max_norm / |g|), the norm over all variables together: what
    differentially private training adds noise to (Abadi et al., "Deep learning with differential privacy", 2016).
    Examples are independent, so the sum needs no second backward pass: it is made of the same activations and of the
    same cotangents, times each example's factor. Large batches are summed chunk by chunk; smaller chunks take less
    memory and more time.

    Args:
        max_norm: the largest norm, positive.
        f, wrt, check_independence, batch_chunk_size, memory_limit: as for `per_example_norms`.
        return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns a pair: the sum of the clipped gradients in the sources' structure, and
        the norms before clipping, shape (batch,). Where the square of a norm leaves the range of floats, which is from
        1.8e19 in float32, the norm is infinite, and the sum is NaN.

    Raises:
        CoupledExamplesError, MemoryLimitError: as for `per_example_norms`.
        ValueError, TypeError: as for `per_example_norms`; at once if ``max_norm`` is not a positive number.
    """
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)) or not 0 < max_norm < math.inf:
        raise ValueError(f"max_norm is {max_norm!r}; expected a positive number, such as 1.0")
    own = (check_independence, batch_chunk_size, memory_limit, options["compile"])
    recipe = _Norms(*own, max_norm=float(max_norm), name="clipped_gradient")
    return _transform(f, recipe, wrt, **options)


def _transform(f: Callable[..., Any], recipe: "_Norms", wrt: Any, **options: Any) -> Transform:
    check_chunks(recipe.memory_limit, batch_chunk_size=recipe.batch_chunk_size)
    if wrt is None:
        raise ValueError(
            f"{recipe.name}: wrt is None; expected variables, nested. To differentiate with respect to an argument, "
            "use per_example_gradients(f, argnums=…), and tf.norm of what it returns"
        )
    return transform(f, recipe, wrt=wrt, **options)


@dataclasses.dataclass(frozen=True)
class _Surveyed(Plan):
    """A plan, and what the graph showed.

    Attributes:
        missing: the indices of the sources that go example by example.
        proved: whether the graph shows that examples do not depend on each other.
    """

    missing: tuple[int, ...] = ()
    proved: bool = True


@dataclasses.dataclass(eq=False)
class _Norms(Recipe):
    check_independence: bool
    batch_chunk_size: int | None
    memory_limit: int | None
    compile: str
    max_norm: float | None = None
    name: str = "per_example_norms"

    def __post_init__(self) -> None:
        self._warned: set[str] = set()

    def plan(self, problem: Problem) -> _Surveyed:
        batch = require_batch(problem)
        if problem.returned.shapes != [batch]:
            raise ValueError(
                f"{problem.name}: the result has shape {', '.join(map(str, problem.returned.shapes))}; expected the "
                f'losses of the examples, shape {batch}. Leave out their mean, with Keras by reduction="none"'
            )
        if not batch[0]:
            return _Surveyed("reverse", 0, 0)
        found = None
        failure: str | None = "the function cannot be traced into a graph"
        if problem.facts.traceable:
            found = survey(problem, batch[0])
            failure = found.uses.coupled
        reasons, coupled = found.uses.missing if found else {}, failure
        everything: dict[int, Any] = dict.fromkeys(range(len(problem.source_names)))
        if coupled is not None:
            why = [f"examples are not proved independent, because of {coupled}"]
            if self.check_independence:
                require_comparable(problem, coupled)
            missing = everything
        else:
            why = [
                f"{problem.source_names[index]} is used where there is no rule: {reasons[index]}" for index in reasons
            ]
            missing = everything if reasons and not problem.repeatable else reasons
        problem.remarks += [f"one backward pass for all: {reason}" for reason in why]
        self._warn(problem, why)
        chunk, needed = (
            self._chunk(problem, missing) if missing or found is None else (self._part(problem, found), None)
        )
        return _Surveyed("reverse", batch[0], chunk, needed, missing=tuple(sorted(missing)), proved=coupled is None)

    def _warn(self, problem: Problem, why: Sequence[str]) -> None:
        news = [reason for reason in why if reason not in self._warned]
        self._warned.update(news)
        if news and self.compile != "eager":
            more = f" (and {len(news) - 1} more: see its plan)" if len(news) > 1 else ""
            message = f"{problem.name} is computed a slower way (example by example), because: {news[0]}{more}"
            message += f". {UNROLL}" if problem.facts.operations & LOOPS else ""
            warn_caller(message, FallbackWarning)

    def _chunk(self, problem: Problem, chosen: Iterable[int]) -> tuple[int, int]:
        """How many examples at once, and how many bytes that takes."""
        batch = problem.data_shapes[0][0]
        sizes = [problem.source_sizes[index] * problem.source_dtypes[index].size for index in chosen]
        return rows_at_once(
            what=self.name,
            shapes=f"{counted(batch, 'example')} and {counted(len(sizes), 'source')} that go example by example",
            result=batch * sum(sizes) if self.max_norm else 0,
            rows=batch,
            per_row=2 * problem.facts.largest // batch + sum(sizes),
            advice="smaller batches",
            batch_chunk_size=self.batch_chunk_size,
            limit=self.memory_limit,
        )

    def _part(self, problem: Problem, found: Survey) -> int:
        """How many examples at once where none goes one by one."""
        batch = found.uses.batch
        chunk = min(self.batch_chunk_size or chunk_within(problem, found.uses), batch)
        try:
            if chunk < batch:
                require_same_in_chunks(problem, found, sizes_of(batch, chunk))
        except Unproven as reason:
            problem.remarks.append(f"{counted(chunk, 'example')} at a time: {reason}")
            return batch
        return chunk

    def ways(self, problem: Problem, plan: _Surveyed) -> list[Way]:  # type: ignore[override]
        count = len(problem.source_names)
        if not plan.passes:
            return [
                Way("no example", partial(self._none, problem)),
                Way("no example", partial(self._none, problem), True),
            ]
        ways = []
        if len(plan.missing) < count:
            label = "one backward pass"
            if plan.missing:
                label += f", and {len(plan.missing)} of {counted(count, 'source')} example by example"
                for how in (VECTORIZED, LOOP):
                    compute = partial(self._compute, problem, plan.missing, how)
                    ways.append(Way(f"{label}, {how}", compute, chunk=plan.chunk))
            else:
                if plan.chunk < plan.passes:
                    name = f"{label} for each {counted(plan.chunk, 'example')}"
                    ways.append(Way(name, partial(self._by_chunks, problem, plan.chunk), chunk=plan.chunk))
                ways.append(Way(label, partial(self._compute, problem, (), VECTORIZED), chunk=plan.passes))
        everything = tuple(range(count))
        rows = row_ways(
            "reverse mode, examples",
            lambda how, tensors: self._compute(problem, everything, how, tensors),
            plan.chunk,
        )
        return [*ways, *(rows if problem.repeatable else rows[1:])]

    def _none(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        sums = [tf.zeros(spec.shape, spec.dtype) for spec in problem.source_specs] if self.max_norm else []
        return [tf.zeros([0], _dtype(problem)), *sums]

    def _by_chunks(self, problem: Problem, chunk: int, tensors: Tensors) -> list[tf.Tensor]:
        run = partial(self._compute, problem, (), VECTORIZED)
        return over_chunks(run, tensors, chunk, problem.source_specs if self.max_norm else [], _dtype(problem))

    def _compute(self, problem: Problem, missing: Sequence[int], how: str, tensors: Tensors) -> list[tf.Tensor]:
        dtype, batch = _dtype(problem), tensors[0].shape[0]
        sources, losses = problem.sources(tensors), None
        if problem.repeatable or len(missing) < len(sources):  # else one by one, and not compared with the batch
            tape, sources, (losses,) = recorded(problem, tensors, persistent=True, opened=True)
        parts: list[Any] = [None] * len(sources)
        order: Sequence[int] = range(len(sources))
        if len(missing) < len(sources):
            uses = Uses(batch, tensors, sources, losses, tape)
            if uses.coupled is not None or not uses.missing.keys() <= set(missing):
                raise RuntimeError("the function's graph is another one than a moment ago")
            flat = [use for index, own in enumerate(uses.by_variable) if index not in missing for use in own]
            cotangents = iter(dense_gradient(tape, losses, [use.output for use in flat]))
            for index, own in enumerate(uses.by_variable):
                if index not in missing:
                    parts[index] = contribution(own, [next(cotangents) for _ in own], batch, dtype)
            order = uses.last_first
        compared = []
        before = [tf.identity(source) for source in sources] if losses is None else []
        if missing:
            norms = dtype if self.max_norm is None else None  # a row is then one number, of the same norm
            chunk, _ = self._chunk(problem, missing)
            single, rows = rows_of_examples(problem, missing, how, chunk, tensors, norms)
            compared = [changed(before, sources)] if losses is None else [losses, single]
            for index, row in zip(missing, rows, strict=True):
                parts[index] = Built(tf.cast(tf.reshape(row, [batch, -1]), dtype))
        # One after the other, from the last layer on, as a backward pass goes: what a variable's share needs is free
        # again before the next one's. Side by side they would hold as much again as the cotangents.
        norms = tf.sqrt(tf.add_n(in_turn([part.squares for part in parts], order)))
        if self.max_norm is None:
            return [norms, *compared]
        # Below the smallest number that has an inverse, nothing is clipped.
        factors = tf.minimum(tf.cast(1, dtype), self.max_norm / tf.maximum(norms, dtype.as_numpy_dtype(1e-37)))
        # A norm whose square overflows does not say how long the gradient is: 0 would leave the example out.
        factors = tf.where(tf.math.is_inf(norms), tf.cast(math.nan, dtype), factors)
        sums = [
            tf.cast(tf.reshape(found, spec.shape), spec.dtype)
            for found, spec in zip(
                in_turn([partial(part.weighted, factors) for part in parts], order), problem.source_specs, strict=True
            )
        ]
        return [norms, *sums, *compared]

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        count = len(problem.source_names) if self.max_norm else 0
        norms, sums, compared = outputs[0], outputs[1 : 1 + count], outputs[1 + count :]
        if compared and not problem.repeatable:
            require_kept(problem.name, *compared)
        elif compared and self.check_independence:
            require_same_losses(problem, *compared)
        return (problem.structured(sums), norms) if self.max_norm else norms


def _dtype(problem: Problem) -> tf.DType:
    """What norms are computed in: half precision has no range for squares."""
    return tf.float64 if tf.float64 in problem.source_dtypes else tf.float32
