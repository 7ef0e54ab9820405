"""The messages that the symptom pages quote are TensorFlow's and Keras' own, word for word."""

import io
import json
import logging
import re
import subprocess
import sys
import tomllib
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

TESTS = Path(__file__).parent
PAGES = TESTS.parent / "site"
PROGRAMS = tomllib.loads((TESTS / "programs" / "messages.toml").read_text("utf-8"))


def quoted(page):
    """The messages in the first column of a page's table of messages."""
    table = (PAGES / page).read_text("utf-8").partition("| The message |")[2].partition("\n\n")[0]
    return [message for row in table.splitlines()[2:] for message in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def said_by(program):
    """All that a program says: its error, warnings, log and output."""
    logged, printed = io.StringIO(), io.StringIO()
    handler, logger = logging.StreamHandler(logged), tf.get_logger()
    logger.addHandler(handler)
    error = ""
    try:
        with warnings.catch_warnings(record=True) as warned, redirect_stdout(printed):
            warnings.simplefilter("always")
            exec(program, {"tf": tf, "np": np})
    except Exception as raised:
        error = str(raised)
    finally:
        logger.removeHandler(handler)
    return "\n".join([error, *(str(one.message) for one in warned), logged.getvalue(), printed.getvalue()])


@pytest.fixture(scope="module")
def said():
    """What each program says, by its name. They run in a fresh process: TensorFlow logs some sentences once in each."""
    code = "import json, test_messages; print(json.dumps(test_messages.all_said()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def all_said():
    return {name: said_by(program) for programs in PROGRAMS.values() for name, program in programs.items()}


@pytest.mark.dear
@pytest.mark.parametrize(
    ("message", "program"),
    [
        (message, name)
        for page, programs in PROGRAMS.items()
        for message, name in zip(quoted(page), programs, strict=True)
    ],
)
def test_it_is_what_tensorflow_says(said, message, program):
    words = ".+".join(re.escape(part) for part in message.split("…"))
    assert re.search(words, said[program], re.DOTALL), said[program]
