"""Whether derivatives of a random program are right: where there is one it must be, and elsewhere anything goes.

A program is traced once, and the derivative computed at many points; what is right at all of them is found at once.

Elsewhere is where `random_truth` sees none, and where a step of the program has none at the inputs that it gets: then
the chain rule says nothing. relu(x) - relu(-x) is x, and no differentiation of its steps finds the 1 at 0. Those are
counted apart, and so is where a number on the way overflows: a Cholesky factor of an infinite matrix is finite, and so
are differences of it, which are no derivative. An error must be this package's own, with a sentence; TensorFlow's
traceback is a find. Where TensorFlow is wrong, the transformation refuses or warns, or its result is NaN: counted, too.
"""

import re
import traceback
import warnings
from collections import Counter
from typing import NamedTuple

from tapelab import derivatives
from tapelab.runtime import tf

import by_tape
import numpy as np
import random_truth
from hypothesis import strategies as st
from random_checks import CHECKS, Case, Functions
from random_operations import OPERATIONS
from random_programs import Point, Program, points, programs

COMPILED = ["graph"] * 9 + ["eager"] * 2 + ["auto"]
POINTS = {"graph": [1, 40, 150, 150, 150], "auto": [1, 150], "eager": [1, 4]}  # of a program; made smaller, 1
WRONG = 30, 2e-6  # further off than so many times the estimated error, and this much of the largest element
ROUNDED = 1e-6  # what is zero may be off by this much of `WRONG` of the values: 2e-12

HUGE, ROOMY = 1e150, 1e100  # the square of what is larger may be out of range, and the third power

# Derivatives by weights that multiply the inputs: of inputs of 1e160, products and squares are out of range on the way.
PRODUCTS = re.compile("weights|per_example|clipped|ggn|fvp")

# Whose results have entries between different rows.
ACROSS = {"jacobian_forward", "jacobian_reverse_in_chunks", "hessian"}


# How the outcome begins where an operation has no derivative: it has none at any point.
NO_DERIVATIVE = "refused: LookupError"


class Find(AssertionError):
    """A derivative that is wrong, NaN where there is one, or an error that is not ours."""


class Task(NamedTuple):
    """A program, the derivative to take of it, how it is compiled, and the points, which have as many rows."""

    program: Program
    check: str
    compiled: str
    points: tuple[Point, ...]

    def __str__(self):
        at = " and at ".join(str([list(row) for row in point]) for point in self.points)
        return f"{self.check}, {self.compiled}, of {self.program} at x = {at}"


@st.composite
def tasks(draw, compiled=tuple(COMPILED)) -> Task:
    program = draw(programs())
    way = draw(st.sampled_from(compiled))
    check, number = draw(st.sampled_from(list(CHECKS))), draw(st.sampled_from(POINTS[way]))
    return Task(program, check, way, draw(points(program.length, number)))


def judged(task: Task) -> Counter:
    """Compute a derivative at each point and judge it.

    Returns:
        How many points there are of each outcome: "right"; "not judged" where the program has no value, or no such
        derivative anywhere; or why it was refused.

    Raises:
        Find: if it is not right where there is one, or fails with an error that is not ours.
    """
    outcomes = Counter()
    with warnings.catch_warnings(record=True) as warned, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        rows = len(task.points[0])
        points = np.array(task.points, np.float64).reshape(len(task.points), rows, task.program.length)
        functions = Functions(task.program, rows)
        outcome = ""
        for point, x, truth in zip(task.points, points, _truth(functions, points), strict=True):
            if truth is None:  # a matrix that is singular at the point, or beside it
                outcomes["not judged: no value"] += 1
                continue
            if not outcome.startswith(NO_DERIVATIVE):
                case = Case(functions, task.compiled, x, *truth)
                outcome = _judged_at(task._replace(points=(point,)), case, warned)
            outcomes[outcome] += 1
    return outcomes


def _truth(functions, points):
    """For each point the rows' derivatives, or None where the program has no value. A row may be of many points."""
    number, rows, n = points.shape
    if not points.size:
        return [_derivatives(functions.program, each) for each in points]
    bits, places = np.unique(points.reshape(-1, n).view(np.int64), axis=0, return_inverse=True)  # -0.0 is not 0.0
    found = _of_rows(functions.program, bits.view(np.float64))
    return [_together([found[place] for place in own]) for own in places.reshape(number, rows)]


def _derivatives(program, x):
    """Of all rows together, or None where the program has no value: a singular matrix, or no rows."""
    try:
        return random_truth.jacobian_and_hessian(program, x)
    except tf.errors.InvalidArgumentError:
        return None


def _of_rows(program, x):
    """For each row its derivatives, or None where the program has no value: then it has none for all together."""
    found = _derivatives(program, x)
    if found is None:
        return [None] if len(x) == 1 else [row for half in np.array_split(x, 2) for row in _of_rows(program, half)]
    return [[random_truth.Derivative(*[part[[row]] for part in each]) for each in found] for row in range(len(x))]


def _together(rows):
    if None in rows:
        return None
    return [random_truth.Derivative(*map(np.concatenate, zip(*each, strict=True))) for each in zip(*rows, strict=True)]


