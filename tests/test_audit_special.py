"""The audit at special points, and what is to be sent upstream: each finds what is planted, and proves what it says."""

import argparse
import json
import re
from pathlib import Path

from tapelab.runtime import tf

import numpy as np
import pytest

HERE = Path(__file__).parents[1] / "ci" / "derivative_audit"


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The program's modules, which import each other by plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import cases
        import measure
        import page
        import special.case
        import special.judge
        import special.measure
        import special.page
        import special.truth
        import upstream.pages
        import upstream.programs

        yield argparse.Namespace(cases=cases, measure=measure, page=page, special=special, upstream=upstream)


@pytest.fixture
def measured(modules, monkeypatch):
    """A function that measures a function at a point, as `special.measure.measured` does a case by its name."""

    def found(call, *point, modes=("graph", "eager"), **what):
        point = tuple(np.asarray(x, np.float64) for x in point)
        case = modules.special.case.Special("planted", "a tie", call, point, **what)
        monkeypatch.setattr(modules.special.measure, "named", lambda: {"planted": case})
        return modules.special.measure.measured("planted", list(modes))

    return found


def planted(f, gradient):
    """f with a gradient that is written by hand: of x and the cotangent."""

    @tf.custom_gradient
    def function(x):
        return f(x), lambda dy: gradient(x, dy)

    return function


def verdicts(record):
    return {key: found[0] for key, found in record["found"].items()}


@pytest.mark.dear
def test_what_is_right_is_right_in_all_ways(measured):
    record = measured(lambda x: tf.sin(x) * x, [0.0, 0.7], modes=("graph", "eager", "XLA"))
    assert (record["disputed"], record["vacuous"]) == ("", {})
    assert set(verdicts(record)) <= {"eager: forward over forward"}  # TensorFlow's issue 127753


@pytest.mark.dear
def test_a_gradient_that_is_off_at_the_point_alone_is_found(measured):
    """Everywhere else it is right, and so are differences: nothing but the point itself tells."""
    record = measured(
        planted(lambda x: x * x + x, lambda x, dy: dy * tf.where(x == 0, 0 * x + 0.5, 2 * x + 1)), [0.0, 0.7]
    )
    assert record["disputed"] == ""
    assert verdicts(record)["graph: reverse"] == verdicts(record)["eager: reverse"] == "wrong"
    assert "graph: forward" not in record["found"]  # an accumulator differentiates what is inside


@pytest.mark.thorough
def test_a_second_derivative_that_is_off_at_the_point_alone_is_found(measured):
    slope = planted(lambda x: 2 * x + 1, lambda x, dy: dy * tf.where(x == 0, 0 * x, 0 * x + 2))
    record = measured(planted(lambda x: x * x + x, lambda x, dy: dy * slope(x)), [0.0, 0.7])
    found = verdicts(record)
    assert "graph: reverse" not in found
    assert all(found[f"{mode}: reverse over reverse"] == "wrong" for mode in ("graph", "eager"))


@pytest.mark.thorough
def test_nan_at_the_point_is_not_finite(measured):
    record = measured(lambda x: x + tf.sqrt(x**4), [0.0], same=lambda x: x + x**2)
    assert verdicts(record)["graph: reverse"] == "not finite"
    assert record["truth"] == "closed form"


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize(
    ("call", "derivatives", "said"),
    [
        (tf.abs, 2, "do not agree"),
        (lambda x: x * tf.abs(x) + x, 2, "second differences to both sides do not agree"),
        (lambda x: x * tf.abs(x) + x, 1, ""),
        (lambda x: x * x + x, 1, "it has a second derivative"),
        (lambda x: x * x + x, 0, "it has a derivative"),
        (lambda x: x * x + x, 2, ""),
        (tf.nn.relu, 0, ""),
        (lambda x: tf.sqrt(x), 2, "do not agree"),
    ],
)
def test_differences_dispute_what_a_case_says_of_its_derivatives(measured, call, derivatives, said):
    record = measured(call, [0.0], derivatives=derivatives, modes=("graph",))
    assert said in record["disputed"]
    assert bool(said) == bool(record["disputed"])


