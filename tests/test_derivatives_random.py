"""Derivatives of random programs at special points, against differences of values; and whether the judge can judge.

`make programs` runs as many as asked for, and says more of what it finds.
"""

import importlib.util
import itertools
import pathlib
from collections import Counter

from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest
import random_checks
import random_judge
import random_operations
import random_programs
import random_truth
from hypothesis import HealthCheck, given, settings

QUIET = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.dear)])
def test_random_programs(count):
    """Of some 50 points each, and the same ones in every run: `make programs` draws others."""
    outcomes = Counter()
    QUICK = count  # Hypothesis draws by the text of `run`: with another name they would be other programs

    @settings(max_examples=QUICK, derandomize=True, **QUIET)
    @given(random_judge.tasks())
    def run(task):
        outcomes.update(random_judge.judged(task))

    run()
    assert outcomes["right"] >= 3 * count, outcomes


def program(names, length):
    """A chain of operations, each of the result before; of those with two inputs both are that."""
    steps = []
    for number, name in enumerate(names):
        steps.append(random_programs.Step(name, (number,) * random_operations.OPERATIONS[name].inputs))
    return random_programs.Program(tuple(steps), length)


def task(names, x, check, compiled="eager"):
    """A derivative of such a chain at one point."""
    return random_judge.Task(program(names, len(x[0])), check, compiled, (tuple(map(tuple, x)),))


SMOOTH = (["sin", "dense", "exp"], [[0.7, -0.3], [0.4, 0.1]])
CHECKS = list(random_checks.CHECKS)


@pytest.mark.dear
def test_every_derivative_has_a_check(monkeypatch):
    asked, held = set(), random_checks.derivatives

    class Listening:
        def __getattr__(self, name):
            asked.add(name)
            return getattr(held, name)

    monkeypatch.setattr(random_checks, "derivatives", Listening())
    for check in CHECKS:
        random_judge.judged(task(*SMOOTH, check))
    assert random_checks.TRANSFORMATIONS
    lacking = sorted(set(random_checks.TRANSFORMATIONS) - asked)
    assert not lacking, f"nothing says what is right of {lacking}: add a check to tests/random_checks.py"


@pytest.mark.thorough(keep=6, dear=2)
@pytest.mark.parametrize("check", CHECKS)
def test_a_derivative_that_is_off_is_called_wrong(check, monkeypatch):
    """Each element that is judged of each result that a check gives, one after the other, by part of the largest one.

    Fourth derivatives are at the limit of what differences can tell, and a processor's exp decides of some.
    """
    given, compute = [], random_checks.CHECKS[check]

    def keep(case):
        if not given:
            given.extend(each._replace(found=np.array(each.found)) for each in compute(case))
        return given

    smooth = task(*SMOOTH, check)
    monkeypatch.setitem(random_checks.CHECKS, check, keep)
    assert random_judge.judged(smooth) == {"right": 1}
    for comparison in given:
        judged = np.broadcast_to(comparison.exists, comparison.found.shape)
        assert judged.mean() >= 0.5
        for place, wrong in itertools.product(map(tuple, np.argwhere(judged)), [0.02, np.nan, np.inf]):
            kept = comparison.found[place]
            comparison.found[place] += wrong * max(1.0, np.abs(comparison.right).max())
            with pytest.raises(random_judge.Find):
                random_judge.judged(smooth)
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


@pytest.mark.thorough(keep=4)
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_whether_there_is_a_derivative(name):
    f, x, once, twice = DIFFERENTIABLE[name]
    first, second = random_truth.jacobian_and_hessian(f, np.array([x]))
    assert (bool(first.exists.all()), bool(second.exists.all())) == (once, twice)
    if once:
        right = by_tape.jacobian(f, np.array([x]))[0, :, 0]
        np.testing.assert_allclose(first.value[0], right, rtol=1e-8, atol=1e-12)


def test_higher_derivatives_from_values():
    x = np.array([[0.3, -0.2], [0.0, 0.0]])
    rates = random_truth.rates(tf.exp, x, random_truth.lines(np.array([[1.0, -2.0]])), 4)
    right = np.exp(x) * np.array([1.0, -2.0]) ** np.arange(1, 5)[:, None, None]
    np.testing.assert_allclose(rates.values[:, :, 0], right, rtol=1e-5)
    assert rates.exist.all()


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_derivatives_from_values_whose_steps_have_a_square_out_of_range():
    _, second = random_truth.jacobian_and_hessian(lambda x: tf.math.xlogy(x, x), np.array([[1e-160]]))
    assert second.exists.all()
    np.testing.assert_allclose(second.value, [[[[1e160]]]], rtol=1e-6)


def test_where_a_step_has_no_derivative_the_chain_rule_has_none():
    # x = relu(x) - relu(-x) has a derivative at 0, and its steps have none: that is no find, and counted.
    steps = [("relu", (0,)), ("negative", (0,)), ("relu", (2,)), ("subtract", (1, 3))]
    crossing = random_programs.Program(tuple(random_programs.Step(*step) for step in steps), 1)
    gradient = random_judge.Task(crossing, "gradient", "graph", (((0.0,),), ((0.5,),)))
    assert random_judge.judged(gradient) == {"a number where a step has no derivative": 1, "right": 1}


