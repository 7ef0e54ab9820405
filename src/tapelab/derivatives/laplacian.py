"""The Laplacian: a product with the Hessian for each direction, and of each the part along that direction."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.arguments import Argnums, ValueOptions, check_chunks, options_by_keyword, require_positive
from tapelab.derivatives.costs import Plan, counted, rows_at_once
from tapelab.derivatives.errors import CannotVectorizeError
from tapelab.derivatives.first_order import gradient
from tapelab.derivatives.jacobian import Batch, agree, any_example, map_rows
from tapelab.derivatives.traced import LOOP, VECTORIZED, Call, Recording, dense
from tapelab.derivatives.transform import Certificate, Computed, Recipe, Transform, transform
from tapelab.process.tensorflow import Tensors, tf

_DIFFER = "the vectorised rows differ from those one by one"


@options_by_keyword
def laplacian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    batched: bool = True,
    samples: int | None = None,
    seed: int | None = None,
    chunk_size: int | None = None,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Laplacian :math:`Δf`: the sum of the second derivatives by each element.

    If ``batched``, it is for each b that of f of the batch that holds example b alone. For D elements that is a
    backward pass through the gradient for each, vectorised; of a result with more than one element for an example,
    another one through all of these. Examples that are computed at once are compared, one of them row by row, at the
    first call of a signature. Tapes differentiate the result, by variables too, as the
    residual of a differential equation needs it. A function that is linear in pieces, such as a ReLU network, has
    Laplacian 0 almost everywhere.

    Args:
        f: takes and returns tensors, nested if need be; if ``batched``, with the batch as the first axis of sources and
            results; arguments that are not sources go along as for `batch_jacobian`. Where it has a
            `tf.custom_gradient`, the gradient given is differentiated, as by `hessian`, and the plan says so; one that
            is not linear in its cotangents is refused.
        argnums: see `tapelab.derivatives`; the sum is over the elements of all these arguments. There is no ``wrt``:
            variables have no batch axis; the sum over theirs is a Hessian's trace (`CurvatureOperator.trace`).
        batched: whether each example has its own Laplacian. Otherwise all elements of the sources are summed over, for
            each element of the result.
        samples: for many elements, how many random directions to take instead of all unit directions. The result is
            then Hutchinson's estimate: right in the mean, with a standard deviation for each example of
            :math:`√(2 Σ_{i≠j} H_ij² / samples)`, H its Hessian; each example has its own directions.
        seed: of those directions, which are then the same at every call; None draws new ones at each.
        chunk_size: how many directions to take at once.
        batch_chunk_size: how many examples to take at once; by default so many that the largest tensor of all their
            passes takes 4 MiB at most. A tape around the result keeps what every chunk computed.
        memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    In training compile the whole step, ``tf.function(step, jit_compile=True)``: one program takes less time than a tape
    around one.

    Returns:
        A function of f's arguments. It returns what f does, in structure, shapes and dtypes.

    Raises:
        MemoryLimitError: when called, if not even one direction fits; says how many bytes and what to use instead.
        ValueError: if ``samples`` or ``seed`` are not whole numbers, or ``seed`` is given alone.
        ValueError, TypeError: when called, as `value_and_gradient`; also if ``batched`` and there is no common batch
            axis.
    """
    check_chunks(memory_limit, chunk_size=chunk_size, batch_chunk_size=batch_chunk_size)
    if samples is not None:
        require_positive(samples=samples)
    elif seed is not None:
        raise ValueError(f"seed is {seed!r} without samples: all directions are taken. Pass samples=, or no seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ValueError(f"seed is {seed!r}; expected a whole number")
    if batch_chunk_size is not None and not batched:
        raise ValueError(
            f"batch_chunk_size is {batch_chunk_size!r} with batched=False, which has no examples to take in chunks. "
            "Leave one of them out"
        )
    recipe = _Laplacian(batched, samples, seed, chunk_size, batch_chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, **options)


@dataclass(eq=False)
class _Laplacian(Recipe):
    batched: bool
    samples: int | None
    seed: int | None
    chunk_size: int | None
    batch_chunk_size: int | None
    memory_limit: int | None
    name = "laplacian"

    def compute(self, call: Call) -> Computed:
        if self.batched:
            batch = Batch(call)
            shown = batch.example(any_example(batch.size)) if batch.size else batch.of_zeros()
            batch.require(shown, "For a function of one example, or of anything else, use batched=False")
        else:
            batch, shown = None, call.record()
            if call.how == VECTORIZED and not call.traced.repeatable:  # the comparison would be with another draw
                raise CannotVectorizeError("the function draws random numbers, changes variables or calls Python")
        call.require_second_order()
        call.require_connected(gradient(shown))
        shapes = [source.shape for source in shown.sources]
        directions = self._directions(call, shapes, batch)
        count = directions[0].shape[0]
        work = 5 if _is_one_number(shown) else 10  # passes back through passes
        passes = min(self.chunk_size or count, count)
        chunk, needed = rows_at_once(
            what=self.name,
            shapes=f"{counted(count, 'direction')} and a largest tensor of {call.traced.largest} bytes",
            result=4 * call.traced.largest,
            rows=batch.size if batch else count,
            most=costs.XLA_LAPLACIAN // max(passes * call.traced.largest, 1) or 1 if batch else None,
            per_row=work * call.traced.largest * (passes if batch else 1),
            advice="a smaller batch",
            chunk_size=self.batch_chunk_size if batch else self.chunk_size,
            chunk_name="batch_chunk_size" if batch else "chunk_size",
            limit=self.memory_limit,
        )
        if batch is None:
            passes = chunk
            along = [direction[:, 0] for direction in directions]
            certified = partial(_along, partial(call.record, persistent=True), along, passes, LOOP)
            outputs = _along(partial(call.record, persistent=True), along, passes, call.how)
        else:

            def row(index: Any, how: str) -> list[tf.Tensor]:
                own = [tf.gather(each, index, axis=1)[:, tf.newaxis] if self.samples else each for each in directions]
                return _along(partial(batch.example, index), own, passes, how)

            specs = [tf.TensorSpec(output.shape, output.dtype) for output in shown.outputs]
            rows = map_rows(lambda index: row(index, call.how), specs, batch.size, call.how, chunk)
            outputs = [tf.reshape(r, [batch.size, *y.shape[1:]]) for r, y in zip(rows, shown.outputs, strict=True)]
            certified = partial(row, tf.constant(any_example(batch.size)), LOOP)
        outputs = [found / (self.samples or 1) for found in outputs]
        certificate = None
        if call.how == VECTORIZED and not (batch and not batch.size):
            index = any_example(batch.size) if batch else None
            agrees = partial(_agrees, index, self.samples or 1)
            together = self.samples is not None and self.seed is None  # other directions would be drawn
            certificate = Certificate(certified(), agrees, _DIFFER, together=together)
        way = f"rows, {call.how}" + (f", {counted(chunk, 'example')} at once" if batch and chunk < batch.size else "")
        plan = Plan("reverse over reverse", count, passes, needed, way=way)
        return Computed(outputs, call.traced.description, plan, certificate)

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        size = call.shapes[0][0] if self.batched else 1
        return computed.plan.chunk * call.traced.largest * size <= costs.XLA_LAPLACIAN

    def _directions(self, call: Call, shapes: list[tf.TensorShape], batch: "Batch | None") -> list[tf.Tensor]:
        """For each source, shape (number, 1, *example), or (number, batch, *example): units, or random signs."""
        own = [tuple(shape[1:] if batch else shape) for shape in shapes]
        count, start, found = sum(math.prod(shape) for shape in own), 0, []
        for number, (shape, dtype) in enumerate(zip(own, call.dtypes, strict=True)):
            if self.samples is None:
                size = math.prod(shape)
                units = tf.pad(tf.eye(size, dtype=dtype), [[start, count - start - size], [0, 0]])
                found.append(tf.reshape(units, [count, 1, *shape]))
                start += size
                continue
            drawn = [self.samples, batch.size if batch else 1, *shape]
            if self.seed is None:
                ones = tf.random.uniform(drawn, maxval=2, dtype=tf.int32)
            else:
                ones = tf.random.stateless_uniform(drawn, [self.seed, number], maxval=2, dtype=tf.int32)
            found.append(tf.cast(2 * ones - 1, dtype))
        return found


def _along(record: Callable[..., Recording], directions: Tensors, chunk: int, how: str) -> list[tf.Tensor]:
    """Σ_r v_r · H v_r, where H is the Hessian of the outputs' sum with cotangents, and v_r the directions.

    That is linear in the cotangents. Where there is one number, they are 1; otherwise the gradient by them is that of
    each number.
    """
    count = directions[0].shape[0]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as each:
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
            recording = record(outer=outer)
            outputs, sources = recording.outputs, recording.sources
            alone = _is_one_number(recording)
            cotangents = [tf.ones_like(output) for output in outputs]
            each.watch(cotangents)
            gradients = dense(gradient(recording, cotangents), sources)

        def row(index: Any, start: int) -> list[tf.Tensor]:
            along = [tf.gather(direction, start + index) for direction in directions]
            products = dense(outer.gradient(gradients, sources, output_gradients=along), sources)
            parts = [tf.reduce_sum(product * v) for product, v in zip(products, along, strict=True)]
            return [tf.add_n([tf.cast(part, gradients[0].dtype) for part in parts])]

        spec = tf.TensorSpec([], gradients[0].dtype)
        sizes = {start: min(chunk, count - start) for start in range(0, count, chunk)}
        rows = [map_rows(partial(row, start=start), [spec], size, how)[0] for start, size in sizes.items()]
        total = tf.add_n([tf.reduce_sum(part) for part in rows])
    found = [total] if alone else dense(each.gradient(total, cotangents), cotangents)
    return [tf.cast(tf.reshape(part, y.shape), y.dtype) for part, y in zip(found, outputs, strict=True)]


def _is_one_number(recording: Recording) -> bool:
    return sum(output.shape.num_elements() for output in recording.outputs) == 1


def _agrees(index: int | None, count: int, outputs: Tensors, expected: Tensors) -> tf.Tensor:
    """Whether the results, of one example, are those of rows one by one."""
    found = list(outputs) if index is None else [output[index] for output in outputs]
    wanted = [tf.reshape(part / count, tf.shape(one)) for part, one in zip(expected, found, strict=True)]
    sizes = [tf.fill(tf.shape(part), tf.reduce_max(tf.abs(part))) for part in wanted]
    return agree(found, sizes, wanted)
