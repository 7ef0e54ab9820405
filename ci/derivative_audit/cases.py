"""What is measured: functions found by their names, and how each is called with inputs that are drawn at random."""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf


def tuples(value):
    return tuple(map(tuples, value)) if isinstance(value, list) else value


TABLE = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))
PARAMETERS = {name: tuples(value) for name, value in TABLE["parameters"].items()}
LISTS = ("inputs", "t_list", "tensors", "values", "xs")  # parameters that may be a list of tensors


@dataclass(frozen=True)
class Case:
    """A function of float64 tensors, and where it is evaluated.

    Attributes:
        name: what the page calls it; the public name of a function or class, and a word where there are several.
        call: takes one tensor for each of `inputs`, and gives a nest of tensors.
        inputs: what is drawn for each: a kind of `KINDS` and sizes, (3, 4) without; "kind ." is a scalar.
        how: how it is called, in words.
    """

    name: str
    call: Callable
    inputs: tuple[str, ...]
    how: str = ""

    def draw(self, seed: int) -> list[np.ndarray]:
        generator, drawn = np.random.default_rng([seed, 11]), []
        for kind, *sizes in map(str.split, self.inputs):
            shape = () if sizes == ["."] else tuple(map(int, sizes)) or (3, 4)
            drawn.append(np.asarray(KINDS[kind](generator, shape), np.float64))
        return drawn


KINDS: dict[str, Callable] = {
    "real": lambda g, shape: g.normal(size=shape),
    "positive": lambda g, shape: g.uniform(0.5, 2.0, shape),
    "unit": lambda g, shape: g.uniform(0.15, 0.85, shape),
    "above": lambda g, shape: g.uniform(1.5, 3.0, shape),  # above 1
    "holed": lambda g, shape: g.uniform(0.5, 2.0, shape) * (np.arange(shape[-1]) != 1),  # the second of each row is 0
    "rising": lambda g, shape: np.cumsum(g.uniform(0.3, 1.0, shape), -1),
}


def symmetric(a: tf.Tensor) -> tf.Tensor:
    """a + aᵀ: functions of symmetric matrices read one triangle, which differences must not perturb alone."""
    return a + tf.linalg.matrix_transpose(a)


def definite(a: tf.Tensor) -> tf.Tensor:
    """a aᵀ + 2: symmetric and positive definite."""
    return tf.matmul(a, a, transpose_b=True) + 2 * tf.eye(a.shape[-1], dtype=a.dtype)


# Tried in this order for a function's tensors until the value is finite: kind of input, what is made of the first two.
_SAME: Callable = lambda *xs: xs  # noqa: E731
DOMAINS: list[tuple[str, Callable, str]] = [
    *((kind, _SAME, "") for kind in ("real", "positive", "unit", "above")),
    ("real 3 3", lambda a, *rest: (definite(a), *rest), "of a aᵀ + 2"),
    *((kind, _SAME, "") for kind in ("real 3 3", "unit 1 6 6 3", "real 2 3", "real 6", "real 4", "rising 6")),
]


def candidates(name: str, function: Callable) -> Iterator[Case]:
    """Ways in which a function might be called, by the names of its required parameters."""
    parameters = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
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
            results = case.call(*(tf.constant(x + shift) for x in case.draw(seed)))
            arrays = [np.asarray(value) for value in tf.nest.flatten(results, expand_composites=True)]
            arrays = [array for array in arrays if array.dtype.kind in "fc"]
            holds = holds or bool(arrays)
            if not all(np.isfinite(array).all() for array in arrays):
                return False
    return holds


def first_that_works(cases: Iterator[Case]) -> tuple[Case | None, str]:
    """The first case that works, or why none does."""
    reason = "no way to call it was found"
    try:
        for case in cases:
            try:
                if works(case):
                    return case, ""
            except Exception as error:
                reason = f"no way to call it was found ({type(error).__name__})"
    except Exception as error:
        reason = f"no way to make it was found ({type(error).__name__})"
    return None, reason


# The catalogue: every public function and layer. What is public under several names goes by the first.
FUNCTIONS = {
    **{f"tf.{part}": getattr(tf, part) for part in ("math", "nn", "linalg", "signal", "image")},
    "tf.math.special": tf.math.special,
    "tf": tf,
    "keras.activations": keras.activations,
    "keras.losses": keras.losses,
    "keras.layers": keras.layers,
    "keras.ops.image": keras.ops.image,
    "keras.ops": keras.ops,  # last: most are TensorFlow's by another name
}
# No functions of real numbers, whatever they are called with; and those with a seed that is drawn anew at each call.
NO_FUNCTION = re.compile("|".join(TABLE["no_function"]))
RANDOM = re.compile(r"tf\.image\.random_\w+|tf\.nn\.(dropout|nce_loss|sampled_softmax_loss)|tf\.random_\w+")


def public() -> dict[str, Callable]:
    """Every public name, once for each object."""
    found: dict[str, Callable] = {}
    seen: set[int] = set()
    for prefix, module in FUNCTIONS.items():
        for name in sorted(dir(module)):
            thing = getattr(module, name)
            classes = prefix in ("keras.layers", "keras.losses")  # linear operators are listed by hand
            if name.startswith("_") or not callable(thing) or id(thing) in seen or (inspect.isclass(thing) > classes):
                continue
            seen.add(id(thing))
            found[f"{prefix}.{name}"] = thing
    return found
