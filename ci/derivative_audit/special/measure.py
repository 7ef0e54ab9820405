"""One case at its special point: derivatives in all ways and modes, beside what is true there."""

from collections.abc import Callable

from special import judge, truth
from special.case import Special, named

import numpy as np
import tensorflow as tf
from measure import FORWARD, OURS, REVERSE, VALUE, WAYS, Graphs, Loss, message, our_ways, tensors, ways
from ours import WAYS as OUR_WAYS
from verdicts import Found, joined

NESTED, LAPLACIAN = "forward over forward", "laplacian"
TENSORFLOW, TAPELAB = (*WAYS, NESTED), (*OUR_WAYS, LAPLACIAN)
FIRST = (REVERSE, FORWARD, *OUR_WAYS[:4])
SCALARS = {FORWARD: "along", "jvp": "along", NESTED: "twist", LAPLACIAN: "trace"}


def nested(loss: Callable, us: list[tf.Tensor]) -> Callable:
    """An accumulator in an accumulator: the second derivative along us and vs."""

    def way(xs, vs):
        with tf.autodiff.ForwardAccumulator(xs, us) as outer:
            with tf.autodiff.ForwardAccumulator(xs, vs) as inner:
                value = loss(*xs)
            slope = inner.jvp(value)
        return [None if slope is None else outer.jvp(slope)]

    return way


def our_laplacian(loss: Callable, count: int) -> Callable:
    from tapelab.derivatives import laplacian

    transform = laplacian(loss, argnums=tuple(range(count)), batched=False)
    return lambda xs, vs: [transform(*xs)]


class Measured:
    """A case with its loss, its point in one vector, and the truth there."""

    def __init__(self, case: Special):
        self.case, self.xs = case, list(case.at)
        self.loss = Loss(case.call, self.xs)
        self.traced = tf.function(lambda xs: self.loss(*xs), autograph=False)
        self.x = joined(self.xs, self.xs) if self.xs else np.zeros(0)
        self.truth = truth.of(self.same if case.same else self.value, self.x, case.derivatives)
        self.floor = 1e-10 * max(abs(self.truth.value), self._size())
        if case.same and not self.truth.disputed and not self._agrees():
            self.truth.disputed = "the closed form has other values"

    def parts(self, x: np.ndarray) -> list[np.ndarray]:
        """One array for each input."""
        pieces = np.split(np.asarray(x), np.cumsum([part.size for part in self.xs])[:-1])
        return [piece.reshape(part.shape) for piece, part in zip(pieces, self.xs, strict=True)]

    def value(self, x: np.ndarray) -> float:
        return float(self.traced(tensors(self.parts(x))))

    def same(self, x: np.ndarray) -> float:
        """The value by the closed form."""
        results = self.case.same(*self.parts(x))
        results = results if isinstance(results, (list, tuple)) else [results]
        pairs = zip(results, self.loss.weights, strict=True)
        return float(sum(np.ravel(y) @ a + 0.5 * np.ravel(y) ** 2 @ b for y, (a, b) in pairs))

    def _agrees(self):
        """Whether the closed form has the function's values, at the point and where the function has some near it."""
        for step in (0.0, 1e-3, -1e-3):
            x = self.x + step * self.truth.v
            value = self.value(x)
            if np.isfinite(value) and abs(value - self.same(x)) > 1e-9 * max(abs(value), 1.0):
                return False
        return True

    def _size(self):
        return 0.0 if self.truth.gradient is None else float(np.linalg.norm(self.truth.gradient[0]))

    def wanted(self, way: str) -> tuple[np.ndarray, float, int, float]:
        """What a way is to give: the numbers, their error, the order, and what counts as rounding."""
        order = 1 if way in FIRST else 2
        floor = self.floor if order == 1 else 1e3 * self.floor
        if SCALARS.get(way) == "along":
            gradient, error = self.truth.gradient
            return np.array([gradient @ self.truth.v]), error, order, floor
        pair = getattr(self.truth, SCALARS[way]) if way in SCALARS else None
        pair = pair or (self.truth.gradient if order == 1 else self.truth.product)
        return np.ravel(pair[0]), pair[1], order, floor

    def functions(self, mode: str) -> dict[str, Callable]:
        """The ways in a mode, each of tensors xs and vs; second ones only where there are second derivatives."""
        if mode == OURS:
            each = {**our_ways(self.loss, len(self.xs)), LAPLACIAN: our_laplacian(self.loss, len(self.xs))}
        else:
            each = {**ways(self.loss), NESTED: nested(self.loss, tensors(self.parts(self.truth.u)))}
        return {way: f for way, f in each.items() if way in FIRST or self.case.derivatives}


