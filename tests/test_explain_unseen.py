"""The programs of `unseen_programs`, whose author had not seen the explainer. What is still wrong is written down."""

import contextlib
import importlib.util
import inspect
import pathlib
import re
import sys

from tapelab import runtime
from tapelab.explain import ExplainTape, explain

import pytest

runtime.start(seed=0)

MARK = "# <- here"


def load(name):
    """Import a module beside this one. It is registered, so that a tf.function in it finds its source."""
    path = pathlib.Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


programs = load("unseen_programs")

# What explain's symptoms are called in the truths. "silent" is told apart by the code alone.
SYMPTOMS = {"partly zero": "part", "target nan": "target", "target inf": "target"}

# Program → what is wrong in the answer, as of this version. An answer that becomes right or wrong shows here.
WRONG = {}


def marked(program):
    """Return the numbers of the marked lines in a program and in the functions and classes of the module it uses."""
    found, waiting, seen = set(), [program], set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        with contextlib.suppress(OSError, TypeError):
            lines, first = inspect.getsourcelines(one)
            found |= {first + i for i, text in enumerate(lines) if MARK in text}
            names = set(re.findall(r"\w+", "".join(lines)))
            waiting += [
                v for k, v in vars(programs).items() if k in names and getattr(v, "__module__", "") == "unseen_programs"
            ]
    return found


def answered(program, sick):
    """Return the `Explanation` of a program's source, of several of the one at a position."""
    tape, target, source = program(ExplainTape)
    answer = explain(tape, target, source)
    return list(answer.values())[sick] if isinstance(source, (list, tuple)) else answer


def mistakes(name):
    """Return in what an answer differs from the truth: some of "symptom", "code", "op", "line"; "alarm"; a set."""
    program, truth = programs.CASES[name], programs.TRUTHS[name]
    answer = answered(program, truth.sick)
    if not truth.codes:
        return {"alarm"} if answer.healthy is not True else set()
    symptom = SYMPTOMS.get(answer.symptom, answer.symptom)
    is_silent = "silent" in truth.symptoms and answer.code in truth.codes
    right = {
        "symptom": symptom in truth.symptoms or is_silent,
        "code": bool({answer.code, *answer.remarks} & truth.codes),
        "op": not truth.ops or re.split(r"\W", answer.op)[0] in truth.ops,
        "line": answer.line is not None and answer.line.number in marked(program),
    }
    return {key for key, value in right.items() if not value}


def test_every_bad_program_has_a_truth_and_a_marked_line():
    assert set(programs.TRUTHS) == set(programs.CASES)
    for name, program in programs.CASES.items():
        assert bool(marked(program)) == bool(programs.TRUTHS[name].codes) == (not name.startswith("fine_")), name


@pytest.mark.thorough(keep=20)
@pytest.mark.parametrize("name", programs.CASES)
def test_answer_is_right_but_where_it_is_known_not_to_be(name):
    assert mistakes(name) == WRONG.get(name, set())