def test_slopes_that_agree_along_the_axes_are_no_derivative(measured):
    """x y / |(x, y)| has the slope 0 along both axes and others elsewhere."""
    record = measured(
        lambda x: tf.math.divide_no_nan(x[0] * x[1], tf.sqrt(x[0] ** 2 + x[1] ** 2)), [0.0, 0.0], modes=("graph",)
    )
    assert "along several directions" in record["disputed"]


def test_a_closed_form_of_another_function_is_disputed(measured):
    record = measured(lambda x: x * x, [0.5], same=lambda x: x**2 + 1e-6, modes=("graph",))
    assert record["disputed"] == "the closed form has other values"


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize(
    ("call", "point", "said"),
    [
        (tf.nn.relu, [0.0], "that from the left, 0"),
        (tf.abs, [0.0], "half of each, 0"),
        (lambda x: tf.maximum(x, 0.0), [0.0], "that from the right"),
        (tf.reduce_max, [0.7, 0.7], "half of each"),
        (planted(tf.abs, lambda x, dy: 0.3 * dy), [0.0], "between those of the two sides"),
        (planted(tf.abs, lambda x, dy: 3.0 * dy), [0.0], "none of the slopes"),
        (planted(tf.nn.leaky_relu, lambda x, dy: 0.0 * dy), [0.0], "0, and neither side's"),
        (tf.sqrt, [0.0], "infinite"),
    ],
)
def test_at_a_kink_what_comes_out_is_named(measured, call, point, said):
    found = measured(call, point, derivatives=0, modes=("graph",))["found"]
    assert found["graph: reverse"] == ["named", 0.0, said]


@pytest.mark.thorough
def test_forward_mode_that_differs_at_a_kink_is_named(measured):
    call = planted(tf.nn.relu, lambda x, dy: dy)
    found = measured(call, [0.0], derivatives=0, modes=("graph",))["found"]
    assert found["graph: forward"][2] == "another than in reverse mode"


@pytest.mark.thorough
def test_a_product_that_is_zero_everywhere_is_vacuous(measured, modules):
    """The case that stood here: its product holds 0 · x, and every derivative is 0."""
    call = lambda x: tf.reduce_prod(tf.concat([x, 0 * x[:1]], 0))  # noqa: E731
    record = measured(call, [0.0, 1.0, 2.0], modes=("graph",))
    assert set(record["vacuous"]) == {f"graph: {way}" for way in modules.special.measure.TENSORFLOW}
    assert measured(tf.reduce_prod, [0.0, 1.0, 2.0], modes=("graph",))["vacuous"] == {}


@pytest.mark.dear
def test_of_the_audit_too_what_cannot_fail_is_vacuous(modules):
    """Its derivative is 0 along a product of zeros, and beside it a sum: zeroed, the first would not be noticed."""
    case = modules.cases.Case("zero", lambda x, y: tf.reduce_prod(0 * x, 1) + tf.zeros_like(y[:, 0]), ("real", "real"))
    assert modules.measure.measure(case, ["graph"]).nothing  # constant: the audit says so
    case = modules.cases.Case("cube", lambda x: x**3, ("positive",))
    assert modules.measure.measure(case, ["graph"]).vacuous == {}


def test_what_is_spoilt_is_called_wrong_or_the_case_is_named(modules, monkeypatch):
    """A judge that is blind to one kind of error leaves its cases vacuous, and says to which."""
    case = modules.cases.Case("cube", lambda x: x**3, ("positive",))
    right = modules.measure.check_first

    def blind(result, *rest):
        return right([np.abs(t) for t in result], *rest)

    monkeypatch.setattr(modules.measure, "check_first", blind)
    assert modules.measure.measure(case, ["graph"]).vacuous["graph", "reverse"] == "a sign flipped"


