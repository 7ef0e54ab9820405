"""One case measured: first and second derivatives, four ways in three modes, beside central differences.

A fourth mode, "tapelab", has what `tapelab.derivatives` gives in place of TensorFlow's tapes and accumulators.
"""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cases import Case
from ours import WAYS as OUR_WAYS
from verdicts import TOLERANCE, Found, Point, check_first, check_second, joined, reference, spoilt

ROOT = Path(__file__).resolve().parents[2]
MODES, OURS = ("graph", "eager", "XLA"), "tapelab"
VALUE = "value"
REVERSE, FORWARD, TWICE, OVER = WAYS = ("reverse", "forward", "reverse over reverse", "forward over reverse")
SECOND = (TWICE, OVER, "hvp", "hessian")
POINTS, TRIES = 3, 6  # points that count, and how many are tried until so many have a reference to trust
Tensors = list[tf.Tensor]


@dataclass
class Record:
    """One case: what each way gave in each mode, or why there is nothing to say."""

    name: str
    how: str
    nothing: str = ""  # why there is no derivative to compare
    precision: str = "float64"
    points: int = 0
    found: dict[tuple[str, str], Found] = field(default_factory=dict)
    vacuous: dict[tuple[str, str], str] = field(default_factory=dict)  # what is right, and could not have been wrong
    operations: list[str] = field(default_factory=list)  # types, also of the functions that the graph calls


def flat(result: Any) -> Tensors:
    """The real numbers in a result, as float64 vectors; a complex number is two."""
    tensors = []
    for value in tf.nest.flatten(result, expand_composites=True):
        dtype = tf.as_dtype(getattr(value, "dtype", None) or np.asarray(value).dtype)
        if dtype.is_complex:
            tensors += [tf.math.real(value), tf.math.imag(value)]
        elif dtype.is_floating:
            tensors.append(tf.convert_to_tensor(value))
    return [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in tensors]


class Loss:
    """A scalar function of a case's inputs: the sum of a y + b y² / 2 over the result's elements y, a and b random.

    The square makes the second derivative of a linear operation differ from zero: its gradient is differentiated too.
    """

    def __init__(self, call: Callable, xs: Sequence[np.ndarray]):
        self.call = call
        generator = np.random.default_rng(7)
        sizes = [value.shape[0] for value in flat(call(*map(tf.constant, xs)))]
        self.weights = [generator.uniform(0.5, 1.5, (2, size)) for size in sizes]

    def __call__(self, *xs):
        total = tf.constant(0.0, tf.float64)
        for value, (a, b) in zip(flat(self.call(*xs)), self.weights, strict=True):
            total += tf.reduce_sum(value * a) + 0.5 * tf.reduce_sum(value * value * b)
        return total


