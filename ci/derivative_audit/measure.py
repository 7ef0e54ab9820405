"""One case measured: first and second derivatives, four ways in three modes, beside central differences.

A fourth mode, "tapelab", has what `tapelab.derivatives` gives in place of TensorFlow's tapes and accumulators.
"""

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from cases import Case

VALUE = "value"
REVERSE, FORWARD, TWICE, OVER = WAYS = ("reverse", "forward", "reverse over reverse", "forward over reverse")
SEVERITY = ("right", "unclear", "another value", "None", "raises", "not finite", "wrong")
# A relative error above this is wrong. Differences of float64 values reach some 1e-10, those of gradients 1e-12;
# kernels that compute in float32 leave 1e-3. A reference counts only where it is known ten times as well as the error.
TOLERANCE = {"float64": 1e-5, "float32": 1e-2}
POINTS, TRIES = 3, 6  # points that count, and how many are tried until so many have a reference to trust
FIRST, LEVELS, ENOUGH = 0.05, 10, 1e-10  # the largest step, how many at most, and the relative error at which they end
Found = tuple[str, float, str]  # one of SEVERITY, the relative error, a message


# Differences


def ridders(difference: Callable[[float], Any], noise: Callable[[float], float]) -> tuple[np.ndarray, float]:
    """The limit of a central difference quotient at step 0, and an estimate of its error in the 2-norm.

    Central differences with steps h, h/2, h/4 … have an error that is a series in h², so Richardson's extrapolation
    takes one term after the other away. The entry of the tableau that differs least from the two that it was made from
    is returned. See C. J. F. Ridders, Advances in Engineering Software 4 (1982) 75.

    Args:
        difference: of the step.
        noise: how much rounding there is in the quotient of a step: neighbours may agree by chance, which float32 does.
    """
    best, error, above = np.asarray(difference(FIRST), np.float64) * np.nan, np.inf, []
    for level in range(LEVELS):
        step = FIRST / 2**level
        row = [np.asarray(difference(step), np.float64)]
        for order, neighbour in enumerate(above, start=1):
            row.append(row[-1] + (row[-1] - neighbour) / (4.0**order - 1))
            estimate = max(np.linalg.norm(row[-1] - row[-2]), np.linalg.norm(row[-1] - neighbour), noise(step))
            if estimate < error:
                best, error = row[-1], float(estimate)
        above = row
        if error <= ENOUGH * np.linalg.norm(best):
            break
    return best, error


def along(f: Callable[[float], Any], noise: float) -> tuple[np.ndarray, float]:
    """The derivative at 0 of a function of one number with so much rounding, and the estimate of its error."""
    return ridders(lambda h: (f(h) - f(-h)) / (2 * h), lambda h: noise / h)


def mixed(f: Callable[[float, float], float], noise: float) -> tuple[np.ndarray, float]:
    """The mixed second derivative at (0, 0), from values alone, and the estimate of its error."""
    return ridders(lambda h: (f(h, h) - f(h, -h) - f(-h, h) + f(-h, -h)) / (4 * h * h), lambda h: noise / h**2)