def test_perturbations_change_every_element(modules):
    judge = modules.special.judge
    spoilt = list(judge.perturbations(np.array([2.0, 0.0, -1.0]), False))
    assert [words for words, _ in spoilt][-2:] == ["zeroed", "a sign flipped"]
    assert [np.flatnonzero(other != [2.0, 0.0, -1.0]).tolist() for _, other in spoilt] == [[0], [1], [2], [0, 2], [0]]
    assert judge.vacuous(np.zeros(2), 0.0, 1, 0.0, False) == "element 1 changed by 1%"
    assert judge.vacuous(np.zeros(2), 0.0, 1, 0.0, True) == ""  # declared: TensorFlow's is not 0
    assert judge.vacuous(np.ones(2), 1.0, 1, 0.0, False)  # where the truth is not known


@pytest.mark.thorough
def test_nested_accumulators_disagree_eagerly(measured):
    """TensorFlow's issue 127753; in a graph they do not."""
    record = measured(lambda x: (lambda m: (m * m) * m)(tf.sin(x)), [0.7])
    assert verdicts(record) == {"eager: forward over forward": "wrong"}


@pytest.mark.thorough
def test_the_ways_of_tapelab_are_measured(measured, modules):
    record = measured(lambda x: x * x + x, [0.0, 0.7], modes=("tapelab",))
    assert record["found"] == {}
    assert record["modes"] == ["tapelab"]
    assert len(modules.special.measure.TAPELAB) == 7


def test_modes_that_are_measured_one_after_another_are_joined(modules):
    before = {"name": "a", "modes": ["graph", "XLA"], "disputed": "", "found": {"XLA: reverse": ["wrong", 1.0, ""],
              "graph: reverse": ["wrong", 1.0, ""]}, "vacuous": {"XLA: forward": "zeroed"}}  # fmt: skip
    after = {"name": "a", "modes": ["graph"], "disputed": "", "found": {}, "vacuous": {}}
    joined = modules.special.page.joined(before, after)
    assert set(joined["found"]) == {"XLA: reverse"}
    assert joined["vacuous"] == {"XLA: forward": "zeroed"}
    assert sorted(joined["modes"]) == ["XLA", "graph"]


@pytest.fixture(scope="module")
def results(modules):
    return modules.special.page.load(HERE)


def test_the_page_is_what_the_results_say(modules, results):
    assert (HERE / modules.special.page.NAME).read_text(encoding="utf-8") == modules.special.page.render(results)
    assert (HERE / "special" / "results.json").stat().st_size < 300_000


def test_all_kinds_are_there_and_every_case_was_measured(modules, results):
    named = modules.special.case.named()
    assert set(results["cases"]) == set(named)
    assert len(named) >= 400
    assert {case.kind for case in named.values()} == set(modules.special.case.KINDS)
    for name in named:
        record = modules.special.page.newest(results, name)
        assert record.get("disputed") == "", name
        assert record["modes"] == ["graph", "eager", "XLA"], name


def test_hardly_a_case_is_vacuous_and_none_that_has_a_derivative(modules, results):
    newest = {name: modules.special.page.newest(results, name) for name in results["cases"]}
    vacuous = [name for name, record in newest.items() if record["vacuous"]]
    assert len(vacuous) <= 2
    assert not [name for name in vacuous if newest[name]["derivatives"]]
    assert "## Vacuous" in modules.special.page.render(results)


def test_a_vacuous_case_is_named_on_the_page(modules, results):
    spoilt = json.loads(json.dumps(results))
    name = next(iter(spoilt["cases"]))
    modules.special.page.newest(spoilt, name)["vacuous"] = {"graph: reverse": "zeroed"}
    section = modules.special.page.render(spoilt).partition("## Vacuous")[2].partition("## ")[0]
    assert f"`{name}`: graph: reverse (zeroed)" in section


