"""Derivatives of random programs at special points, against differences of values; and whether the judge can judge.

`make programs` runs as many as asked for, and says more of what it finds.
"""

import argparse
from collections import Counter
from pathlib import Path

from tapelab.runtime import tf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

HERE = Path(__file__).parent
QUICK = 100  # programs, of some 15 points each
QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The generator's modules, which import each other by plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import random_checks
        import random_judge
        import random_operations
        import random_programs
        import random_truth

        yield argparse.Namespace(
            checks=random_checks,
            judge=random_judge,
            operations=random_operations,
            programs=random_programs,
            truth=random_truth,
        )


def test_a_hundred_random_programs(modules):
    """The same ones in every run: `make programs` draws others."""
    outcomes = Counter()

    @settings(max_examples=QUICK, derandomize=True, **QUIET)
    @given(modules.judge.tasks())
    def run(task):
        outcomes.update(modules.judge.judged(task))

    run()
    assert outcomes["right"] >= 3 * QUICK, outcomes


def program(modules, names, length):
    """A chain of operations, each of the result before; of those with two inputs both are that."""
    steps = []
    for number, name in enumerate(names):
        steps.append(modules.programs.Step(name, (number,) * modules.operations.OPERATIONS[name].inputs))
    return modules.programs.Program(tuple(steps), length)


def task(modules, names, x, check, compiled="eager"):
    """A derivative of such a chain at one point."""
    return modules.judge.Task(program(modules, names, len(x[0])), check, compiled, (tuple(map(tuple, x)),))


SMOOTH = (["sin", "dense", "exp"], [[0.7, -0.3], [0.4, 0.1]])
CHECKS = [
    "gradient",
    "vjp",
    "jvp",
    "jacobian_forward",
    "jacobian_reverse_in_chunks",
    "batch_jacobian_reverse",
    "batch_jacobian_forward",
    "sparse_jacobian",
    "two_arguments",
    "hvp",
    "hessian",
    "sparse_hessian",
    "laplacian",
    "laplacian_in_chunks",
    "value_gradient_laplacian",
    "second_order",
    "taylor",
    "taylor_of_a_curve",
    "biharmonic",
    "per_example_gradients",
    "per_example_norms",
    "clipped_gradient",
    "weights_hessian",
    "weights_hvp",
    "ggnvp",
]


def test_the_table_of_checks_is_whole(modules):
    assert list(modules.checks.CHECKS) == CHECKS


@pytest.mark.parametrize("wrong", [0.02, np.nan, np.inf])
@pytest.mark.parametrize("check", CHECKS)
def test_a_derivative_that_is_off_is_called_wrong(modules, check, wrong, monkeypatch):
    """Each element of each result that a check gives, one after the other, by this part of the largest one."""
    given, compute = [], modules.checks.CHECKS[check]

    def keep(case):
        if not given:
            given.extend(each._replace(found=np.array(each.found)) for each in compute(case))
        return given

    smooth = task(modules, *SMOOTH, check)
    monkeypatch.setitem(modules.checks.CHECKS, check, keep)
    assert modules.judge.judged(smooth) == {"right": 1}
    for comparison in given:
        for place in np.ndindex(comparison.found.shape):
            kept = comparison.found[place]
            comparison.found[place] += wrong * max(1.0, np.abs(comparison.right).max())
            with pytest.raises(modules.judge.Find):
                modules.judge.judged(smooth)
            comparison.found[place] = kept


DIFFERENTIABLE = {
    "smooth": (tf.exp, [0.7, 0.0], True, True),
    "a product with zeros": (lambda x: tf.reduce_prod(x, 1, True), [0.0, 0.0, 2.0], True, True),
    "a kink": (tf.nn.relu, [0.0], False, False),
    "beside a kink": (tf.nn.relu, [0.05], True, True),
    "a tie": (lambda x: tf.reduce_max(x, 1, True), [1.0, 1.0], False, False),
    "a tie of one tensor": (lambda x: tf.maximum(x, x), [1.0], True, True),
    "a kink of the first derivative": (lambda x: x * tf.abs(x), [0.0], True, False),
    "a norm at 0": (lambda x: tf.norm(x, axis=1, keepdims=True), [0.0, 0.0], False, False),
    "along each line, and not linear": (
        lambda x: tf.math.divide_no_nan(x[:, :1] ** 2 * x[:, 1:], tf.reduce_sum(x * x, 1, True)),
        [0.0, 0.0],
        False,
        False,
    ),
    "a step": (lambda x: tf.floor(x), [1.0], False, False),
    "a pole": (lambda x: 1 / x, [0.0], False, False),
    "defined on one side": (tf.sqrt, [0.0], False, False),
    "huge": (lambda x: x * x, [1e9, 2.0], True, True),
    "tiny": (tf.math.log, [1e-9], True, True),
    "saturated": (tf.tanh, [2.1, 1e160], True, True),
    "equal eigenvalues": (lambda x: tf.linalg.eigvalsh(tf.linalg.diag(x)), [1.0, 1.0], False, False),
}


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_whether_there_is_a_derivative(modules, name):
    f, x, once, twice = DIFFERENTIABLE[name]
    first, second = modules.truth.jacobian_and_hessian(f, np.array([x]))
    assert (bool(first.exists.all()), bool(second.exists.all())) == (once, twice)
    if once:
        with tf.GradientTape() as tape:
            tape.watch(point := tf.constant([x], tf.float64))
            y = f(point)
        right = tape.batch_jacobian(y, point)
        np.testing.assert_allclose(first.value, right, rtol=1e-8, atol=1e-12)