def ways(loss: Callable) -> dict[str, Callable[[Tensors, Tensors], Any]]:
    """The derivatives of a scalar function at xs along vs, by name; each gives one number or one tensor per input."""

    def dense(gradients):
        return [None if g is None else tf.convert_to_tensor(g) for g in gradients]

    def reverse(xs, vs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            value = loss(*xs)
        return dense(tape.gradient(value, xs))

    def forward(xs, vs):
        with tf.autodiff.ForwardAccumulator(xs, vs) as accumulator:
            value = loss(*xs)
        return [accumulator.jvp(value)]

    def twice(xs, vs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            slopes = [tf.reduce_sum(g * v) for g, v in zip(reverse(xs, vs), vs, strict=True) if g is not None]
            slope = tf.add_n(slopes) if slopes else tf.constant(0.0, tf.float64)
        return dense(tape.gradient(slope, xs))

    def over(xs, vs):
        with tf.autodiff.ForwardAccumulator(xs, vs) as accumulator:
            gradients = reverse(xs, vs)
        return [None if g is None else accumulator.jvp(g) for g in gradients]

    return dict(zip(WAYS, (reverse, forward, twice, over), strict=True))


def our_ways(loss: Loss, count: int) -> dict[str, Callable[[Tensors, Tensors], Any]]:
    """The same from `tapelab.derivatives`, each as a user would call it, with what it compiles by itself."""
    from tapelab import derivatives

    sources = {"argnums": tuple(range(count))}
    gradient, hessian = (make(loss, **sources) for make in (derivatives.value_and_gradient, derivatives.hessian))
    jvp, hvp = (make(loss, **sources) for make in (derivatives.jvp, derivatives.hvp))

    def outputs(*xs):
        return tf.concat(flat(loss.call(*xs)), 0)

    def by(mode):
        jacobian = derivatives.jacobian(outputs, mode=mode, **sources)

        def pulled(xs, vs):
            y, (a, b) = outputs(*xs), np.concatenate(loss.weights, 1)
            return [tf.tensordot(a + b * y, matrix, 1) for matrix in jacobian(*xs)]

        return pulled

    def contracted(xs, vs):
        rows = hessian(*xs)
        return [sum(tf.tensordot(block, v, v.ndim) for block, v in zip(row, vs, strict=True)) for row in rows]

    return dict(
        zip(
            OUR_WAYS,
            (
                lambda xs, vs: gradient(*xs)[1],
                lambda xs, vs: [jvp(*xs, tangents=tuple(vs))[1]],
                by("reverse"),
                by("forward"),
                lambda xs, vs: hvp(*xs, vector=tuple(vs)),
                contracted,
            ),
            strict=True,
        )
    )


def our_gradient(loss: Loss, xs: list[np.ndarray]) -> Callable | None:
    """tapelab's gradient, or None where it is refused."""
    gradient = our_ways(loss, len(xs))["value_and_gradient"]
    try:
        gradient(tensors(xs), tensors(xs))
    except Exception:  # recorded where this way is measured
        return None
    return gradient


def message(error: BaseException) -> str:
    """One line that is the same wherever the case runs: no addresses, no names of nodes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Detected at", "in user code", "Traceback", "File "))]
    text = (useful or lines or [""])[0]
    if unsupported := re.findall(r"No registered '(\w+)' OpKernel for XLA", str(error)):
        text = f"XLA has no kernel for {', '.join(sorted(set(unsupported)))}"
    text = text.replace(f"{ROOT}/", "")
    text = re.sub(r"\{\{[^}]*\}\}|0x[0-9a-f]+|__inference\S+|(?<=_)\d{2,}|\[_Xla[^\]]*\]", "…", text)
    return f"{type(error).__name__}: {text[:140]}"


def tensors(arrays: Sequence[np.ndarray]) -> Tensors:
    return [tf.constant(x, tf.float64) for x in arrays]


def _inspect(record: Record, definition: tf.compat.v1.GraphDef) -> None:
    """Note the operations, and whether some of them compute in less than float64."""
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    record.operations = sorted({node.op for node in nodes})
    wide = {tf.float64.as_datatype_enum, tf.complex128.as_datatype_enum}
    narrow = {kind.as_datatype_enum for kind in (tf.float32, tf.float16, tf.bfloat16, tf.complex64)}
    for node in nodes:
        casts = node.op == "Cast" and node.attr["SrcT"].type in wide and node.attr["DstT"].type in narrow
        # These give float32 whatever they take.
        if casts or node.op in ("ResizeBilinear", "ResizeBicubic", "ScaleAndTranslate", "CropAndResize"):
            record.precision = "float32"


class Graphs:
    """A loss and its derivatives as graphs, each traced once, where TensorFlow can trace them.

    The references call them, and XLA compiles them: a wrapped trace is inlined, and not traced again.
    """

    def __init__(self, loss: Callable, derivatives: dict[str, Callable] | None = None):
        self.loss = loss
        self.eager = {VALUE: lambda xs, vs: loss(*xs)} | (derivatives or ways(loss))
        self.traced = {name: tf.function(f, autograph=False) for name, f in self.eager.items()}

    def working(self, name: str, xs: list[np.ndarray]) -> Callable | None:
        """The graph of this name, or the eager function where there is no graph; None where that raises as well."""
        for function in (self.traced[name], self.eager[name]):
            try:
                function(tensors(xs), tensors(xs))
                return function
            except Exception:  # recorded where this way is measured
                continue
        return None

    def results(self, mode: str, points: Sequence[Point]) -> dict[str, Any]:
        """What each name gives at each point: a list, or the exception."""
        functions = {"eager": self.eager, "graph": self.traced}.get(mode)
        if mode == OURS:
            functions = {VALUE: self.eager[VALUE], **our_ways(self.loss, len(points[0].xs))}
        if mode == "XLA":
            functions = {name: compiled(f) for name, f in self.traced.items()}
            try:  # all at once compiles in a fraction of the time
                together = compiled(lambda xs, vs: {name: f(xs, vs) for name, f in self.traced.items()})
                each = [together(tensors(p.xs), tensors(p.vs)) for p in points]
                return {name: [one[name] for one in each] for name in self.traced}
            except Exception:
                pass
        found: dict[str, Any] = {}
        for name, f in functions.items():
            try:
                found[name] = [f(tensors(p.xs), tensors(p.vs)) for p in points]
            except Exception as error:
                found[name] = error
        return found


def compiled(f: Callable) -> Callable:
    return tf.function(f, autograph=False, jit_compile=True)


def _points(case: Case, value: Callable, gradient: Callable | None, precision: str) -> Iterator[Point]:
    """Points whose slope along a line is known well enough to judge by."""
    kept, tolerance = 0, TOLERANCE[precision]
    for seed in range(TRIES):
        point = reference(value, gradient, case.draw(seed), seed, precision)
        if np.isfinite(point.slope) and point.slope_error <= 0.1 * tolerance * abs(point.slope) + point.floor():
            kept += 1
            yield point
        if kept == POINTS:
            return


def measure(case: Case, modes: Sequence[str] = MODES) -> Record:
    """Measure a case; what raises in one way and mode is recorded there."""
    record = Record(case.name, case.how)
    xs = case.draw(0)
    loss = Loss(case.call, xs)
    if not sum(weights.size for weights in loss.weights):
        record.nothing = "its result holds no real number"
        return record
    graphs = Graphs(loss)
    evaluated = graphs.working(VALUE, xs)
    differentiated = our_gradient(loss, xs) if OURS in modes else graphs.working(REVERSE, xs)
    if evaluated is graphs.traced[VALUE]:
        _inspect(record, evaluated.get_concrete_function(tensors(xs), tensors(xs)).graph.as_graph_def())

    def value(xs):
        return float(evaluated(tensors(xs), tensors(xs)))

    def gradient(xs):
        return joined(differentiated(tensors(xs), tensors(xs)), xs)

    if value(xs) != value(xs):  # also where it is not a number
        record.nothing = "its value changes from call to call, or is not a number"
        return record
    points = list(_points(case, value, differentiated and gradient, record.precision))
    record.points = len(points)
    if not points:
        record.nothing = "no point at which central differences converge"
    elif all(abs(p.slope) <= p.floor() and abs(p.curvature[0]) <= 1e3 * p.floor() for p in points) and (
        differentiated is None or not any(p.gradient.any() for p in points)
    ):
        record.nothing = "its result is constant, or constant between jumps, and TensorFlow gives no derivative or 0"
    if not record.nothing:
        for mode in modes:
            # Eagerly the same kernels run as in a graph: one point shows that they do.
            _judge_mode(record, mode, graphs, points[:1] if mode == "eager" else points, value)
    return record


def _judge_mode(record, mode, graphs, points, value):
    results = graphs.results(mode, points)
    values = results.pop(VALUE)
    if isinstance(values, Exception):
        record.found |= {(mode, way): Found("raises", 0.0, f"the function itself: {message(values)}") for way in WAYS}
        return
    off = max(abs(float(v) - p.value) / max(abs(p.value), 1.0) for v, p in zip(values, points, strict=True))
    if not off < 1e-3:
        record.found |= {(mode, way): Found("another value", off, "than elsewhere") for way in WAYS}
        return
    for way, each in results.items():
        if isinstance(each, Exception):
            record.found[mode, way] = Found("raises", 0.0, message(each))
        else:
            found = _judge(record, way, each, points, value)
            if found.verdict == "wrong" and record.found.get((mode, REVERSE), found).verdict == "None":
                found = Found("None", found.error, "the missing part counts as 0")
            record.found[mode, way] = found
            if found.verdict == "right" and (words := _unnoticed(record, way, each, points, value)):
                record.vacuous[mode, way] = words


def _unnoticed(record, way, results, points, value):
    """Which wrong derivative would not have been called wrong at any point, or ""."""
    each = [list(spoilt(result, TOLERANCE[record.precision])) for result in results]
    for same in zip(*each, strict=True):
        if _judge(record, way, [result for _, result in same], points, value).verdict != "wrong":
            return same[0][0]
    return ""


def _judge(record, way, results, points, value):
    tolerance = TOLERANCE[record.precision]
    worst = Found("right")
    firsts = (("graph", REVERSE), ("eager", REVERSE), (OURS, OUR_WAYS[0]))
    first = next((record.found[key] for key in firsts if key in record.found), None)
    for result, point in zip(results, points, strict=True):
        result = [None if t is None else np.asarray(t) for t in result]
        if way in SECOND:
            trusted = first is not None and first.verdict == "right"
            worst = worst.worse(check_second(result, point, tolerance, trusted))
        else:
            along = way in (FORWARD, "jvp")
            partial = None if along else functools.partial(_slope_along, value, point)
            worst = worst.worse(check_first(result, point, tolerance, partial))
    return worst


def _slope_along(value, point, index):
    """The slope along one input alone: whether it matters, not how large it is."""

    def moved(s):
        pairs = enumerate(zip(point.xs, point.vs, strict=True))
        return value([x + s * v if i == index else x for i, (x, v) in pairs])

    return (moved(1e-4) - moved(-1e-4)) / 2e-4
