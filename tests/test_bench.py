"""The benchmark: met and missed are told apart, what is wrong, slow or measured on a busy machine is not published."""

import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from process_texts import read_text

ROOT = Path(__file__).parents[1]
MODULES = (
    "busy",
    "constants",
    "goals",
    "plots",
    "run",
    "sparse_functions",
    "with_tensorflow",
    "worker",
    "workers",
    "works",
)
# A framework whose recipes go wrong in every way.
BROKEN = read_text("bench", "BROKEN")


@pytest.fixture(scope="module")
def bench():
    """The bench's modules, by name."""
    sys.path.insert(0, str(ROOT / "ci" / "bench"))
    try:
        yield {name: importlib.import_module(name) for name in MODULES}
    finally:
        sys.path.pop(0)
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def goals(bench):
    return bench["goals"]


@pytest.fixture(scope="module")
def works(bench):
    return [work.name for work in bench["works"].WORKS]


@pytest.fixture
def run(bench, tmp_path, monkeypatch):
    for name in ("OUTPUT", "SITE", "PAGE"):
        monkeypatch.setattr(bench["run"], name, tmp_path / name.lower())
    (tmp_path / "output").mkdir()
    return bench["run"]


@pytest.fixture
def broken(bench, tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(BROKEN, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    framework = bench["workers"].Framework("broken", 5.0)
    yield framework
    framework.close()


def report(works, busy=(), **seconds):
    """Every recipe takes a millisecond, except those that the keywords are for; memory is given for 2 MiB results."""
    recipes = ("tapelab", "guide", "jax", "jax jet", "folx", "torch", "torch autograd", "torch-jet", "one pass")
    recipes += ("tapelab forward", "tapelab reverse", "tapelab gradient", "tapelab dense", "curvlinops", "opacus")
    times = dict.fromkeys(recipes, 1e-3) | seconds
    peaks = {"tapelab": 2.9 * 2**21, "tapelab chunks": 3.2 * 2**21, "jax": 9.6 * 2**21, "tapelab gradient": 2.9 * 2**21}
    memory = ("hessian, n = 8070, memory", "Laplacian, D = 50, batch 2048, memory", "spectrum, n = 1000567, 40 steps")
    memory += ("clipped gradients, 784-1024-1024-10, memory",)
    patterns = ("band of 3", "band of 5, around a circle", "Brusselator, 16 by 16", "pendulum, 60 steps")
    patterns += ("cart-pole, 40 steps, Hessian",)
    return {
        "machine": {
            "processor": "Abacus",
            "cores": 2,
            "load": 0.1,
            "python": "3.11.7",
            "others": 0.01,
            "others while timed": 0.02,
        },
        "load after": 0.4,
        "busy": list(busy),
        "allocator": "TensorFlow's allocator was a pool",
        "versions": ["TensorFlow 2.21", "JAX 0.10"],
        "results": [{"work": work, "seconds": dict(times), "failures": {}} for work in works],
        "memory": [
            {
                "work": work,
                "bytes": dict(peaks),
                "first seconds": {"tapelab": 3.0},
                "result bytes": 2**21,
                "failures": {},
            }
            for work in memory
        ],
        "colours": {pattern: {"tapelab": 3, "asdex": 3} for pattern in patterns},
        "constants": {},
    }


def verdicts(goals, report):
    return {(goal.work, goal.figure): verdict for goal, _, verdict in goals.judge(report)}


def test_every_goal_is_measured_by_a_work_that_exists(goals, works):
    assert set(verdicts(goals, report(works)).values()) == {"met", "missed"}


def test_met_and_missed(goals, works):
    """One goal of each kind: at least, at most, of bytes, of time itself, of the best peer, of another size."""
    found = verdicts(goals, report(works, tapelab=0.5e-3, guide=60e-3))
    assert found["hessian, n = 102", "guide's eager recipe / tapelab"] == "met"  # 120 times
    assert found["hessian, n = 518", "tapelab / JAX"] == "missed"  # 0.5
    assert found["hessian, n = 8070, memory", "net peak / matrix"] == "met"  # 2.9
    assert found["hessian, n = 8070, memory", "in chunks"] == "missed"  # 3.2
    found = verdicts(goals, report(works, tapelab=1.25e-3, torch=0.9e-3))
    assert found["tiny function", "µs a warm call"] == "missed"
    assert found["per-example, CNN, batch 64", "tapelab / best peer"] == "missed"  # 1.39 of PyTorch, 1.25 of JAX
    assert found["batch Jacobian, batch 1024", "an example's time / at batch 256"] == "met"  # a quarter
    found = verdicts(goals, report(works, **{"jax": 3.5e-3}))
    assert found["residual's gradient, D = 5", "JAX, forward over reverse / tapelab"] == "met"  # 3.5, at least 3
    assert found["residual's gradient, D = 50", "JAX, forward over reverse / tapelab"] == "missed"  # at least 4


def test_first_runs_and_colours(goals, works):
    measured, spectrum = report(works), "spectrum, n = 1000567, 40 steps"
    assert verdicts(goals, measured)[spectrum, "seconds a run"] == "met"
    measured["memory"][2] |= {"first seconds": {"tapelab": 61.0}, "bytes": {"tapelab": 61 * 2**21}}
    measured["colours"]["band of 3"] = {"tapelab": 4, "asdex": 3}
    del measured["colours"]["pendulum, 60 steps"]
    found = verdicts(goals, measured)
    assert found[spectrum, "seconds a run"] == found[spectrum, "net peak / vector"] == "missed"
    assert found["colours, band of 3", "tapelab / asdex"] == "missed"
    assert found["colours, Brusselator, 16 by 16", "tapelab / asdex"] == "met"
    assert found["colours, pendulum, 60 steps", "tapelab / asdex"] == "not measured"


def test_labels_and_batches_of_a_data_set(bench):
    work = next(work for work in bench["works"].WORKS if work.name == "GGN product, n = 301066")
    labels = bench["works"].labels(work)
    assert set(labels) <= set(range(10))
    parts = bench["works"].cut(np.arange(600), labels[:600])
    assert [len(part) for part, _ in parts] == [256, 256, 88]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), labels[:600])
    assert sum(weight.size for weight in bench["works"].weights(work)) == 301066


