"""What is measured: functions found by their names, and how each is called with inputs that are drawn at random."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Case:
    """A function of float64 tensors, and where it is evaluated.

    Attributes:
        name: what the page calls it; the public name of a function or class, and a word where there are several.
        call: takes one tensor for each of `inputs`, and gives a nest of tensors.
        inputs: what is drawn for each, "kind size size …" (`draw`).
        how: how it is called, in words.
    """

    name: str
    call: Callable
    inputs: tuple[str, ...]
    how: str = ""

    def draw(self, seed: int) -> list[np.ndarray]:
        generator = np.random.default_rng([seed, 11])
        return [draw(spec, generator) for spec in self.inputs]


KINDS: dict[str, Callable] = {
    "real": lambda g, shape: g.normal(size=shape),
    "positive": lambda g, shape: g.uniform(0.5, 2.0, shape),
    "unit": lambda g, shape: g.uniform(0.15, 0.85, shape),
    "above": lambda g, shape: g.uniform(1.5, 3.0, shape),  # above 1
    "holed": lambda g, shape: g.uniform(0.5, 2.0, shape) * (np.arange(shape[-1]) != 1),  # the second of each row is 0
    "rising": lambda g, shape: np.cumsum(g.uniform(0.3, 1.0, shape), -1),
}


def draw(spec: str, generator: np.random.Generator) -> np.ndarray:
    """An input from "kind size size …"; (3, 4) without sizes, and "kind ." is a scalar."""
    kind, *sizes = spec.split()
    shape = () if sizes == ["."] else tuple(map(int, sizes)) or (3, 4)
    return np.asarray(KINDS[kind](generator, shape), np.float64)


def symmetric(a: tf.Tensor) -> tf.Tensor:
    """a + aᵀ: functions of symmetric matrices read one triangle, which differences must not perturb alone."""
    return a + tf.linalg.matrix_transpose(a)


def definite(a: tf.Tensor) -> tf.Tensor:
    """a aᵀ + 2: symmetric and positive definite."""
    return tf.matmul(a, a, transpose_b=True) + 2 * tf.eye(a.shape[-1], dtype=a.dtype)


# Tried in this order for a function's tensors until the value is finite: kind of input, what is made of the first two.
_SAME: Callable = lambda *xs: xs  # noqa: E731
DOMAINS: list[tuple[str, Callable, str]] = [
    ("real", _SAME, ""),
    ("positive", _SAME, ""),
    ("unit", _SAME, ""),
    ("above", _SAME, ""),
    ("real 3 3", lambda a, *rest: (definite(a), *rest), "of a aᵀ + 2"),
    ("real 3 3", _SAME, ""),
    ("unit 1 6 6 3", _SAME, ""),
    ("real 2 3", _SAME, ""),
    ("real 6", _SAME, ""),
    ("real 4", _SAME, ""),
    ("rising 6", _SAME, ""),
]

# What a required parameter of this name is given. All others are tensors.
PARAMETERS: dict[str, Any] = {
    "axes": [1],
    "axis": 0,
    "axis1": 0,
    "axis2": 1,
    "bits": 8,
    "block_size": 2,
    "clip_norm": 1.0,
    "clip_value_max": 0.5,
    "clip_value_min": -0.5,
    "contrast_factor": 1.3,
    "default_value": 0.1,
    "delta": 0.1,
    "destination": 1,
    "dtype": "float64",
    "fft_length": 4,
    "frame_length": 4,
    "frame_step": 2,
    "gamma": 1.2,
    "indices": [0, 0, 2],
    "indices_or_sections": 2,
    "k": 2,
    "kernel_size": 2,
    "ksize": 2,
    "lower": 0.5,
    "max_val": 1.0,
    "multiples": [2, 1],
    "newshape": [4, 3],
    "num_lower": 1,
    "num_or_size_splits": 2,
    "num_segments": 3,
    "num_upper": 1,
    "output_size": (4, 4),
    "pad_width": 1,
    "padding": "SAME",
    "paddings": [[1, 1], [1, 1]],
    "pool_size": 2,
    "q": 0.3,
    "rate": 2,
    "repeats": 2,
    "saturation_factor": 1.3,
    "seed": (1, 2),
    "segment_ids": [0, 0, 1],
    "sequence_length": 4,
    "sequence_stride": 2,
    "shape": [4, 3],
    "shift": 1,
    "size": (7, 7),
    "source": 0,
    "strides": 1,
    "target_height": 4,
    "target_width": 4,
    "threshold": 0.1,
    "upper": 1.5,
    "window_shape": [2, 2],
    "x_max": 0.5,
    "x_min": -0.5,
}
LISTS = ("inputs", "t_list", "tensors", "values", "xs")  # parameters that may be a list of tensors


def required(function: Callable) -> list[str]:
    """The names of a function's required parameters."""
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


def candidates(name: str, function: Callable) -> Iterator[Case]:
    """Ways in which a function might be called, by the names of its required parameters."""
    parameters = required(function)
    given = {p: PARAMETERS[p] for p in parameters[1:] if p in PARAMETERS}
    tensors = [p for p in parameters if p not in given]
    if not 1 <= len(tensors) <= 3:
        return
    rest = ", ".join(f"{key}={value}" for key, value in given.items())

    def case(kind, change, count, words, many=False):
        def call(*xs):
            xs = change(*xs)
            return function(**({tensors[0]: list(xs)} if many else dict(zip(tensors, xs, strict=True))), **given)

        return Case(name, call, (kind,) * count, " ".join(filter(None, [words, rest and f"with {rest}"])))

    # Images first where images are meant.
    for kind, change, words in sorted(DOMAINS, key=lambda domain: ".image." in name and domain[0] != "unit 1 6 6 3"):
        yield case(kind, change, len(tensors), words)
    if len(tensors) == 1:
        yield case("real", lambda a, b: (tf.complex(a, b),), 2, "of complex numbers")
        yield case("real 3 3", lambda a: (tf.complex(symmetric(a), 0 * a),), 1, "of complex numbers")
        if tensors[0] in LISTS or len(parameters) == 1:
            yield case("real", _SAME, 2, "of two tensors", many=True)


def works(case: Case) -> bool:
    """Whether a case gives finite real numbers at its points and near them."""
    holds = False
    for seed in range(2):
        for shift in (0.0, 0.05, -0.05):
            xs = [tf.constant(x + shift) for x in case.draw(seed)]
            for value in tf.nest.flatten(case.call(*xs), expand_composites=True):
                array = np.asarray(value)
                holds = holds or array.dtype.kind in "fc"
                if array.dtype.kind in "fc" and not np.isfinite(array).all():
                    return False
    return holds


def automatic(name: str, function: Callable) -> tuple[Case | None, str]:
    """The first way to call a function that works, or why none does."""
    reason, seen = "no way to call it was found", False
    for case in candidates(name, function):
        try:
            if works(case):
                return case, ""
            seen = seen or _is_discrete(case)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            reason = f"no way to call it was found ({type(error).__name__}: {lines[0][:80]})"
    return None, "its result holds no real number" if seen else reason


def _is_discrete(case: Case) -> bool:
    result = tf.nest.flatten(case.call(*map(tf.constant, case.draw(0))), expand_composites=True)
    return all(np.asarray(value).dtype.kind not in "fc" for value in result)
