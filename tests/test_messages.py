"""The messages that the symptom pages quote are TensorFlow's and Keras' own, word for word."""

import io
import json
import logging
import re
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

TESTS = Path(__file__).parent
PAGES = TESTS.parent / "site"


def no_gradient_at_all():
    tf.keras.optimizers.SGD().apply_gradients([(None, tf.Variable(1.0))])


def a_gradient_missing():
    tf.keras.optimizers.SGD().apply_gradients([(None, tf.Variable(1.0)), (tf.constant(1.0), tf.Variable(1.0))])


def none_in_a_function():
    tf.function(lambda: tf.constant(None))()


def none_as_a_tensor():
    tf.multiply(2.0, None)


def none_printed():
    None.numpy()


def none_times_a_number():
    _ = 0.1 * None


def no_entry():
    x = tf.Variable(tf.ones([1, 2, 2, 3]))
    with tf.GradientTape() as tape:
        y = tf.image.adjust_contrast(x, 2.0)
    tape.gradient(y, x)


def asked_twice():
    x = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        y = x * x
    tape.gradient(y, x)
    tape.gradient(y, x)


def watched_whole_number():
    with tf.GradientTape() as tape:
        tape.watch(tf.constant(1))


def asked_inside():
    x = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        tape.gradient(x * x, x)


def numpy_in_a_function():
    tf.function(lambda x: np.sin(x))(tf.constant(1.0))


def value_in_a_function():
    tf.function(lambda x: x.numpy())(tf.constant(1.0))


def checked():
    tf.debugging.check_numerics(tf.constant(np.nan), "loss")


def all_checked():
    tf.debugging.enable_check_numerics()
    try:
        tf.math.log(tf.constant(-1.0))
    finally:
        tf.debugging.disable_check_numerics()


def ended_by_keras():
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.array([[np.nan]]), np.ones((1, 1)), verbose=0, callbacks=[tf.keras.callbacks.TerminateOnNaN()])


def not_invertible():
    tf.linalg.inv(tf.zeros((2, 2)))


def traced_again():
    function = tf.function(lambda x: x)
    for number in range(6):
        function(number)


def variable_in_a_function():
    tf.function(lambda: tf.Variable(1.0))()


# How each message of a page comes about.
PROGRAMS = {
    "gradient_is_none.md": [
        no_gradient_at_all,
        a_gradient_missing,
        none_in_a_function,
        none_as_a_tensor,
        none_printed,
        none_times_a_number,
        no_entry,
        asked_twice,
        watched_whole_number,
        asked_inside,
        numpy_in_a_function,
        value_in_a_function,
    ],
    "gradient_is_nan_or_zero.md": [checked, all_checked, ended_by_keras, not_invertible],
    "retracing.md": [traced_again, variable_in_a_function],
}


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
            program()
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
    return {program.__name__: said_by(program) for programs in PROGRAMS.values() for program in programs}


@pytest.mark.parametrize(
    ("message", "program"),
    [
        (message, program.__name__)
        for page, programs in PROGRAMS.items()
        for message, program in zip(quoted(page), programs, strict=True)
    ],
)
def test_it_is_what_tensorflow_says(said, message, program):
    words = ".+".join(re.escape(part) for part in message.split("…"))
    assert re.search(words, said[program], re.DOTALL), said[program]