def test_higher_derivatives_from_values(modules):
    x = np.array([[0.3, -0.2], [0.0, 0.0]])
    rates = modules.truth.rates(tf.exp, x, modules.truth.lines(np.array([[1.0, -2.0]])), 4)
    right = np.exp(x) * np.array([1.0, -2.0]) ** np.arange(1, 5)[:, None, None]
    np.testing.assert_allclose(rates.values[:, :, 0], right, rtol=1e-5)
    assert rates.exist.all()
    found = modules.truth.biharmonic(lambda x: tf.reduce_prod(x * x, 1, True), x)
    np.testing.assert_allclose(found.value, 8.0 * np.ones([2, 1]), rtol=1e-4)  # Δ² of x²y²
    assert found.exists.all()


def test_where_a_step_has_no_derivative_the_chain_rule_has_none(modules):
    # x = relu(x) - relu(-x) has a derivative at 0, and its steps have none: that is no find, and counted.
    steps = [("relu", (0,)), ("negative", (0,)), ("relu", (2,)), ("subtract", (1, 3))]
    crossing = modules.programs.Program(tuple(modules.programs.Step(*step) for step in steps), 1)
    gradient = modules.judge.Task(crossing, "gradient", "graph", (((0.0,),), ((0.5,),)))
    assert modules.judge.judged(gradient) == {"a number where a step has no derivative": 1, "right": 1}


def test_where_what_is_huge_overflows_on_the_way_differences_are_no_derivative(modules, monkeypatch):
    # M Mᵀ has infinite elements, and its Cholesky factor finite ones.
    huge = task(modules, ["cholesky_solve"], [[-1.0, 1e160, 2.0, 2.0]], "gradient", "graph")
    assert modules.judge.judged(huge) == {"NaN where what is huge overflows on the way": 1}
    # A number that is huge, and no more, excuses nothing.
    wrong = modules.checks.CHECKS["gradient"]
    monkeypatch.setitem(
        modules.checks.CHECKS,
        "gradient",
        lambda case: [each._replace(found=np.full_like(each.found, np.nan)) for each in wrong(case)],
    )
    with pytest.raises(modules.judge.Find, match="nan, right"):
        modules.judge.judged(task(modules, ["tanh"], [[0.3, 1e160]], "gradient", "graph"))


def test_each_point_has_its_own_truth(modules):
    """And a find names the one at which it was."""
    points = tuple(tuple(map(tuple, x)) for x in ([[0.7, -0.3]], [[0.0, 0.0]], [[1e-9, 1e9]], [[0.4, 0.1]]))
    several = task(modules, *SMOOTH, "hessian", "graph")._replace(points=points)
    assert modules.judge.judged(several)["right"] >= 3
    wrong = several._replace(check="wrong")

    def check(case):
        for comparison in modules.checks.CHECKS["hessian"](case):
            yield comparison._replace(found=comparison.found + 0.1 * (case.x[0, 0] == 0.4))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(modules.checks.CHECKS, "wrong", check)
        with pytest.raises(modules.judge.Find, match=r"at x = \[\[0\.4, 0\.1\]\]$"):
            modules.judge.judged(wrong)


def test_where_a_program_has_no_value_it_is_not_judged_there_and_is_elsewhere(modules):
    points = (((1.0, 1.0, 1.0, 1.0),), ((2.0, 1.0, 1.0, 3.0),))
    inverse = task(modules, ["inv"], points[0], "gradient", "graph")._replace(points=points)
    assert modules.judge.judged(inverse) == {"not judged: no value": 1, "right": 1}


def test_one_program_is_traced_once_for_all_points(modules, monkeypatch):
    traced = []
    operation = modules.operations.OPERATIONS["sin"]
    counted = operation._replace(run=lambda a: (traced.append(a), operation.run(a))[1])
    monkeypatch.setitem(modules.operations.OPERATIONS, "sin", counted)
    one = task(modules, *SMOOTH, "gradient", "graph")
    modules.judge.judged(one)
    once = sum(map(tf.is_symbolic_tensor, traced))
    traced.clear()
    modules.judge.judged(one._replace(points=tuple((((0.1 * i, 0.2), (0.3, 0.4))) for i in range(1, 6))))
    assert sum(map(tf.is_symbolic_tensor, traced)) == once > 0


def test_an_error_that_is_not_ours_is_a_find_and_a_refusal_is_not(modules, monkeypatch):
    refused = task(modules, ["igamma"], [[1.0, 2.0]], "hvp")
    assert [outcome[:20] for outcome in modules.judge.judged(refused)] == ["refused: LookupError"]

    def fails(case):
        tf.linalg.inv(tf.zeros([2, 2]))

    monkeypatch.setitem(modules.checks.CHECKS, "hvp", fails)
    with pytest.raises(modules.judge.Find, match="InvalidArgumentError"):
        modules.judge.judged(refused)


def test_each_operation_keeps_to_its_row_and_its_size(modules):
    """What the grammar says of every operation: the size of its result, and that rows do not meet."""
    generator = np.random.default_rng(0)
    for name, operation in modules.operations.OPERATIONS.items():
        used = 0
        for n in (1, 2, 3, 4, 5, 6):
            size = operation.size(*[n] * operation.inputs)
            if size is None:
                continue
            inputs = [generator.uniform(0.2, 0.8, [3, n]) for _ in range(operation.inputs)]
            together = operation.run(*map(tf.constant, inputs))
            alone = operation.run(*[tf.constant(each[1:2]) for each in inputs])
            assert together.shape == (3, size), (name, n)
            assert together.dtype == tf.float64, name
            np.testing.assert_allclose(together[1:2], alone, rtol=1e-9, atol=1e-12, err_msg=name)
            used += 1
        assert used, name
