"""The audit of TensorFlow's derivatives: it finds what is planted, accepts what is right, and survives what aborts."""

import argparse
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from tapelab.runtime import tf

import numpy as np
import pytest
from process_texts import read_text

HERE = Path(__file__).parents[1] / "ci" / "derivative_audit"
REFUSAL = "the derivative would be wrong, since it computes tf.one_hot"
FIRST, SECOND = ("reverse", "forward"), ("reverse over reverse", "forward over reverse")


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The program's modules, which import each other by plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import audit
        import cases
        import differences
        import measure
        import names
        import ours
        import page
        import verdicts

        listed = (audit, cases, differences, measure, names, ours, page, verdicts)
        yield argparse.Namespace(**{module.__name__: module for module in listed})


@pytest.fixture(scope="module")
def found(modules):
    """A function that measures a function of a (3, 4) tensor: {(mode, way): Found}."""

    def measured(call, *inputs, modes=("graph", "eager")):
        record = modules.measure.measure(modules.cases.Case("planted", call, inputs or ("positive",)), modes)
        assert not record.nothing
        return record.found

    return measured


def planted(f, gradient):
    """f with a gradient that is written by hand: of x and the cotangent."""

    @tf.custom_gradient
    def function(x):
        return f(x), lambda dy: gradient(x, dy)

    return function


@pytest.mark.dear
def test_what_is_right_is_right_everywhere(found):
    right = planted(lambda x: x**3, lambda x, dy: 3 * x**2 * dy)
    results = found(right, modes=("graph", "eager", "XLA"))
    assert len(results) == 12
    assert {f.verdict for f in results.values()} == {"right"}


def test_a_gradient_that_is_wrong_by_one_percent(found):
    results = found(planted(lambda x: x**2, lambda x, dy: 2.02 * x * dy))
    for mode in ("graph", "eager"):
        assert {results[mode, way].verdict for way in ("reverse", *SECOND)} == {"wrong"}
        assert results[mode, "reverse"].error == pytest.approx(0.01, rel=1e-6)
        assert results[mode, "forward"].verdict == "right"  # an accumulator differentiates what is inside


@pytest.mark.thorough
def test_a_gradient_that_is_wrong_by_less_than_the_tolerance_is_not_accused(found):
    results = found(planted(lambda x: x**2, lambda x, dy: 2 * (1 + 1e-8) * x * dy))
    assert {results[mode, way].verdict for mode in ("graph", "eager") for way in FIRST} == {"right"}


@pytest.mark.thorough
def test_only_the_second_order_is_wrong(found):
    results = found(planted(lambda x: x**2, lambda x, dy: 2 * tf.stop_gradient(x) * dy))
    assert {results[mode, way].verdict for mode in ("graph", "eager") for way in FIRST} == {"right"}
    assert {results[mode, way].verdict for mode in ("graph", "eager") for way in SECOND} == {"wrong"}


@pytest.mark.thorough
def test_only_forward_mode_is_wrong(found):
    """It differentiates what is inside, half of which is stopped here."""
    results = found(planted(lambda x: x * tf.stop_gradient(x), lambda x, dy: 2 * x * dy), modes=["graph"])
    assert results["graph", "reverse"].verdict == results["graph", "reverse over reverse"].verdict == "right"
    assert results["graph", "forward"].verdict == "wrong"
    assert results["graph", "forward"].error == pytest.approx(0.5, rel=1e-6)


@pytest.mark.thorough
def test_only_xla_raises(found):
    def calls_python(x):
        tf.py_function(lambda: None, [], [])
        return x**2

    results = found(calls_python, modes=("graph", "XLA"))
    assert {f.verdict for (mode, _), f in results.items() if mode == "graph"} == {"right"}
    raised = [f for (mode, _), f in results.items() if mode == "XLA"]
    assert {f.verdict for f in raised} == {"raises"}
    assert all("EagerPyFunc" in f.says for f in raised)


@pytest.mark.thorough
def test_none_and_not_a_number(found):
    results = found(lambda x, y: x * tf.stop_gradient(y), "positive", "positive", modes=["graph"])
    assert results["graph", "reverse"].verdict == "None"
    assert results["graph", "reverse"].says == "for input 2 of 2"
    assert results["graph", "forward"].verdict == "None"
    results = found(planted(lambda x: x**2, lambda x, dy: dy * np.nan), modes=["graph"])
    assert results["graph", "reverse"].verdict == "not finite"


def test_constants_and_whole_numbers_are_nothing_to_differentiate(modules):
    for call, said in ((tf.round, "constant"), (lambda x: tf.argmax(x), "no real number")):
        assert said in modules.measure.measure(modules.cases.Case("c", call, ("positive",)), ["graph"]).nothing


