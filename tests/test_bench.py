"""The benchmark's table: every goal has a row, met and missed are told apart, and it lands in the site's page."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def goals():
    spec = importlib.util.spec_from_file_location("goals", ROOT / "ci" / "bench" / "goals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def works():
    text = (ROOT / "ci" / "bench" / "works.py").read_text(encoding="utf-8")
    return [line.split('"')[1] for line in text.splitlines() if line.strip().startswith("Work(")]


def report(works, **seconds):
    """Every recipe takes a millisecond, except those of the work that the keywords are for."""
    recipes = ("tapelab", "guide", "jax", "torch", "memory write", "tapelab forward", "tapelab reverse")
    return {
        "machine": {"processor": "Abacus", "cores": 2, "load": 0.1, "python": "3.11.7"},
        "load after": 0.4,
        "versions": ["TensorFlow 2.21", "JAX 0.10"],
        "results": [{"work": work, "seconds": dict.fromkeys(recipes, 1e-3) | seconds} for work in works],
        "memory": {"tapelab": 3.9, "tapelab chunks": 3.2},
    }


def verdicts(goals, report):
    return {(goal.work, goal.figure): verdict for goal, _, verdict in goals.judge(report)}


def test_every_goal_is_measured_by_a_work_that_exists(goals, works):
    assert set(verdicts(goals, report(works)).values()) == {"met", "missed"}


def test_met_and_missed(goals, works):
    found = verdicts(goals, report(works, tapelab=0.5e-3, guide=60e-3))
    assert found["hessian, n = 102", "guide's eager recipe / tapelab"] == "met"  # 120 times
    assert found["hessian, n = 518", "tapelab / JAX"] == "met"  # 0.5
    assert found["hessian, n = 1996", "tapelab / JAX"] == "missed"
    assert found["hessian, n = 8138, memory", "net peak / matrix"] == "met"
    assert found["hessian, n = 8138, memory", "in chunks, stretch"] == "missed"
    assert found["tiny function", "µs a warm call"] == "missed"
    found = verdicts(goals, report(works, tapelab=1.25e-3, torch=0.9e-3))
    assert found["per-example, CNN, batch 64", "tapelab / best peer"] == "missed"  # 1.39 of PyTorch, 1.25 of JAX
    assert found["batch Jacobian, batch 1024", "an example's time / at batch 256"] == "met"  # a quarter


def test_what_was_not_measured_is_not_said_to_be_met(goals, works):
    partial = report(works[:1])
    del partial["memory"]["tapelab"]
    found = verdicts(goals, partial)
    assert found["hvp, 784-256-256-10", "tapelab / JAX"] == "not measured"
    assert found["hessian, n = 8138, memory", "net peak / matrix"] == "not measured"
    assert "not measured" in goals.plain(partial)


def test_the_table_names_machine_versions_and_goals(goals, works):
    text = goals.markdown(report(works, tapelab=2e-3))
    for words in ("Abacus, 2 cores", "TensorFlow 2.21, JAX 0.10", "| hessian, n = 518 |"):
        assert words in text
    assert text.count("\n| ") == len(goals.GOALS) + 1
    busy = report(works)
    busy["machine"]["load"] = 7.0
    assert "load average 7.0 before" in goals.markdown(busy)


def test_the_page_says_why_goals_are_missed(goals, works):
    text = goals.reasons(report(works, tapelab=2e-3))
    assert "- batch Jacobian, batch 256; batch Jacobian, batch 1024: " in text
    assert "Eigen" in text
    best = report(works, tapelab=1e-6)
    best["memory"]["tapelab chunks"] = 2.0
    assert goals.reasons(best) == "No goal is missed."


def test_the_table_takes_the_place_of_the_last_one(goals):
    begin, end = goals.MARKS
    assert goals.into(f"a\n{begin}\n\nold\n\n{end}\nb", "new") == f"a\n{begin}\n\nnew\n\n{end}\nb"
    with pytest.raises(ValueError, match="bench: end"):
        goals.into(f"{end}{begin}", "new")


def test_the_site_has_a_table(goals):
    shown = (ROOT / "site" / "how_it_compares.md").read_text(encoding="utf-8")
    begin, end = (shown.index(mark) for mark in goals.MARKS)
    assert begin < end
    for goal in goals.GOALS:
        assert f"| {goal.work} | {goal.figure} |" in shown[begin:end]


def test_the_page_has_the_reasons(goals):
    page = (ROOT / "ci" / "bench" / "README.md").read_text(encoding="utf-8")
    begin, end = (page.index(mark) for mark in goals.MARKS)
    shown = (ROOT / "site" / "how_it_compares.md").read_text(encoding="utf-8")
    reasons = [line for line in page[begin:end].splitlines() if line.startswith("- ")]
    for reason in reasons:
        works, why = reason.removeprefix("- ").removesuffix(".").split(": ", 1)
        assert why in {goal.why for goal in goals.GOALS}
        assert all(f"| {work} |" in shown for work in works.split("; "))
    assert reasons