class Point:
    """A point, two random directions, and what differences say there, of values and of TensorFlow's gradient."""

    def __init__(self, value: Callable, gradient: Callable | None, xs: list[np.ndarray], seed: int, precision: str):
        generator, eps = np.random.default_rng(seed), float(np.finfo(precision).eps)
        # No element is small or large: no element's error goes unseen, and a step says how far each one moves.
        self.vs, self.us = (
            [generator.uniform(0.5, 1.0, x.shape) * generator.choice([-1.0, 1.0], x.shape) for x in xs] for _ in "vu"
        )
        self.xs, self._value, self.tolerance = xs, value, TOLERANCE[precision]
        self.value = value(xs)
        self._noise = eps * abs(self.value)
        slope, self.slope_error = along(lambda s: value(self.moved(s)), self._noise)
        self.slope, self.gradient, self.product = float(slope), None, None
        if gradient is not None:
            self.gradient = gradient(xs)
            noise = eps * float(np.linalg.norm(self.gradient))
            self.product, self.product_error = along(lambda s: gradient(self.moved(s)), noise)
        sizes = [abs(self.value), abs(self.slope), 0.0 if gradient is None else np.linalg.norm(self.gradient)]
        self.floor = 1e-10 * max(size for size in sizes if np.isfinite(size))  # below this it is rounding

    def moved(self, s: float, t: float = 0.0) -> list[np.ndarray]:
        return [x + s * v + t * u for x, v, u in zip(self.xs, self.vs, self.us, strict=True)]

    @functools.cached_property
    def curvature(self) -> tuple[float, float]:
        """The second derivative along us and vs from values alone, and its error: seldom needed."""
        curvature, error = mixed(lambda s, t: self._value(self.moved(s, t)), self._noise)
        return float(curvature), error

    def matters(self, index: int) -> bool:
        """Whether the slope along one input alone is not zero."""

        def moved(s):
            return [x + s * v if i == index else x for i, (x, v) in enumerate(zip(self.xs, self.vs, strict=True))]

        return abs(float(along(lambda s: self._value(moved(s)), self._noise)[0])) > 1e3 * self.floor

    def judge(self, difference: float, size: float, error: float, floor: float) -> Found:
        """The verdict on a difference from a reference of this size, which is known up to an error."""
        relative = difference / size if size > floor else (0.0 if difference <= floor else np.inf)
        if difference <= self.tolerance * size + floor:
            return "right", relative, ""
        return "wrong" if error <= 0.1 * difference else "unclear", relative, ""

    def first(self, result: Sequence[Any], way: str) -> Found:
        """The verdict on a gradient, one tensor for each input, or on a directional derivative, one number."""
        if lost := [i + 1 for i, t in enumerate(result) if t is None and (way == FORWARD or self.matters(i))]:
            return "None", 1.0, f"for input {', '.join(map(str, lost))} of {len(result)}" if len(result) > 1 else ""
        slope = float(result[0]) if way == FORWARD else float(joined(result, self.xs) @ joined(self.vs, self.xs))
        return self.judge(abs(slope - self.slope), abs(self.slope), self.slope_error, self.floor)

    def second(self, result: Sequence[Any], trusted: bool) -> Found:
        """The verdict on a Hessian times vs. It is called wrong only where differences of values say so too.

        Args:
            result: one tensor for each input.
            trusted: whether the gradient itself is right, so that differences of it count.
        """
        found, by_gradients = joined(result, self.xs), None
        if trusted and self.product is not None:
            size = float(np.linalg.norm(self.product))
            off = float(np.linalg.norm(found - self.product))
            by_gradients = self.judge(off, size, self.product_error, self.floor)
            if by_gradients[0] != "wrong":
                return by_gradients
        curvature, error = self.curvature
        off = abs(float(found @ joined(self.us, self.xs)) - curvature)
        # Second differences divide rounding by h² where first ones divide by h.
        by_values = self.judge(off, abs(curvature), error, 1e3 * self.floor)
        if by_gradients is None:
            return by_values
        if by_values[0] != "wrong":
            return "unclear", by_gradients[1], "differences of values do not confirm it"
        parts = np.split(self.product, np.cumsum([x.size for x in self.xs])[:-1])
        large = [np.linalg.norm(part) > 1e3 * self.floor for part in parts]
        lost = [i + 1 for i, t in enumerate(result) if t is None and large[i]]
        words = f"for input {', '.join(map(str, lost))} of {len(result)}"
        return ("None", by_gradients[1], words) if lost else by_gradients


def joined(parts: Sequence[Any], like: Sequence[np.ndarray]) -> np.ndarray:
    """One vector of all tensors; None stands for zeros."""
    return np.concatenate([np.zeros(x.size) if t is None else np.ravel(t) for t, x in zip(parts, like, strict=True)])


# Derivatives


def flat(result: Any) -> list[tf.Tensor]:
    """The real numbers in a result, as float64 vectors; a complex number is two."""
    found = []
    for value in tf.nest.flatten(result, expand_composites=True):
        dtype = tf.as_dtype(getattr(value, "dtype", None) or np.asarray(value).dtype)
        if dtype.is_complex:
            found += [tf.math.real(value), tf.math.imag(value)]
        elif dtype.is_floating:
            found.append(tf.convert_to_tensor(value))
    return [tf.reshape(tf.cast(value, tf.float64), [-1]) for value in found]


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