@pytest.mark.thorough
def test_the_known_finding_on_this_tensorflow(modules, found):
    """The Hessian of a variance lacks a term; what measures it knows nothing of tapes."""
    results = found(lambda x: tf.nn.moments(x, [1])[1], "real", modes=("graph", "eager", "XLA"))
    assert {results[mode, way].verdict for mode in modules.page.MODES for way in FIRST} == {"right"}
    assert {results[mode, way].verdict for mode in modules.page.MODES for way in SECOND} == {"wrong"}
    assert results["graph", "reverse over reverse"].error > 0.1
    assert {f.verdict for f in found(lambda x: tf.math.reduce_variance(x, 1), "real").values()} == {"right"}


@pytest.mark.dear
def test_float32_inside_is_noticed(modules):
    case = modules.cases.Case("narrow", lambda x: tf.tanh(tf.cast(x, tf.float32)), ("real",))
    record = modules.measure.measure(case, ["graph"])
    assert record.precision == "float32"
    assert {f.verdict for f in record.found.values()} == {"right"}


def test_differences_know_their_own_error(modules):
    for f, wanted in ((np.sin, 1.0), (lambda t: np.exp(3 * t), 3.0), (lambda t: max(t, -0.01) ** 2 + t, 1.0)):
        value, error = modules.differences.along(f)
        assert abs(value - wanted) <= max(10 * error, 1e-12)
        assert error < 1e-8
    value, error = modules.differences.mixed(lambda s, t: np.exp(2 * s * t) + s)
    assert abs(value - 2) <= max(10 * error, 1e-9)
    assert modules.differences.along(abs)[0] == 0  # a kink at 0 itself has no derivative; central differences say 0
    assert modules.differences.along(lambda t: np.nan)[1] == np.inf


