"""Random programs: every derivative agrees with plain tapes, and the tape with differences of values.

A program takes x of shape (rows, n), and each row of its result depends on that row alone, so that the derivatives of
examples apply, too. Its operations are smooth on all numbers: what happens at zeros and ties has tables of its own.
"""

from tapelab import derivatives
from tapelab.runtime import tf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROWS, N = 3, 4
W = tf.constant(np.cos(1.0 + 1.7 * np.arange(N * N)).reshape(N, N))
ONE = {
    "sin": tf.sin,
    "tanh": tf.tanh,
    "softplus": tf.nn.softplus,
    "bump": lambda a: tf.exp(-(a**2)),
    "log": lambda a: tf.math.log(1.0 + a**2),
    "root": lambda a: tf.sqrt(1.0 + a**2),
    "softmax": tf.nn.softmax,
    "dense": lambda a: tf.tanh(a @ W),
    "einsum": lambda a: tf.einsum("bi,ij->bj", a, W),
    "cumsum": lambda a: tf.cumsum(a, 1, reverse=True),
    "product": lambda a: a * tf.reduce_prod(1.0 + a**2, 1, keepdims=True),
    "logsumexp": lambda a: a - tf.reduce_logsumexp(a, 1, keepdims=True),
    "moments": lambda a: (a - tf.reduce_mean(a, 1, keepdims=True)) / (1.0 + tf.math.reduce_std(a, 1, keepdims=True)),
    "roll": lambda a: a * tf.roll(a, 1, axis=-1),
    "pad": lambda a: tf.pad(a[:, 1:], [[0, 0], [1, 0]], constant_values=2.0) * a,
    "gather": lambda a: tf.gather(a, [0, 2, 2, 1], axis=1),
    "strided": lambda a: tf.concat([a[:, ::2], a[:, ::-2] ** 2], 1),
    "where": lambda a: tf.where(a > 100.0, a, tf.sin(a) * a),
    "solve": lambda a: tf.linalg.solve(
        tf.eye(N, dtype=a.dtype) * (9.0 + a[:, :1, tf.newaxis] ** 2), a[..., tf.newaxis]
    )[..., 0],
    "loop": lambda a: tf.while_loop(lambda i, b: i < 3, lambda i, b: (i + 1, tf.sin(b) + a), (0, a))[1],
}
TWO = {
    "add": tf.add,
    "multiply": tf.multiply,
    "divide": lambda a, b: a / (1.0 + b**2),
    "atan2": lambda a, b: tf.atan2(a, 1.0 + b**2),
    "difference": tf.math.squared_difference,
    "dot": lambda a, b: a * tf.reduce_sum(a * b, 1, keepdims=True),
}
steps = st.lists(st.tuples(st.sampled_from([*ONE, *TWO]), st.integers(0, 5)), min_size=1, max_size=5)


def program(drawn):
    """The function of x that applies the steps by turns; a step of two inputs takes an earlier result as well."""

    def run(x):
        values = [x]
        for name, other in drawn:
            last = values[-1]
            values.append(ONE[name](last) if name in ONE else TWO[name](last, values[other % len(values)]))
        return values[-1]

    return run


def taped(f, x):
    """The gradient, and the Hessian of shape (rows · n, rows · n), by plain tapes without vectorisation."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = tf.reshape(inner.gradient(y, x), [-1])
    return gradient, outer.jacobian(gradient, x, experimental_use_pfor=False)


def close(found, wanted):
    scale = max(float(np.abs(wanted).max()), 1e-3)
    np.testing.assert_allclose(np.ravel(found) / scale, np.ravel(wanted) / scale, rtol=0, atol=1e-9)


class Reference:
    """A program at a point: its derivatives by plain tapes, which agree with differences of values."""

    def __init__(self, drawn, seed):
        generator = np.random.default_rng(seed)
        self.x, self.v = (tf.constant(generator.uniform(-1.5, 1.5, (ROWS, N))) for _ in "xv")
        self.run, weights = program(drawn), tf.constant(np.linspace(0.5, 1.5, N))
        self.f = lambda x: tf.reduce_sum(tf.sin(self.run(x)) * weights)
        self.gradient, self.hessian = taped(self.f, self.x)
        self.slope = tf.reduce_sum(self.gradient * tf.reshape(self.v, [-1]))
        step = 1e-8  # programs are steep: the sine of 14,000 was met, and longer steps see its curvature
        difference = (self.f(self.x + step * self.v) - self.f(self.x - step * self.v)) / (2 * step)
        size = 1 + float(tf.norm(self.gradient))
        np.testing.assert_allclose(self.slope, difference, rtol=1e-5, atol=1e-6 * size)

    def matrix(self):
        """The Jacobian of the program, (rows, n, rows, n), row by row."""
        with tf.GradientTape(persistent=True) as tape:  # which row by row asks for
            tape.watch(self.x)
            y = self.run(self.x)
        return tape.jacobian(y, self.x, experimental_use_pfor=False)

    def examples(self):
        """Gradients by a factor of the columns, (rows, n): of each row alone."""
        rows, w = [], tf.ones(N, self.x.dtype)
        for row in self.x:
            with tf.GradientTape() as tape:
                tape.watch(w)
                y = self.scaled(w, row[tf.newaxis])
            rows.append(tape.gradient(y, w))
        return w, tf.stack(rows)

    def scaled(self, w, x):
        return self.f(w * x)


# Each derivative of a program, and what the plain tapes give for it.
CHECKS = {
    "value_and_gradient": lambda r: (derivatives.value_and_gradient(r.f)(r.x)[1], r.gradient),
    "jvp": lambda r: (derivatives.jvp(r.f)(r.x, tangents=r.v)[1], r.slope),
    "hvp": lambda r: (derivatives.hvp(r.f)(r.x, vector=r.v), tf.tensordot(r.hessian, r.v, 2)),
    "hessian": lambda r: (derivatives.hessian(r.f)(r.x), r.hessian),
    "per_example_gradients": lambda r: (
        derivatives.per_example_gradients(r.scaled)(r.examples()[0], r.x),
        r.examples()[1],
    ),
    "forward": lambda r: (derivatives.jacobian(r.run, mode="forward")(r.x), r.matrix()),
    "reverse": lambda r: (derivatives.jacobian(r.run, mode="reverse")(r.x), r.matrix()),
    "batch_jacobian": lambda r: (derivatives.batch_jacobian(r.run)(r.x), tf.einsum("bibj->bij", r.matrix())),
}


def judged(drawn, seed, checks):
    reference = Reference(drawn, seed)
    for check in checks:
        close(*CHECKS[check](reference))


@pytest.mark.parametrize("count", [4, pytest.param(30, marks=pytest.mark.dear)])
def test_random_programs(count):
    suppressed = list(HealthCheck)

    @settings(max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=suppressed)
    @given(steps, st.integers(0, 2**16), st.sampled_from(list(CHECKS)))
    def run(drawn, seed, check):
        judged(drawn, seed, [check])

    run()


@pytest.mark.dear(keep=3)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_each_operation_alone(name):
    judged([(name, 0)], 1, ["hvp", "reverse", "per_example_gradients"])
