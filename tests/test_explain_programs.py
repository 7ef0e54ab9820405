"""Programs to be explained, which are data: `programs/*.toml` holds the text of each, what is asked, and what is right.

A table of a program has these keys; those that are not there are not asked.

    program   the text. A line that an answer may name ends with "# here".
    ask       target and source, as they are written in a call of `explain`: "y, x" if left out
    code      the cause. Without it nothing is wrong, and no alarm may be raised.
    symptom   what the gradient is, unless it is None
    op        the operation
    healthy   true where a cause is named, and is no fault
    certain   false where the cause is probable

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
    """Run a program as a cell of a notebook, so that its lines are known. Returns the answer to its question."""
    text = case["program"]
    file = f"<ipython-input-program-{hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {"__name__": "__main__", "math": math, "tf": tf, "np": np, "keras": keras, "ExplainTape": ExplainTape}
    exec(compile(text, file, "exec"), names)
    return eval(f"explain(tape, {case.get('ask', 'y, x')})", names | {"explain": explain})


def check(room, case):
    """Assert that the answer is a right one, in each of what is asked."""
    answer = answer_to(case)
    healthy = None if room == "missing" else case.get("healthy", "code" not in case)
    assert (answer.exists, answer.healthy) == (room != "missing", healthy), str(answer)
    if "code" in case:
        found = answer.remarks if answer.code == "exists" else (answer.code,)
        assert set(found) & set(listed(case["code"])), str(answer)
        marked = [number for number, line in enumerate(case["program"].splitlines(), 1) if line.endswith(MARK)]
        assert (answer.line and answer.line.number) in (marked or [None]), str(answer)
        assert answer.fix or healthy
        assert answer.certain is case.get("certain", True), str(answer)
    if "symptom" in case:
        assert answer.symptom in listed(case["symptom"]), str(answer)
    if "op" in case:
        assert re.split(r"\W", answer.op)[0] in listed(case["op"]), str(answer)


@each("missing", "values", "rivals")
def test_the_answer_is_right(room, name):
    check(room, ROOMS[room][name])


@pytest.mark.thorough(keep=20)
@each("unseen")
def test_the_answer_to_a_program_of_somebody_else_is_right(room, name):
    check(room, ROOMS[room][name])