def test_what_was_not_measured_is_not_said_to_be_met(goals, works):
    partial = report(works[:1])
    del partial["memory"][0]["bytes"]["tapelab"]
    found = verdicts(goals, partial)
    assert found["hvp, 784-256-256-10", "tapelab / JAX"] == "not measured"
    assert found["hessian, n = 8070, memory", "net peak / matrix"] == "not measured"
    assert "not measured" in goals.plain(partial)


def test_the_table_names_machine_versions_and_goals(goals, works):
    measured = report(works, tapelab=2e-3)
    text = goals.markdown(measured)
    for words in ("Abacus, 2 cores", "TensorFlow 2.21, JAX 0.10", "| hessian, n = 518 |", "a pool", "medians"):
        assert words in text
    assert "others had 1% of the cores' time before the start and 2% while recipes were timed" in text
    table = goals.bounds(measured).partition("\n\n")[0].splitlines()
    assert len(table) == len(goals.GOALS) + 2


def test_the_table_has_every_peer_also_where_we_lose(goals, works):
    measured = report(works, **{"folx": 0.5e-3, "torch compiled": 3e-3})
    measured["results"][3]["failures"] = {"torch compiled": "not ready after 150 s"}
    del measured["results"][3]["seconds"]["torch compiled"]
    lines = goals.markdown(measured).splitlines()

    def cells(start):
        return [cell.strip() for cell in next(line for line in lines if line.startswith(start)).split("|")]

    heads = cells("| work | tapelab, ms |")
    row = cells("| Laplacian, D = 50, float64 |")
    assert row[heads.index("PyTorch, compiled")] == "3"
    (special,) = (line for line in lines if line.startswith("| Laplacian, D = 50, float64 |") and ": " in line)
    assert "folx: 0.5" in special
    row = cells(f"| {works[3]} | 1 |")
    assert row[heads.index("PyTorch, compiled")] == "failed"
    assert f"- PyTorch, compiled, {works[3]}: not ready after 150 s" in lines
    assert not any("tapelab forward" in head for head in heads)


def test_the_page_says_why_goals_are_missed(goals, works):
    text = goals.reasons(report(works, tapelab=2e-3))
    assert "- batch Jacobian, batch 256; batch Jacobian, batch 1024: " in text
    assert "Eigen" in text
    *_, last = text.splitlines()
    assert "hessian, n = 102 (guide's eager recipe / tapelab)" in last
    assert last.endswith(f": {goals.UNKNOWN}.")
    best = report(works, tapelab=1e-6)
    best["memory"][0]["bytes"]["tapelab chunks"] = 2.0 * 2**21
    best["memory"][1]["bytes"]["tapelab chunks"] = 2.0 * 2**21
    assert goals.reasons(best) == "No goal is missed."