def ways(loss: Callable) -> dict[str, Callable]:
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

    return {VALUE: lambda xs, vs: loss(*xs)} | dict(zip(WAYS, (reverse, forward, twice, over), strict=True))


def our_ways(loss: Loss, count: int) -> dict[str, Callable]:
    """The same from tapelab: value_and_gradient, jvp, hvp, and the Hessian times a vector."""
    from tapelab import derivatives

    names = ("value_and_gradient", "jvp", "hvp", "hessian")
    gradient, jvp, hvp, hessian = (getattr(derivatives, n)(loss, argnums=tuple(range(count))) for n in names)

    def contracted(xs, vs):
        rows = hessian(*xs)
        return [sum(tf.tensordot(block, v, v.ndim) for block, v in zip(row, vs, strict=True)) for row in rows]

    return {
        VALUE: lambda xs, vs: loss(*xs),
        REVERSE: lambda xs, vs: gradient(*xs)[1],
        FORWARD: lambda xs, vs: [jvp(*xs, tangents=tuple(vs))[1]],
        TWICE: lambda xs, vs: hvp(*xs, vector=tuple(vs)),
        OVER: contracted,
    }


def message(error: BaseException) -> str:
    """One line that is the same wherever the case runs: no addresses, no names of nodes."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("Detected at", "in user code", "Traceback", "File "))]
    text = (useful or lines or [""])[0]
    if unsupported := re.findall(r"No registered '(\w+)' OpKernel for XLA", str(error)):
        text = f"XLA has no kernel for {', '.join(sorted(set(unsupported)))}"
    text = re.sub(r"\{\{[^}]*\}\}|0x[0-9a-f]+|__inference\S+|(?<=_)\d{2,}|\[_Xla[^\]]*\]", "…", text)
    return f"{type(error).__name__}: {text[:140]}"


def tensors(arrays: Sequence[np.ndarray]) -> list[tf.Tensor]:
    return [tf.constant(x, tf.float64) for x in arrays]


def precision(definition: Any) -> str:
    """float32 where some operation computes in less than float64."""
    wide = {tf.float64.as_datatype_enum, tf.complex128.as_datatype_enum}
    narrow = {kind.as_datatype_enum for kind in (tf.float32, tf.float16, tf.bfloat16, tf.complex64)}
    always = ("ResizeBilinear", "ResizeBicubic", "ScaleAndTranslate", "CropAndResize")  # whatever they take
    for node in [*definition.node, *(node for function in definition.library.function for node in function.node_def)]:
        casts = node.op == "Cast" and node.attr["SrcT"].type in wide and node.attr["DstT"].type in narrow
        if casts or node.op in always:
            return "float32"
    return "float64"


# A case


def measure(case: Case, modes: Sequence[str]) -> dict[str, Any]:
    """What a case gave: {"nothing": why} or {"how", "precision", "modes", "found": what is not right, by `told`}."""
    xs = case.draw(0)
    loss = Loss(case.call, xs)
    if not sum(weights.size for weights in loss.weights):
        return {"nothing": "its result holds no real number"}
    eager = ways(loss)
    traced = {name: tf.function(f, autograph=False) for name, f in eager.items()}

    def working(name: str, *choices: dict) -> Callable | None:
        for each in choices:
            try:
                each[name](tensors(xs), tensors(xs))
                return each[name]
            except Exception:  # recorded where this way is measured
                continue
        return None

    evaluated = working(VALUE, traced, eager)
    ours = our_ways(loss, len(xs)) if "tapelab" in modes else {}
    differentiated = working(REVERSE, ours) if ours else working(REVERSE, traced, eager)
    graph = traced[VALUE].get_concrete_function(tensors(xs), tensors(xs)).graph if evaluated is traced[VALUE] else None
    kind = precision(graph.as_graph_def()) if graph else "float64"

    def value(xs):
        return float(evaluated(tensors(xs), tensors(xs)))

    def gradient(xs):
        return joined(differentiated(tensors(xs), tensors(xs)), xs)

    if value(xs) != value(xs):  # also where it is not a number
        return {"nothing": "its value changes from call to call, or is not a number"}
    points = list(_points(case, value, differentiated and gradient, kind))
    if not points:
        return {"nothing": "no point at which central differences converge"}
    constant = all(abs(p.slope) <= p.floor and abs(p.curvature[0]) <= 1e3 * p.floor for p in points)
    if constant and (differentiated is None or not any(p.gradient.any() for p in points)):
        return {"nothing": "its result is constant, or constant between jumps, and TensorFlow gives no derivative or 0"}
    found: dict[tuple[str, str], Found] = {}
    for mode in modes:
        functions = {"eager": eager, "graph": traced, "tapelab": ours}.get(mode) or {
            name: tf.function(f, autograph=False, jit_compile=True) for name, f in traced.items()
        }
        # Eagerly the same kernels run as in a graph: one point shows that they do.
        _judge_mode(found, mode, functions, points[:1] if mode == "eager" else points)
    return {"how": case.how, "precision": kind, "modes": list(modes), "found": told(found)}


def _points(case: Case, value: Callable, gradient: Callable | None, kind: str) -> Iterator[Point]:
    """Points whose slope along a line is known well enough to judge by."""
    kept = 0
    for seed in range(TRIES):
        point = Point(value, gradient, case.draw(seed), seed, kind)
        known = point.slope_error <= 0.1 * point.tolerance * abs(point.slope) + point.floor
        if np.isfinite(point.slope) and known:
            kept += 1
            yield point
        if kept == POINTS:
            return


def _judge_mode(found: dict, mode: str, functions: dict[str, Callable], points: list[Point]) -> None:
    results: dict[str, Any] = {}
    for name, f in functions.items():
        try:
            results[name] = [f(tensors(p.xs), tensors(p.vs)) for p in points]
        except Exception as error:
            results[name] = error
    values = results.pop(VALUE)
    if isinstance(values, Exception):
        found |= {(mode, way): ("raises", 0.0, f"the function itself: {message(values)}") for way in WAYS}
        return
    off = max(abs(float(v) - p.value) / max(abs(p.value), 1.0) for v, p in zip(values, points, strict=True))
    if not off < 1e-3:
        found |= {(mode, way): ("another value", off, "than elsewhere") for way in WAYS}
        return
    for way, each in results.items():
        if isinstance(each, Exception):
            found[mode, way] = "raises", 0.0, message(each)
            continue
        first = next((found[m, REVERSE] for m in ("graph", "eager", mode) if (m, REVERSE) in found), None)
        verdicts = [_judge(point, way, result, first) for point, result in zip(points, each, strict=True)]
        worst = max(verdicts, key=lambda one: (SEVERITY.index(one[0]), one[1]))
        if worst[0] == "wrong" and found.get((mode, REVERSE), worst)[0] == "None":
            worst = "None", worst[1], "the missing part counts as 0"
        found[mode, way] = worst


def _judge(point: Point, way: str, result: Sequence[Any], first: Found | None) -> Found:
    result = [None if t is None else np.asarray(t) for t in result]
    if any(t is not None and not np.all(np.isfinite(t)) for t in result):
        return "not finite", np.inf, ""
    if way in (REVERSE, FORWARD):
        return point.first(result, way)
    return point.second(result, first is not None and first[0] == "right")


def told(found: dict[tuple[str, str], Found]) -> list[dict[str, Any]]:
    """What is not right, one entry for each verdict and message: {"verdict", "says", "error", "ways": {way: modes}}."""
    entries: dict[tuple[str, str], dict] = {}
    for (mode, way), (verdict, error, says) in found.items():
        if verdict != "right":
            new = {"verdict": verdict, "says": says, "error": 0.0, "ways": defaultdict(list)}
            entry = entries.setdefault((verdict, says), new)
            entry["error"] = max(entry["error"], float(f"{min(error, 1e308):.2g}"))
            entry["ways"][way].append(mode)
    return list(entries.values())
