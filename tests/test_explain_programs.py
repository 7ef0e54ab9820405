"""Programs to be explained, which are data: `programs/*.toml` holds the text of each, what is asked, and what is right.

A table of a program has these keys; those that are not there are not asked.

    program   the text. A line that an answer may name ends with "# here".
    ask       target and source, as they are written in a call of `explain`: "y, x" if left out
    code      the cause. Without it nothing is wrong, and no alarm may be raised.
    symptom   what the gradient is, unless it is None
    op        the operation
    healthy   true where a cause is named, and is no fault; "unknown" where that is not told
    certain   false where the cause is probable
    cuts      in how many places a gradient that is None is cut
    further   the causes that would be there without this one
    says      words of the answer
    never     words that would be false in it
    fix       how the fix begins, or words of it
    tried     what became of the fix when it was run
    source    the public thread, of a program after one

Where several answers are right, the value is a list.
"""

import re
import textwrap

from tapelab import runtime
from tapelab.explain import CAUSES

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)


def listed(value):
    return [value] if isinstance(value, str) else value


def check(cell, program, exists=True):
    """Assert that the answer is a right one, in each of what is asked, and return it."""
    ran = cell(program["program"], program.get("ask", "y, x"))
    answer, said = ran.answer, str(ran.answer)
    healthy = program.get("healthy", "code" not in program) if exists else None
    healthy = None if healthy == "unknown" else healthy
    assert (answer.exists, answer.healthy) == (exists, healthy), said
    codes = answer.remarks if answer.code == "exists" else (answer.code,)
    if "code" in program:
        assert set(codes) & set(listed(program["code"])), said
        places = {(ran.file, number) for number in ran.marked} or {None}
        assert (answer.line and (answer.line.file, answer.line.number)) in places, said
        assert answer.fix or healthy
        assert answer.certain is program.get("certain", True), said
    if "symptom" in program:
        assert answer.symptom in listed(program["symptom"]), said
    if "op" in program:
        assert re.split(r"\W", answer.op)[0] in listed(program["op"]), said
    assert len(answer.cuts) == program.get("cuts", len(answer.cuts)), said
    assert [cut.code for cut in answer.further] == program.get("further", [cut.code for cut in answer.further]), said
    assert program.get("says", "") in said
    assert not [words for words in program.get("never", ()) if words in said]
    assert program.get("fix", "") in answer.fix
    assert answer.tried == program.get("tried", answer.tried), said
    return answer


@pytest.mark.dear(keep=20)
@pytest.mark.programs("missing")
def test_why_a_gradient_is_none(cell, program):
    check(cell, program, exists=False)


@pytest.mark.dear(keep=30)
@pytest.mark.programs("values", "rivals")
def test_why_a_gradient_is_bad_or_that_it_is_not(cell, program):
    check(cell, program)


@pytest.mark.thorough(keep=8, dear=3)
@pytest.mark.programs("unseen")
def test_programs_of_somebody_else(cell, program):
    check(cell, program)


def mended(program, answer):
    """The text of a program with the printed fix in it: in place of the line, or of a tape's options, or as a line."""
    lines, fix = program["program"].splitlines(), answer.fix.partition("  # ")[0]
    number = answer.line.number - 1
    opening = next(i for i, line in enumerate(lines) if "ExplainTape()" in line)
    if answer.exists:
        old = lines[number]
        lines[number] = textwrap.indent(answer.fix, old[: len(old) - len(old.lstrip())])
    elif answer.code == "used_up":
        lines[opening] = fix
    else:
        made = [i for i, line in enumerate(lines) if line.startswith(f"    {answer.source} = ")]
        lines.insert((made or [opening])[0] + 1, f"    {fix}")
    return "\n".join(lines)


@pytest.mark.thorough(keep=8, dear=4)
@pytest.mark.programs("threads", "asked")
def test_programs_after_public_threads(cell, program):
    """Cause and line are right, and a fix that is printed as one gives a finite gradient where it is written."""
    code = program.get("code", "exists")
    answer = check(cell, program, exists=None if code == "unknown" else code not in CAUSES or code == "exists")
    if program.get("tried") == "works":
        names = cell(mended(program, answer)).names
        target, source = (eval(one, names) for one in program.get("ask", "y, x").split(", "))
        assert np.isfinite(tf.convert_to_tensor(names["tape"].gradient(target, source))).all()