def test_what_others_take_of_the_cores(bench):
    busy = bench["busy"]
    stat = "cpu  100 20 30 800 40 5 5 10 7 7\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    assert busy.machine_ticks(stat) == (170, 1010)  # not idle nor waiting for a disk; guests are in user's time
    assert busy.process_ticks("12 (a ) b) S 1 2 3 4 5 6 7 8 9 10 40 8 2 1 20 0") == (1, 51)
    processes = {1: (0, 1000), 5: (1, 7), 6: (5, 20), 8: (6, 300), 9: (1, 4000), 12: (5, 50000)}
    assert busy.family_ticks(processes, 5) == 50327
    assert busy.others((100, 1000, 10), (180, 1200, 70)) == pytest.approx(0.1)  # 80 in use, 60 ours, of 200
    assert busy.others((100, 1000, 10), (150, 1200, 70)) == 0.0  # clocks of different fineness
    assert busy.reasons(0.01, 0.02) == []
    assert busy.reasons(0.01, None) == []
    assert busy.reasons(0.5, 0.02) == ["others had 50% of the cores' time before the start"]
    assert busy.reasons(0.01, 0.25) == ["others had 25% of the cores' time while recipes were timed"]


def test_our_own_work_is_not_that_of_others(bench):
    before = bench["busy"].snapshot()
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    after = bench["busy"].snapshot()
    assert after[2] - before[2] >= 10  # ticks are hundredths of a second
    assert after[0] > before[0]
    assert after[1] > before[1]


def test_a_busy_machine_does_not_replace_the_figures(run, works, bench, monkeypatch):
    monkeypatch.setattr(bench["plots"], "ratios", lambda results, path, caption: path.write_bytes(b""))
    run.write(report(works))
    kept = (run.OUTPUT / "results.json").read_text(encoding="utf-8")
    paths = run.write(report(works, busy=["others had 50% of the cores' time before the start"]))
    assert [path.name for path in paths] == ["results-busy.json", "ratios-busy.png"]
    assert (run.OUTPUT / "results.json").read_text(encoding="utf-8") == kept
    assert json.loads((run.OUTPUT / "results-busy.json").read_text(encoding="utf-8"))["busy"]


def test_a_busy_report_is_not_put_into_the_pages(run, works, goals):
    pages = [run.SITE, run.PAGE]
    for page in pages:
        page.write_text("\n".join(goals.MARKS), encoding="utf-8")
    with pytest.raises(SystemExit, match="run `make bench` first, on idle cores"):
        run.put_into_pages()
    (run.OUTPUT / "results.json").write_text(json.dumps(report(works, busy=["others had 50%"])), encoding="utf-8")
    with pytest.raises(SystemExit, match="the machine was busy: others had 50%"):
        run.put_into_pages()
    assert all("|" not in page.read_text(encoding="utf-8") for page in pages)
    (run.OUTPUT / "results.json").write_text(json.dumps(report(works)), encoding="utf-8")
    run.put_into_pages()
    assert "| hessian, n = 102 |" in run.SITE.read_text(encoding="utf-8")


@pytest.mark.thorough
def test_what_is_wrong_or_fails_is_not_timed_and_does_not_end_the_run(run, works, broken):
    found = run.bench([broken], works.index("tiny function"), rounds=3, seconds=0.01)
    assert sorted(found["seconds"]) == ["last", "rounded", "tapelab"]
    assert found["disagree"] == ["nan", "off", "shorter"]
    assert "differs from tapelab by 1.0e-03" in found["failures"]["off"]
    assert found["failures"]["refuses"] == "NotImplementedError: no such kernel"
    assert "died" in found["failures"]["dies"]
    assert found["failures"]["hangs"] == "not ready after 5 s"
    again = run.bench([broken], works.index("tiny function"), rounds=1, seconds=0.01)["failures"]
    assert again["hangs"] == "not ready after 5 s, at another size"
    assert all(0 < found["least"][name] <= found["seconds"][name] for name in found["seconds"])
    assert 0 <= found["others"] <= 1
    found = run.bench([broken], works.index("gradient, 784-256-256-10"), rounds=1, seconds=0.01)
    assert found["failures"]["all of broken"] == "MemoryError: cannot be built"
    assert found["seconds"] == {}