def test_where_what_is_huge_overflows_on_the_way_differences_are_no_derivative(monkeypatch):
    # M Mᵀ has infinite elements, and its Cholesky factor finite ones.
    huge = task(["cholesky_solve"], [[-1.0, 1e160, 2.0, 2.0]], "gradient", "graph")
    assert random_judge.judged(huge) == {"NaN where what is huge or tiny leaves the range on the way": 1}
    # A number that is huge, and no more, excuses nothing.
    wrong = random_checks.CHECKS["gradient"]
    monkeypatch.setitem(
        random_checks.CHECKS,
        "gradient",
        lambda case: [each._replace(found=np.full_like(each.found, np.nan)) for each in wrong(case)],
    )
    with pytest.raises(random_judge.Find, match="nan, right"):
        random_judge.judged(task(["tanh"], [[0.3, 1e160]], "gradient", "graph"))


def test_each_point_has_its_own_truth():
    """And a find names the one at which it was."""
    points = tuple(tuple(map(tuple, x)) for x in ([[0.7, -0.3]], [[0.0, 0.0]], [[1e-9, 1e9]], [[0.4, 0.1]]))
    several = task(*SMOOTH, "hessian", "graph")._replace(points=points)
    assert random_judge.judged(several)["right"] >= 3
    wrong = several._replace(check="wrong")

    def check(case):
        for comparison in random_checks.CHECKS["hessian"](case):
            yield comparison._replace(found=comparison.found + 0.1 * (case.x[0, 0] == 0.4))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(random_checks.CHECKS, "wrong", check)
        with pytest.raises(random_judge.Find, match=r"at x = \[\[0\.4, 0\.1\]\]$"):
            random_judge.judged(wrong)


def test_where_a_program_has_no_value_it_is_not_judged_there_and_is_elsewhere():
    points = (((1.0, 1.0, 1.0, 1.0),), ((2.0, 1.0, 1.0, 3.0),))
    inverse = task(["inv"], points[0], "gradient", "graph")._replace(points=points)
    assert random_judge.judged(inverse) == {"not judged: no value": 1, "right": 1}
    no_rows = task(["mirrored"], points[0], "gradient", "graph")._replace(points=((),))
    assert random_judge.judged(no_rows) == {"not judged: no value": 1}


def test_one_program_is_traced_once_for_all_points(monkeypatch):
    traced = []
    operation = random_operations.OPERATIONS["sin"]
    counted = operation._replace(run=lambda a: (traced.append(a), operation.run(a))[1])
    monkeypatch.setitem(random_operations.OPERATIONS, "sin", counted)
    one = task(*SMOOTH, "gradient", "graph")
    random_judge.judged(one)
    once = sum(map(tf.is_symbolic_tensor, traced))
    traced.clear()
    random_judge.judged(one._replace(points=tuple((((0.1 * i, 0.2), (0.3, 0.4))) for i in range(1, 6))))
    assert sum(map(tf.is_symbolic_tensor, traced)) == once > 0


def test_a_find_is_made_smaller_only_so_often(monkeypatch):
    path = pathlib.Path(__file__).parents[1] / "ci" / "random_programs.py"
    spec = importlib.util.spec_from_file_location("ci_random_programs", path)
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    runner.SHRINKS, judged = 5, []

    def wrong(task):
        judged.append(task)
        if len(task.program.steps) > 2:
            raise random_judge.Find(f"wrong: {task}")
        return Counter({"right": 1})

    monkeypatch.setattr(random_judge, "judged", wrong)
    outcomes = Counter()
    task, text = runner.Batch(random_judge, outcomes, []).run(seed=1, count=50)
    first = next(number for number, each in enumerate(judged) if len(each.program.steps) > 2)
    assert len(judged) - 1 - first == runner.SHRINKS
    assert outcomes["found"] == 1
    assert text == f"wrong: {task}"
    assert len(str(task)) < len(str(judged[first]))


def test_an_error_that_is_not_ours_is_a_find_and_a_refusal_is_not(monkeypatch):
    refused = task(["igamma"], [[1.0, 2.0]], "hvp")
    assert [outcome[:20] for outcome in random_judge.judged(refused)] == ["refused: LookupError"]

    def fails(case):
        tf.linalg.inv(tf.zeros([2, 2]))

    monkeypatch.setitem(random_checks.CHECKS, "hvp", fails)
    with pytest.raises(random_judge.Find, match="InvalidArgumentError"):
        random_judge.judged(refused)


@pytest.mark.dear
def test_each_operation_keeps_to_its_row_and_its_size():
    """What the grammar says of every operation: the size of its result, and that rows do not meet."""
    generator = np.random.default_rng(0)
    for name, operation in random_operations.OPERATIONS.items():
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
