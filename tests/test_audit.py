"""The audit of TensorFlow's derivatives finds what is planted, loses a case alone, and its page says what it found."""

import argparse
import sys
from pathlib import Path

from tapelab.runtime import tf

import pytest

HERE = Path(__file__).parents[1] / "ci" / "derivative_audit"
# A worker that measures nothing: it dies, hangs or answers by the name.
WORKER = """import json, os, sys, time
for name in json.load(sys.stdin)[1]:
    print(json.dumps({"start": name}), flush=True)
    os.abort() if name == "dies" else time.sleep(600) if name == "hangs" else None
    print(json.dumps({"name": name, "modes": ["graph"], "found": []}), flush=True)"""


@pytest.fixture(scope="module")
def audit():
    """The program's modules, which import each other by plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        import audit
        import cases
        import measure

        yield argparse.Namespace(audit=audit, cases=cases, measure=measure)
        for name in ("audit", "cases", "measure", "by_hand"):
            sys.modules.pop(name, None)


def planted(slope):
    """A sine with a gradient that is written by hand."""

    @tf.custom_gradient
    def function(x):
        return tf.sin(x), lambda dy: dy * slope(x)

    return function


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (tf.sin, {}),
        (planted(lambda x: 1.1 * tf.cos(x)), {"reverse": "wrong", "reverse over reverse": "wrong"}),
        (planted(lambda x: tf.stop_gradient(tf.cos(x))), {"reverse over reverse": "wrong"}),
        (lambda x: tf.sin(x) * tf.stop_gradient(x), {"reverse": "wrong", "reverse over reverse": "wrong"}),
        (planted(lambda x: tf.cos(x) * float("nan")), {"reverse": "not finite", "reverse over reverse": "not finite"}),
    ],
    ids=["right", "wrong by a tenth", "wrong in second order alone", "a stopped gradient", "NaN"],
)
def test_what_is_planted_is_found(audit, call, expected):
    record = audit.measure.measure(audit.cases.Case("planted", call, ("positive",)), ["graph"])
    found = {way: entry["verdict"] for entry in record["found"] for way in entry["ways"]}
    assert {way: verdict for way, verdict in found.items() if not way.startswith("forward")} == expected


def test_a_case_that_aborts_or_hangs_loses_itself_alone(audit, tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    worker = [sys.executable, str(tmp_path / "worker.py")]
    records = list(audit.audit.measure(["a", "dies", "b", "hangs", "c"], ["graph"], worker, 5.0))
    assert [record["name"] for record in records] == ["a", "dies", "b", "hangs", "c"]
    assert ["aborts" in record for record in records] == [False, True, False, True, False]


def test_the_page_is_what_the_results_say_and_each_wrong_derivative_has_its_reason(audit):
    results = audit.audit.load()
    page = audit.audit.page(results)
    assert audit.audit.PAGE.read_text(encoding="utf-8") == page
    (row,) = (line for line in page.splitlines() if line.startswith("| `tf.nn.moments`"))
    assert "second order wrong by 66 %" in row
    assert "stops the gradient of the mean" in row
    assert "| nobody has confirmed it |" not in page