def test_times_are_medians_of_rounds(run, works, bench, monkeypatch):
    class Steps:
        """Turns of 1, 2 and 30 ms, whose calls differ."""

        turns = (1e-3, 30e-3, 2e-3)

        def prepare(self, index, folder):
            for name in ("tapelab", "jax"):
                np.savez(folder / f"{name}.npz", np.ones(2))
            return ["tapelab", "jax"], {}

        def time(self, name, seconds):
            self.turns = self.turns if name == "jax" else [*self.turns[1:], self.turns[0]]
            return {"least": self.turns[0] / 2, "median": self.turns[0]}

    monkeypatch.setattr(bench["busy"], "snapshot", lambda: (0, 0, 0))
    found = run.bench([Steps()], works.index("tiny function"), rounds=3, seconds=0.01)
    assert found["seconds"] == {"tapelab": 2e-3, "jax": 2e-3}
    assert found["least"] == {"tapelab": 0.5e-3, "jax": 0.5e-3}


def test_differences_are_relative_to_the_largest_element(run):
    wanted = {"a": np.array([2.0, -4.0]), "zero": np.zeros((1, 2))}
    assert run.difference(wanted, wanted) == 0
    assert run.difference(wanted, {"a": np.array([2.0, -4.004]), "zero": np.zeros(2)}) == pytest.approx(1e-3)
    assert run.difference(wanted, {"a": wanted["a"], "zero": np.array([0, 0.004])}) == pytest.approx(1e-3)
    assert np.isnan(run.difference(wanted, {"a": np.array([2.0, np.nan]), "zero": np.zeros(2)}))
    assert run.difference(wanted, {"a": wanted["a"]}) == np.inf
    assert run.difference(wanted, {"a": wanted["a"], "zero": np.zeros(3)}) == np.inf


def test_a_result_that_agrees_with_none_is_not_timed(run, bench, tmp_path):
    work = bench["works"].WORKS[-1]
    np.savez(tmp_path / "tapelab.npz", np.ones(2))
    for name, scale in (("jax", 2.0), ("torch", 3.0)):
        np.savez(tmp_path / f"{name}.npz", scale * np.ones(2))
    with pytest.raises(bench["workers"].Failure, match="no result agrees with tapelab's"):
        run.compare(tmp_path, work)


def test_recipes_look_different_in_the_plot(bench, works):
    measured = report(works, **{"torch compiled": 1.0, "torch-jet compiled": 1.0, "asdex": 1.0, "opacus": 1.0})
    marks = bench["plots"].marks(measured["results"])
    assert {"folx", "torch-jet", "jax jet", "asdex", "opacus"} <= set(marks)
    assert len(set(marks.values())) == len({marker for marker, _ in marks.values()}) == len(marks)
    assert not any(name.startswith("tapelab") for name in marks)


def test_the_table_takes_the_place_of_the_last_one(goals):
    begin, end = goals.MARKS
    assert goals.into(f"a\n{begin}\n\nold\n\n{end}\nb", "new") == f"a\n{begin}\n\nnew\n\n{end}\nb"
    with pytest.raises(ValueError, match="bench: end"):
        goals.into(f"{end}{begin}", "new")


def test_the_bench_s_page_has_every_goal(goals):
    shown = (ROOT / "ci" / "bench" / "README.md").read_text(encoding="utf-8")
    begin, end = (shown.index(mark) for mark in goals.MARKS)
    assert begin < end
    for goal in goals.GOALS:
        assert f"| {goal.work} | {goal.figure} |" in shown[begin:end]


def test_the_page_has_the_reasons(goals):
    page = (ROOT / "ci" / "bench" / "README.md").read_text(encoding="utf-8")
    begin, end = (page.index(mark) for mark in goals.MARKS)
    reasons = [line for line in page[begin:end].splitlines() if line.startswith("- ")]
    for reason in reasons:
        works, why = reason.removeprefix("- ").removesuffix(".").split(": ", 1)
        assert why in {goals.UNKNOWN, *(goal.why for goal in goals.GOALS)}
        rows = [work.rstrip(")").replace(" (", " | ") if why == goals.UNKNOWN else work for work in works.split("; ")]
        assert all(f"| {row} |" in page for row in rows)
    assert reasons


def test_the_site_s_page_is_as_the_bench_writes_it(goals, works):
    """Its headings, heads of tables and words; the figures are those of another run."""
    page = (ROOT / "site" / "how_it_compares.md").read_text(encoding="utf-8")
    written = goals.markdown(report(works, folx=1.0)).splitlines()
    fixed = [
        line for line in written if (line and not line.startswith(("Measured on", "- ", "| "))) or "| work |" in line
    ]
    assert len(fixed) > 8
    assert all(line in page.splitlines() for line in fixed), [line for line in fixed if line not in page.splitlines()]


