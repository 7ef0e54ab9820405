"""The figure of Newton's step on a saddle: the three steps, their verdicts, and that each control redraws it."""

from tapelab import gradcheck
from tapelab.interactive import saddle

import numpy as np

START = np.array([0.2, 0.4])
INDEFINITE = [(0.2, 0.4), (-0.7, 0.3), (1.1, -0.5), (0.05, 0.1)]  # 3 y² < 1


def test_the_derivatives_are_those_of_the_function():
    for point in ([0.2, 0.4], [-1.5, 1.2], [0.0, 0.0]):
        np.testing.assert_allclose(saddle.gradient(point), gradcheck.numerical_jacobian(saddle.value, point), atol=1e-8)
        np.testing.assert_allclose(
            saddle.hessian(point), gradcheck.numerical_jacobian(saddle.gradient, point), atol=1e-7
        )


def test_newton_step_solves_the_damped_system():
    for damping in (0.0, 0.3, 2.0):
        step = saddle.newton_step(START, damping)
        left = saddle.hessian(START) @ step + damping * step
        np.testing.assert_allclose(left, -saddle.gradient(START), rtol=1e-12)


def test_newton_step_has_no_answer_where_the_matrix_is_singular():
    assert saddle.newton_step(np.zeros(2), 1.0) is None  # the lowest eigenvalue of the saddle is -1
    assert saddle.newton_step(np.zeros(2), 1.1) is not None
    assert "singular" in saddle.steps(np.zeros(2), 1.0)["damped Newton"].verdict()


def test_from_the_start_the_raw_step_climbs_and_the_two_others_descend():
    taken = saddle.steps(START, saddle.figure().start()["damping"])
    assert taken["raw Newton"].slope > 0
    assert taken["raw Newton"].change > 0
    assert taken["raw Newton"].verdict() == "uphill, ends higher"
    for name in ("damped Newton", "gradient"):
        assert taken[name].verdict() == "downhill, ends lower"


def test_damping_above_the_lowest_eigenvalue_descends_and_too_little_is_worse_than_none():
    for point in INDEFINITE:
        lowest = np.linalg.eigvalsh(saddle.hessian(point))[0]
        for extra in (0.01, 0.5, 3.0):
            assert saddle.steps(point, extra - lowest)["damped Newton"].slope < 0
    raw, weak = (saddle.newton_step(START, damping) for damping in (0.0, 0.4))
    assert np.abs(weak[1]) > 2 * np.abs(raw[1])  # the wrong way, and further
    assert saddle.steps(START, 0.4)["damped Newton"].slope > saddle.steps(START, 0.4)["raw Newton"].slope > 0


def test_at_the_saddle_nothing_moves():
    taken = saddle.steps(np.zeros(2), 2.0)
    assert taken["gradient"].verdict() == taken["raw Newton"].verdict() == "stays: the gradient is zero"


def test_every_end_is_drawn_with_its_verdicts():
    shown = saddle.figure()
    for values in shown.ends():
        still = shown.still(**values)
        texts = [text.get_text() for text in still.legends[0].get_texts()]
        taken = saddle.steps([values["x"], values["y"]], values["damping"])
        assert texts == ["start", "minimum", "saddle", *(f"{name}: {step.verdict()}" for name, step in taken.items())]


def test_a_step_that_does_not_exist_is_named_and_not_drawn():
    still = saddle.figure().still(x=0.0, y=0.0, damping=1.0)
    assert any("singular" in text.get_text() for text in still.legends[0].get_texts())
    assert len(still.axes[1].lines) == 3  # two steps, and the line of zero
