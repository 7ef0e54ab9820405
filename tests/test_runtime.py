"""Session set-up: the import is quiet, the seed seeds everything, bad seeds are refused."""

import os
import subprocess
import sys

from tapelab import runtime

import numpy as np
import pytest


@pytest.mark.thorough
def test_importing_and_starting_writes_nothing():
    code = "from tapelab import runtime; import tensorflow as tf; runtime.start(0); x = tf.ones(3) + 1; "
    if runtime.tf.__version__ >= "2.21":  # before, XLA logs its first compilation whatever it is told
        code += "tf.function(tf.exp, jit_compile=True)(x)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.thorough
@pytest.mark.parametrize("room", ["explain", "exercises"])  # the others have TensorFlow from the runtime
def test_importing_a_room_writes_nothing(room):
    code = f"import tapelab.{room}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert (done.stdout, done.stderr) == ("", "")


QUIET_LOG = """
import os, sys
from tapelab import process, runtime

tf = runtime.tf

def fail():
    try:
        tf.linalg.matvec(tf.ones((2, 3)), tf.ones(4))
    except tf.errors.InvalidArgumentError:
        pass

level = tf.get_logger().level
with process.quiet_log():
    fail()
    tf.get_logger().warning("a warning")
    os.write(2, b"the learner wrote this\\n")
assert tf.get_logger().level == level
os.write(2, b"outside\\n")
fail()
"""


@pytest.mark.thorough
def test_a_quiet_log_holds_back_tensorflows_lines_alone():
    # In a process of its own: TensorFlow stops logging what it has logged often.
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0"}  # so that it logs at all
    command = [sys.executable, "-c", QUIET_LOG]
    run = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=True)
    inside, outside = run.stderr.split("outside\n")
    assert inside == "the learner wrote this\n"
    assert ".cc:" in outside, "the same is logged outside"


def draw():
    import random

    tf = runtime.tf
    return [
        random.random(),
        np.random.random(),
        float(tf.random.normal(())),
        float(tf.reduce_sum(tf.keras.layers.Dense(3)(tf.ones((1, 2))))),
    ]


def test_the_seed_repeats_every_generator():
    runtime.start(5)
    first = draw()
    runtime.start(5)
    assert draw() == first
    runtime.start(6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_tensor_float_32_is_off():
    runtime.tf.config.experimental.enable_tensor_float_32_execution(True)
    runtime.start(0)
    assert not runtime.tf.config.experimental.tensor_float_32_execution_enabled()


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "0", None, True])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(ValueError, match="expected an integer from 0"):
        runtime.start(seed)


def test_the_report_names_device_and_versions():
    report = runtime.report()
    assert report.startswith(("CPU · ", "1 GPU (", "2 GPU ("))
    assert f"TensorFlow {runtime.tf.__version__}" in report
    assert f"Keras {runtime.tf.keras.__version__}" in report