class _Here:
    """What `Graphs.results` asks of a point."""

    def __init__(self, measured: Measured):
        self.xs, self.vs = measured.xs, measured.parts(measured.truth.v)


def measured(name: str, modes: list[str]) -> dict:
    """A case by its name, as a line of JSON: what each way gave in each mode that is not right, and what is vacuous."""
    case = named()[name]
    record = {"name": name, "kind": case.kind, "derivatives": case.derivatives, "modes": list(modes), "found": {}}
    record |= {"cancels": True} if case.cancels else {}
    it = Measured(case)
    record |= {"truth": "closed form" if case.same else "differences", "disputed": it.truth.disputed}
    if it.truth.disputed:
        return record
    record["vacuous"] = {}
    for mode in modes:
        for way, found, vacuous in _mode(it, mode):
            if found.verdict != "right":
                error = float(f"{found.error:.2g}") if np.isfinite(found.error) else "inf"
                record["found"][f"{mode}: {way}"] = [found.verdict, error, found.says]
            if vacuous:
                record["vacuous"][f"{mode}: {way}"] = vacuous
    return record


def _mode(it, mode):
    """Triples of a way, what it gave, and why that proves nothing, or ""."""
    functions = it.functions(mode)
    if mode == OURS:
        results = {VALUE: [tf.constant(it.value(it.x))]}
        for way, f in functions.items():
            try:
                results[way] = [f(tensors(it.xs), tensors(it.parts(it.truth.v)))]
            except Exception as error:
                results[way] = error
    else:
        results = Graphs(it.loss, functions).results(mode, [_Here(it)])
    value = results.pop(VALUE)
    off = np.inf if isinstance(value, Exception) else abs(float(value[0]) - it.truth.value)
    gradient = None
    for way, result in results.items():
        if isinstance(value, Exception) or isinstance(result, Exception):
            error = value if isinstance(value, Exception) else result
            yield way, Found("raises", 0.0, message(error)), ""
        elif not off <= 1e-6 * max(abs(it.truth.value), 1.0):
            yield way, Found("another value", off, "than elsewhere"), ""
        else:
            result = [None if t is None else np.asarray(tf.convert_to_tensor(t)) for t in result[0]]
            like = it.xs if way not in SCALARS else [np.zeros(1)]
            flat_result = joined(result, like)
            if it.case.derivatives == 0:
                gradient = flat_result if way in (REVERSE, OUR_WAYS[0]) else gradient
                yield way, *_without(it, way, flat_result, gradient)
            else:
                yield way, *_with(it, way, result, flat_result)


def _with(it, way, result, found):
    """The verdict where there is a derivative of this order, and whether it could have been another."""
    if way not in FIRST and it.case.derivatives == 1:
        return _bent(it, way, found), ""
    wanted, error, order, floor = it.wanted(way)
    verdict = judge.exact(found, wanted, error, order, floor)
    if verdict.verdict == "wrong" and all(t is None for t in result):
        verdict = Found("None", 1.0)
    return verdict, judge.vacuous(wanted, error, order, floor, it.case.zero)


def _bent(it, way, found):
    """The name of a second derivative where the slope has a kink, by its part along v."""
    if way in (NESTED, LAPLACIAN):
        return Found("right" if np.isfinite(found).all() else "not finite")
    said = judge.named(float(found @ it.truth.v), it.truth.bend, max(abs(it.truth.bend.right), abs(it.truth.bend.left)))
    return Found("not finite" if "NaN" in said else "named", 0.0, said)


def _without(it, way, found, gradient):
    """The name of what comes out where there is no derivative, and whether another result had the same name."""
    if way not in SCALARS:
        said = judge.at_kink(found, it.truth)
        return Found("not finite" if "NaN" in said else "named", 0.0, said), judge.vacuous_at_kink(found, it.truth)
    if np.isfinite(found).all() and gradient is not None and np.isfinite(gradient).all():
        product = gradient @ it.truth.v
        same = abs(float(found[0]) - product) <= 1e-8 * max(1.0, abs(product))
        said = "as in reverse mode" if same else "another than in reverse mode"
    else:
        said = "finite" if np.isfinite(found).all() else "NaN or infinite"
    return Found("named", 0.0, said), ""
