"""Programs to be explained, which are data: `programs/*.toml` holds the text of each, what is asked, and what is right.

A table of a program has these keys; those that are not there are not asked.

    program   the text. A line that an answer may name ends with "# here".
    ask       target and source, as they are written in a call of `explain`: "y, x" if left out
    code      the cause. Without it nothing is wrong, and no alarm may be raised.
    symptom   what the gradient is, unless it is None
    op        the operation
    healthy   true where a cause is named, and is no fault
    certain   false where the cause is probable
    cuts      in how many places a gradient that is None is cut
    further   the causes that would be there without this one
    says      words of the answer
    fix       how the fix begins, or words of it

Where several answers are right, the value is a list.
"""

import linecache
import math
import re
import tomllib
from pathlib import Path

from tapelab import runtime
from tapelab.explain import ExplainTape, explain

import keras
import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

MARK = "# here"
ROOMS = {
    path.stem: tomllib.loads(path.read_text("utf-8")) for path in Path(__file__).with_name("programs").glob("*.toml")
}


def each(*rooms):
    """A parametrization over the programs of rooms."""
    cases = [(room, name) for room in rooms for name in ROOMS[room]]
    return pytest.mark.parametrize(("room", "name"), cases, ids=[name for _, name in cases])


def listed(value):
    return [value] if isinstance(value, str) else value


def answer_to(case):
    """Run a program as a cell of a notebook, so that its lines are known. Returns the answer and the cell's file."""
    text = f"{case['program']}answer = explain(tape, {case.get('ask', 'y, x')})\n"
    file = f"<ipython-input-program-{hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {
        "__name__": "__main__",
        "math": math,
        "tf": tf,
        "np": np,
        "keras": keras,
        "ExplainTape": ExplainTape,
        "explain": explain,
    }
    exec(compile(text, file, "exec"), names)
    return file, names["answer"]


def check(room, case):
    """Assert that the answer is a right one, in each of what is asked."""
    file, answer = answer_to(case)
    said = str(answer)
    healthy = None if room == "missing" else case.get("healthy", "code" not in case)
    assert (answer.exists, answer.healthy) == (room != "missing", healthy), said
    codes = answer.remarks if answer.code == "exists" else (answer.code,)
    if "code" in case:
        assert set(codes) & set(listed(case["code"])), said
        marked = {(file, number) for number, line in enumerate(case["program"].splitlines(), 1) if line.endswith(MARK)}
        assert (answer.line and (answer.line.file, answer.line.number)) in (marked or {None}), said
        assert answer.fix or healthy
        assert answer.certain is case.get("certain", True), said
    if "symptom" in case:
        assert answer.symptom in listed(case["symptom"]), said
    if "op" in case:
        assert re.split(r"\W", answer.op)[0] in listed(case["op"]), said
    assert len(answer.cuts) == case.get("cuts", len(answer.cuts)), said
    assert [cut.code for cut in answer.further] == case.get("further", [cut.code for cut in answer.further]), said
    assert case.get("says", "") in said
    assert case.get("fix", "") in answer.fix


@each("missing", "values", "rivals")
def test_the_answer_is_right(room, name):
    check(room, ROOMS[room][name])


@pytest.mark.thorough(keep=20)
@each("unseen")
def test_the_answer_to_a_program_of_somebody_else_is_right(room, name):
    check(room, ROOMS[room][name])
