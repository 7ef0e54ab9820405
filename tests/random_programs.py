"""Random programs: two to five operations and layers on the rows of a matrix, at many special points.

A program takes x of shape (rows, n) and returns (rows, k), and each row of the result depends on that row of x alone.
So one evaluation gives its values at thousands of points, which is what makes differences cheap, and every
transformation of `tapelab.derivatives` applies, those of batches too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tapelab.runtime import tf

from hypothesis import strategies as st
from random_operations import KINDS, LARGEST, OPERATIONS, Operation


class Step(NamedTuple):
    """An operation's name, and where its inputs come from: 0 is x, 1 the first step's result, and so on."""

    name: str
    inputs: tuple[int, ...]


# A point: the rows of x.
Point = tuple[tuple[float, ...], ...]


class Program(NamedTuple):
    """Steps, and the length of the rows that they take."""

    steps: tuple[Step, ...]
    length: int

    def every(self) -> Callable[[tf.Tensor], list[tf.Tensor]]:
        """A function of x that returns x and the results of all steps. It holds its own operations alone."""
        steps = [(OPERATIONS[name].run, inputs) for name, inputs in self.steps]

        def run(x):
            values = [x]
            for operation, inputs in steps:
                values.append(operation(*[values[i] for i in inputs]))
            return values

        return run

    @property
    def size(self) -> int:
        """The length of the rows that it returns."""
        sizes = [self.length]
        for name, inputs in self.steps:
            sizes.append(OPERATIONS[name].size(*[sizes[i] for i in inputs]))
        return sizes[-1]

    def __str__(self):
        names = "xabcde"
        lines = [
            f"{names[number]} = {step.name}({', '.join(names[i] for i in step.inputs)})"
            for number, step in enumerate(self.steps, start=1)
        ]
        return "; ".join(lines)


NUMBERS = [0.0, 1.0, 2.0, -1.0, 0.5, -2.0, 0.7, -0.3, 1.3, -0.0, 3.0, 1e-3, -1e3, 1e-9, 1e9, 1e-160, 1e160]
ORDINARY = [round(2.3 * math.cos(0.2 + 1.7 * number), 2) for number in range(40)]
MATRICES = [
    [1.0, 0.0, 0.0, 1.0],
    [2.0, 0.0, 0.0, 2.0],
    [1.0, 1.0, 1.0, 1.0],
    [0.0, 1.0, 1.0, 0.0],
    [3.0, 1.0, 1.0, 3.0],
    [0.0, 1.0, -1.0, 0.0],
]


def rows(length: int) -> st.SearchStrategy[tuple[float, ...]]:
    """Rows: special numbers, all equal, ordinary, or a matrix whose eigenvalues are equal or zero.

    Each is one number of hypothesis', whose draws are few and slow.
    """

    def of(choices, number):
        return tuple(choices[number // len(choices) ** place % len(choices)] for place in range(length))

    kinds = [
        lambda number: of(NUMBERS, number),
        lambda number: (NUMBERS[number % len(NUMBERS)],) * length,
        lambda number: of(ORDINARY, number),
        *([lambda number: tuple(MATRICES[number % len(MATRICES)])] if length == 4 else []),
    ]
    numbers = st.integers(0, len(kinds) * len(ORDINARY) ** length - 1)
    return numbers.map(lambda number: kinds[number % len(kinds)](number // len(kinds)))


@st.composite
def programs(draw) -> Program:
    """Programs whose every step is used: each takes the result of the one before, and what else it takes is any."""
    length = draw(st.sampled_from([1, 2, 3, 4, 4]))
    sizes, steps = [length], []
    for _ in range(draw(st.sampled_from([2, 1, 3, 4, 5]))):
        name = draw(st.sampled_from(draw(st.sampled_from(KINDS))))
        choices = [*ways(sizes, OPERATIONS[name])]
        if not choices:
            continue
        inputs, size = draw(st.sampled_from(choices))
        steps.append(Step(name, inputs))
        sizes.append(size)
    return Program(tuple(steps) or (Step("square", (0,)),), length)


@st.composite
def points(draw, length: int, number: int) -> tuple[Point, ...]:
    """So many points, or fewer, which have the same number of rows: no two are the same."""
    size = draw(st.sampled_from([1, 2, 2, 1, 2, 3, 2, 1, 3, 2, 0]))
    drawn = [tuple(draw(rows(length)) for _ in range(size)) for _ in range(number if size else 1)]
    return tuple({str(point): point for point in drawn}.values())  # -0.0 is not 0.0


def ways(sizes: Sequence[int], operation: Operation) -> Iterator[tuple[tuple[int, ...], int]]:
    """The inputs that an operation can take, the last value among them, with the size of its result."""
    last = len(sizes) - 1
    if operation.inputs == 1:
        chosen = [(last,)]
    else:
        chosen = [(last, last), *((last, i) for i in range(last)), *((i, last) for i in range(last))]
    for inputs in chosen:
        size = operation.size(*[sizes[i] for i in inputs])
        if size is not None and size <= LARGEST:
            yield inputs, size