def test_rounding_is_not_taken_for_agreement(modules):
    """In float32 neighbours may agree by chance: the estimate knows how much rounding there is."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        value, error = modules.differences.along(lambda t: np.sin(t) + 1e-6 * generator.uniform(-1, 1), noise=1e-6)
        assert abs(value - 1) <= 3 * error
        assert error < 1e-3  # from the large steps


def test_modes_that_are_measured_one_after_another_are_joined(modules, tmp_path):
    lines = [
        {"names": ["a"]},
        {"name": "a", "modes": ["graph", "XLA"], "right to": 1e-9, "found": {"XLA: reverse": ["wrong", 0.5, ""]}},
        {"name": "a", "modes": ["graph"], "found": {"graph: forward": ["None", 1.0, ""]}},
    ]
    path = tmp_path / "9.9.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    record = modules.page.read(path)["cases"]["a"]
    assert record["modes"] == ["graph", "XLA"]
    assert record["found"] == {"XLA: reverse": ["wrong", 0.5, ""], "graph: forward": ["None", 1.0, ""]}
    is_measured = modules.page.is_measured
    assert is_measured(record, ["XLA"])
    assert not is_measured(record, ["graph", "eager"])
    nothing = {"name": "a", "nothing": "no point at which central differences converge", "modes": [], "found": {}}
    assert modules.page.joined(record, nothing) == record
    assert modules.page.joined(None, nothing) == nothing
    aborts = {"name": "a", "aborts": "the process ends with -6"}
    assert is_measured(aborts, ["eager"])
    path.write_text("\n".join(map(json.dumps, [*lines, aborts])))
    assert modules.page.read(path)["cases"]["a"] == aborts


def test_what_is_packed_is_unpacked(modules):
    found = {
        "graph: reverse": ["wrong", 0.5, "x: y, z"], "XLA: reverse": ["wrong", 0.5, "x: y, z"],
        "graph: forward over reverse": ["wrong", 0.5, "x: y, z"], "XLA: forward": ["raises", 0.0, ""],
    }  # fmt: skip
    record = {"modes": ["graph", "XLA"], "precision": "float32", "right to": 1e-3, "found": found}
    packed = modules.page.packed(record)
    assert len(packed["found"]) == 3
    assert modules.page.unpacked(packed) == record
    measured = [
        {"head": {"versions": {"tensorflow": f"9.{i}.0"}, "operations": []}, "cases": {"a": record}} for i in (8, 9)
    ]
    results = modules.page.merged(measured)
    assert list(results["cases"]["a"]) == ["9.8 9.9"]
    assert modules.page.by_version(results, "a") == {"9.8": record, "9.9": record}


def test_a_reference_that_is_not_known_accuses_nobody(modules):
    judge = modules.verdicts.judge
    assert judge(0.5, 1.0, 0.01, 1e-12, 1e-5).verdict == "wrong"
    assert judge(0.5, 1.0, 0.2, 1e-12, 1e-5).verdict == "unclear"
    assert judge(0.5, 1.0, np.inf, 1e-12, 1e-5).verdict == "unclear"


# A worker that measures nothing: it dies, hangs or answers by the name.
WORKER = read_text("audit", "WORKER")


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(textwrap.dedent(WORKER))
    return path


@pytest.mark.dear
def test_a_case_that_aborts_or_hangs_loses_itself_alone(modules, worker):
    records = list(modules.audit.measure(["a", "dies", "b", "hangs", "c"], worker=worker, timeout=3.0))
    assert [record["name"] for record in records] == ["a", "dies", "b", "hangs", "c"]
    assert [record.get("aborts") for record in records] == [
        None, f"the process ends with -{signal.SIGABRT.value}", None, "takes longer than 3 s", None,
    ]  # fmt: skip
    assert modules.page.verdicts(records[1]) == ["raises"]


PROGRAM = read_text("audit", "PROGRAM")


def test_an_interrupted_audit_leaves_what_it_finished_and_goes_on(modules, worker, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(here=str(HERE), worker=str(worker))))
    written = tmp_path / "measured" / "9.8.jsonl"
    process = subprocess.Popen([sys.executable, program], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (written.exists() and '"b"' in written.read_text().partition("\n")[2]):
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "what was measured stays" in said
    assert list(modules.page.read(written)["cases"]) == ["a", "b"]
    worker.write_text(worker.read_text().replace("time.sleep(600)", "pass"))
    command = [sys.executable, program, "--resume"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert list(modules.page.read(written)["cases"]) == ["a", "b", "hangs", "c"]
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["name"] for line in lines if "name" in line] == ["a", "b", "hangs", "c"]  # none twice


def test_a_fresh_clone_goes_on_from_what_is_committed(modules, worker, tmp_path):
    """It measures what is new or in modes that are not there, and loses neither other versions nor tapelab's part."""
    found = {"graph: reverse": ["wrong", 0.5, ""]}
    heads = {"9.8": {"tensorflow": "9.8.6"}, "9.10": {"tensorflow": "9.10.0", "keras": "3.0"}}
    cases = {"a": {"modes": ["graph", "XLA"], "found": found}, "b": {"modes": ["graph"], "found": found}, "gone": {}}
    measured = [
        {"head": {"versions": versions, "operations": ["Old"]}, "cases": cases, "reached": ["Old"]}
        for versions in heads.values()
    ]
    folder = tmp_path / "committed"
    folder.mkdir()
    own = {"head": {"versions": heads["9.10"]}, "cases": {"a": {"found": found}}}
    modules.page.write(measured, own, folder)
    before = modules.page.load(folder)
    worker.write_text(worker.read_text().replace("time.sleep(600)", "pass"))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(here=str(HERE), worker=str(worker))))
    for arguments in (["--resume", "--modes", "XLA"], ["--page"]):
        done = subprocess.run(
            [sys.executable, program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "measured" / "9.8.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines if "name" in line] == ["b", "hangs", "c"]
    after = modules.page.load(folder)
    each = {name: modules.page.by_version(after, name) for name in after["cases"]}
    assert list(each) == ["a", "b", "hangs", "c", "gone"]
    assert each["a"]["9.8"]["modes"] == each["b"]["9.8"]["modes"] == ["graph", "XLA"]
    assert each["a"]["9.8"]["found"] == each["b"]["9.8"]["found"] == found
    assert "9.8" not in each["gone"]
    assert {name for name in each if "9.10" in each[name]} == {"a", "b", "gone"}
    assert list(after["versions"]) == ["9.8", "9.10"]
    assert after["versions"]["9.8"]["tensorflow"] == "9.8.7"
    assert after["operations"] == {"reached": ["Old"], "unreached": ["New"]}
    assert after["tapelab"] == before["tapelab"]


@pytest.fixture(scope="module")
def results():
    return json.loads((HERE / "results.json").read_text(encoding="utf-8"))


@pytest.mark.dear
def test_the_page_is_what_the_results_say(modules, results):
    assert (HERE / "RESULTS.md").read_text(encoding="utf-8") == modules.page.render(results)
    assert (HERE / "results.json").stat().st_size < 500_000


def test_the_table_was_made_from_the_present_catalogue(modules, results):
    import by_hand
    import keras

    newest = max(results["versions"], key=lambda version: tuple(map(int, version.split("."))))
    there = {name for name in results["cases"] if newest in modules.page.by_version(results, name)}
    assert set(by_hand.named()) <= there
    measured = results["versions"][newest]
    if (measured["tensorflow"], measured["keras"]) == (tf.__version__, keras.__version__):
        assert there == set(modules.names.names())


@pytest.mark.dear
def test_nothing_is_called_wrong_that_was_not_confirmed_by_hand(modules, results):
    page = modules.page
    section = page.render(results).partition("## Wrong without a word")[2].partition("\n## ")[0]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert "tf.nn.moments" in rows
    assert all(page.note(name, "wrong") for name in rows)
    found = {"modes": "graph", "found": {"graph: reverse": ["wrong", 0.5, ""]}}
    planted = {"versions": {"9.9": {}}, "operations": {"unreached": []}, "cases": {"no.such_case": {"9.9": found}}}
    apart = page.render(planted).partition("not confirmed by hand")[2]
    assert "`no.such_case`" in apart.partition("\n## ")[0]


def test_every_name_is_measured_or_has_a_reason(modules, results):
    for name in results["cases"]:
        for record in modules.page.by_version(results, name).values():
            assert record.get("left out") or record.get("aborts") or record.get("nothing") or record.get("modes"), name


def test_a_row_says_what_in_which_mode_and_by_how_much(modules):
    record = {"modes": ["graph", "XLA"], "found": {
        "graph: reverse over reverse": ["wrong", 0.66, ""],
        "graph: forward over reverse": ["wrong", 0.5, ""],
        "XLA: reverse over reverse": ["wrong", 0.66, ""],
        "XLA: forward over reverse": ["raises", 0.0, "E: x"],
    }}  # fmt: skip
    assert modules.page.cell(record, "wrong").endswith("by 66 %")
    assert "forward over reverse (graph)" in modules.page.cell(record, "wrong")
    assert modules.page.cell(record, "raises") == "forward over reverse (XLA)"
    assert modules.page.cell({"modes": ["graph"], "found": {}}, "wrong") == "right (graph)"  # no more than was measured
    assert modules.page.cell({"modes": list(modules.page.MODES), "found": {}}, "wrong") == "right"
    assert modules.page.cell(None, "wrong") == "not measured"


def test_of_the_same_cases_tapelab_s_derivatives_are_right_or_refused(modules, results):
    """But for two whose documentation says what they are: labels that do not sum to 1, a kernel that is overwritten."""
    own = results["tapelab"]["cases"]
    wrong = {
        name
        for name, found in own.items()
        if any(modules.ours.verdict(each) in ("wrong", "None", "another value", "unclear") for each in found.values())
    }
    known = {"keras.layers.SpectralNormalization in training", "tf.nn.softmax_cross_entropy_with_logits unnormalised"}
    assert wrong <= known
    assert len(own) > 900
    assert set(modules.ours.WAYS) >= {way for found in own.values() for way in found}


def test_what_is_refused_is_told_from_other_errors(modules):
    refused = ["raises", 0.0, "ValueError: hvp(Loss): the second derivative would be wrong, since it resizes"]
    measured = {
        "head": {"versions": {"tensorflow": "9.9.0", "keras": "3.0"}},
        "cases": {
            "a": {"modes": ["tapelab"], "found": {}},
            "b": {"modes": ["tapelab"], "found": {"tapelab: hvp": refused, "tapelab: jvp": ["wrong", 0.5, ""]}},
            "c": {"left out": "no numbers"},
            "d": {"aborts": "the process ends with -6"},
        },
    }
    kept = modules.ours.kept(measured)
    assert list(kept["cases"]) == ["a", "b", "d"]
    lines = modules.ours.section(kept, lambda name: f"why {name}", modules.page.percent)
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ")[1:] for line in lines if line[:1] == "|"}
    assert rows["right"] == ["2", "1", "2", "2", "1", "2"]  # in the order of the ways
    assert rows["refused, since TensorFlow's would be wrong"] == ["0", "0", "0", "0", "1", "0"]
    assert rows["another error"] == ["1"] * 6
    assert "Wrong by 50 %: `b`, jvp: why b." in lines


@pytest.mark.thorough
def test_what_tapelab_gives_is_measured(found, modules):
    ways = {("tapelab", way) for way in modules.ours.WAYS}
    refused = found(lambda x: tf.one_hot(0, 4, on_value=x[0, 0], off_value=x[0, 1]) + x, modes=["tapelab"])
    assert set(refused) == ways
    assert all(REFUSAL in each.says for each in refused.values())
    right = found(tf.sin, modes=["tapelab"])
    assert set(right) == ways
    assert {each.verdict for each in right.values()} == {"right"}
    wrong = found(planted(tf.sin, lambda x, dy: 1.1 * dy * tf.cos(x)), modes=["tapelab"])
    assert {each.verdict for each in wrong.values()} == {"wrong"}