def test_every_constant_is_measured_again(bench):
    from tapelab.derivatives import costs

    assert set(bench["constants"].QUESTIONS) == {name for name in vars(costs) if name.isupper()}


@pytest.fixture
def cases(bench, monkeypatch):
    """Three sizes: XLA takes half as long, as long, and twice as long as a graph."""
    constants = bench["constants"]
    monkeypatch.setattr(constants.costs, "XLA_HESSIAN", 10)
    times = {1: 0.5, 10: 1.0, 100: 2.0}
    return [constants.Case(f"n = {n}", {}, n, None, {"xla": xla, "graph": 1.0}) for n, xla in times.items()]


@pytest.mark.parametrize(("limit", "best"), [(10, "10"), (1, "1"), (50, "50"), (0, "1"), (100, "1")])
def test_a_constant_would_be_another_where_another_limit_chooses_better(bench, cases, monkeypatch, limit, best):
    constants = bench["constants"]
    monkeypatch.setattr(constants.costs, "XLA_HESSIAN", limit)
    found = constants.judged("XLA_HESSIAN", constants.by_size(None), cases)
    assert found["holds"] == (best == str(limit))
    assert f"best {best}," in found["told"]
    assert (
        found["cases"][2]
        == f"n = 100: xla 2.00, graph 1.00 times 1e+03 ms; chooses {'xla' if limit == 100 else 'graph'}"
    )


def test_what_is_refused_is_never_the_better_choice(bench, cases, monkeypatch):
    constants = bench["constants"]
    for case, operations in zip(cases, ({"Slice"}, {"Pad"}, {"Mul"}), strict=True):
        case.size, case.seconds = operations, {"xla": 0.5, "graph": 1.0}
    question = constants.by_operations(None, ("Slice", "Pad"), constants.unless)
    cases[0].seconds["xla"] = float("inf")
    monkeypatch.setattr(constants.costs, "SLOW_SPARSE", ("Pad",))
    found = constants.judged("SLOW_SPARSE", question, cases)
    assert (found["holds"], found["told"]) == (False, "inf; best ('Slice',), 1.00")
    assert found["cases"][0].startswith("n = 1: xla refused, graph 1.00")


def test_a_case_in_which_the_constant_does_not_decide_ends_the_measurement(bench, cases):
    cases[2].taken = "xla"
    constants = bench["constants"]
    with pytest.raises(RuntimeError, match="XLA_HESSIAN is not what decides in the case n = 100: xla is taken"):
        constants.judged("XLA_HESSIAN", constants.by_size(None), cases)


def test_other_values_of_a_constant_are_given_while_it_computes_and_no_longer(bench):
    constants = bench["constants"]
    before = constants.costs.VECTORS
    assert constants.under(lambda: constants.costs.VECTORS, VECTORS=-1)() == -1
    assert before == constants.costs.VECTORS


@pytest.mark.thorough
def test_a_constant_is_measured(bench, monkeypatch):
    constants = bench["constants"]
    monkeypatch.setattr(constants, "SPARSE", {name: constants.SPARSE[name] for name in ("elementwise", "slices")})
    found = constants.measured("SLOW_SPARSE", rounds=1, seconds=0)
    refused = [case.partition(":")[0] for case in found["cases"] if "xla refused" in case]
    assert refused == [f"{what}, slices, n = {n}" for what in ("forward", "Hessian") for n in (100, 10000)]
    assert len(found["cases"]) == 8
    assert found["holds"]


def test_constants_are_told_one_by_one_as_far_as_they_come(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "HERE", tmp_path)
    (tmp_path / "constants.py").write_text(
        "import json, sys\n"
        "for name, holds in ('A', True), ('B', False):\n"
        "    print(json.dumps({'constant': name, 'now': '1', 'holds': holds, 'told': '1.0', 'cases': ['c']}))\n"
        "sys.exit(3)\n"
    )
    found = {}
    run.constants("", found)
    assert list(found) == ["A", "B"]
    assert capsys.readouterr().out.splitlines() == [
        *("A = 1: holds (1.0)", "    c", "B = 1: WOULD BE ANOTHER HERE (1.0)", "    c"),
        "Not all constants were measured: see above.",
    ]