# What is to be sent upstream.

FAULTS = re.findall(r'^\[\[fault\]\]\nname = "(\w+)"', (HERE / "upstream" / "faults.toml").read_text("utf-8"), re.M)


@pytest.fixture(scope="module")
def faults(modules):
    return {fault["name"]: fault for fault in modules.upstream.pages.table()["fault"]}


@pytest.mark.thorough(keep=6, dear=1)
@pytest.mark.parametrize("name", FAULTS)
def test_a_program_is_short_and_its_assertion_fails_here(modules, faults, name):
    program = faults[name]["program"].strip()
    assert len(program.splitlines()) <= 15
    assert program.splitlines()[-1].startswith("assert ")
    assert " is not " in modules.upstream.programs.run(program)


@pytest.mark.parametrize("name", FAULTS)
def test_a_page_holds_program_outcome_reason_and_cases(modules, faults, name):
    text = (HERE / "upstream" / f"{name}.md").read_text(encoding="utf-8")
    fault = faults[name]
    assert fault["program"].strip() in text
    assert fault["right"] in text
    assert "AssertionError: " in text
    assert "## How far it reaches" in text  # there is none without a case of the audit, or a sentence
    assert all(thread in text for thread in fault["threads"])


def test_every_confirmed_finding_has_a_page_or_a_reason_not_to_be_sent(modules, results, faults):
    pages = modules.upstream.pages
    by_fault, left = pages.of_all(modules.page.load(HERE), results)
    assert left == []
    assert set(by_fault) == {name for name in FAULTS if "reach" not in faults[name]}


def test_a_finding_of_which_nobody_speaks_is_noticed(modules):
    record = {"found": {"graph: reverse": ["wrong", 1.0, ""]}, "modes": ["graph"], "kind": "a tie", "derivatives": 2}
    points = {"versions": {"9.9": {}}, "cases": {"a new kind: new": {"9.9": record}}}
    assert modules.upstream.pages.of_all({}, points)[1] == ["a new kind: new"]


def test_the_pages_are_what_the_data_say(modules, results, tmp_path):
    (tmp_path / "measured.json").write_text((HERE / "upstream" / "measured.json").read_text("utf-8"), "utf-8")
    modules.upstream.pages.write(modules.page.load(HERE), results, tmp_path)
    written = {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.md")}
    assert written == {path.name: path.read_text("utf-8") for path in (HERE / "upstream").glob("*.md")}
    assert len(written) == len(FAULTS) + 1


def test_a_cure_is_shown_only_if_the_program_holds_with_it(modules, monkeypatch):
    programs = modules.upstream.programs

    def right(x):
        return 2 * x

    fault = {"operation": "Any", "program": "import math\nassert math.tau < 5, 'tau is not 4'"}

    def cures(value):
        def cure(operation):
            patch = pytest.MonkeyPatch.context()
            patch_of = patch.__enter__()

            class Applied:
                def __enter__(self):
                    patch_of.setattr("math.tau", value)

                def __exit__(self, *rest):
                    patch.__exit__(None, None, None)

            return right, Applied()

        return cure

    monkeypatch.setattr(programs, "cure", cures(4.0))
    found = programs.measured(fault)
    assert found["says"] == "tau is not 4"
    assert found["cure"].startswith("def right(x):")
    monkeypatch.setattr(programs, "cure", cures(6.0))
    assert "cure" not in programs.measured(fault)


def test_the_unit_test_of_a_page_fails_as_the_program_does(modules, faults):
    text = modules.upstream.pages.unit_test(faults["celu_at_zero"])
    names = {"__name__": "planted"}
    exec(compile(text, "<test>", "exec"), names)
    case = names["CeluAtZeroTest"]("testGradient")
    result = case.run()
    assert len(result.failures) == 1
    assert not result.errors