def _judged_at(task, case, warned):
    try:
        comparisons = [*CHECKS[task.check](case)]
    except Exception as error:
        return _refusal(task, error)
    if PRODUCTS.match(task.check) and np.abs(case.x).max(initial=0) > 1e100:
        return "not judged: a product with the inputs overflows"
    return _compared(task, case, comparisons, warned)


def _refusal(task, error):
    """The kind of an error that this package raises, with a sentence that begins with the transformation."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    ours = "/tapelab/derivatives/" in last and str(error).startswith(tuple(derivatives.__all__))
    if not ours:
        raise Find(f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}: {task}") from error
    return f"refused: {type(error).__name__}: {str(error).splitlines()[0].partition(': ')[2][:60]}"


def _compared(task, case, comparisons, warned):
    any_judged = False
    for found, right, error, exists in comparisons:
        found = np.asarray(found)
        if found.shape != right.shape:
            raise Find(f"shape {found.shape}, right {right.shape}: {task}")
        largest = np.max(np.abs(right), initial=0, where=np.isfinite(right) & exists)
        if not largest:  # as of the softmax of one number, where what is as large as the values has cancelled
            values = task.program.every()(tf.constant(case.x))
            largest = ROUNDED * max(np.max(np.abs(value), initial=0) for value in values)
        allowed = WRONG[0] * error + WRONG[1] * largest + 1e-290
        judge = exists & np.isfinite(allowed) & np.isfinite(right)
        any_judged |= bool(judge.any())
        wrong = judge & ~(np.abs(found - right) <= allowed)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            rows = [place[0]] if exists.ndim and task.check not in ACROSS else range(case.rows)
            number = "a number" if np.isfinite(found[place]) else "NaN"
            if not all(smooth(task.program, case.x[row], 2) for row in rows):
                return f"{number} where a step has no derivative"
            if any(overflows(task.program, case.x[row]) for row in rows):
                return f"{number} where what is huge or tiny leaves the range on the way"
            if number == "a number" and any(is_out_of_range(task.program, case.x[row]) for row in rows):
                return "a number where what is huge or tiny leaves the range on the way"
            if number == "NaN" and any(is_nan_in_tensorflow(task.program, case.x[row]) for row in rows):
                return "NaN, as TensorFlow's"
            if any("may be wrong at some points" in str(warning.message) for warning in warned):
                return "a number that was warned of"
            raise Find(f"{found[place]:.6g}, right {right[place]:.6g} ± {error[place]:.1g} at {list(place)}: {task}")
    return "right" if any_judged else "not judged"


def overflows(program: Program, row: np.ndarray) -> bool:
    """Whether a number within a step is infinite or NaN, and one that a step gets is huge."""
    huge = max(np.max(np.abs(value), initial=0) for value in program.every()(tf.constant(row[None]))[:-1])
    if not huge > HUGE:
        return False
    wrapped = tf.compat.v1.wrap_function(lambda x: program.every()(x), [tf.TensorSpec([1, len(row)], tf.float64)])
    tensors = [tensor for op in wrapped.graph.get_operations() for tensor in op.outputs if tensor.dtype.is_floating]
    within = wrapped.prune(wrapped.inputs[0], tensors)(tf.constant(row[None]))
    return not all(np.isfinite(value).all() for value in within)


def is_out_of_range(program: Program, row: np.ndarray) -> bool:
    """Whether a step gets a number whose square, divided by once more as second derivatives do, is out of range."""
    given = np.abs(np.concatenate([value.numpy().ravel() for value in program.every()(tf.constant(row[None]))[:-1]]))
    return bool(np.any((given > ROOMY) | ((given > 0) & (given < 1 / ROOMY))))


def is_nan_in_tensorflow(program: Program, row: np.ndarray) -> bool:
    """Whether second derivatives by TensorFlow's tapes are NaN or infinite, of a sum of the program's results."""

    def loss(x):
        every = program.every()(x)[-1]
        return tf.reduce_sum(every * tf.cos(tf.range(every.shape[1], dtype=every.dtype)))

    try:
        return not np.isfinite(by_tape.hessian(loss, row[None])).all()
    except (LookupError, tf.errors.InvalidArgumentError):
        return False


def smooth(program: Program, row: np.ndarray, orders: int) -> bool:
    """Whether each step of a program has derivatives at the inputs that it gets, so that the chain rule applies."""
    values = program.every()(tf.constant(row[None]))
    for name, inputs in program.steps:
        own = sorted(set(inputs))
        ends = np.cumsum([values[i].shape[1] for i in own])[:-1]

        def step(z, name=name, inputs=inputs, own=own, ends=ends):
            parts = dict(zip(own, np.split(z.numpy(), ends, axis=1), strict=True))
            return OPERATIONS[name].run(*[tf.constant(parts[i]) for i in inputs])

        point = np.concatenate([values[i].numpy() for i in own], axis=1)
        try:
            directions = random_truth.pairs(point.shape[1]) * np.maximum(1.0, np.abs(point))[:, None]
            along = random_truth.rates(step, point, random_truth.lines(directions), orders)
        except tf.errors.InvalidArgumentError:
            return False
        if not along.exist.all():
            return False
    return True
