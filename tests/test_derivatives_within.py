"""What is around a call: a tf.function that AutoGraph converts, and open tapes."""

import logging
import re
import sys
import traceback
from functools import partial
from pathlib import Path

import tapelab
from tapelab.derivatives import hessian, hvp, value_and_gradient
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import numpy as np
import pytest

PACKAGE = str(Path(tapelab.__file__).parent)  # a checkout, with what is installed in it, may have its name
X = tf.constant([0.4, -0.3, 0.6], tf.float64)
W = tf.constant([[0.4, -0.1, 0.2], [0.0, 0.3, -0.5], [0.6, 0.2, 0.1]], tf.float64)


def layer(x):
    return tf.tanh(tf.linalg.matvec(W, x)) ** 3


def smooth(x):
    return tf.reduce_sum(layer(x))


def branching(x):
    if tf.reduce_sum(x) > 0:  # a graph has this from AutoGraph alone
        return tf.reduce_sum(x**3)
    return tf.reduce_sum(x**2)


@pytest.fixture
def log():
    """What TensorFlow's logger says."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    tf.get_logger().addHandler(handler)
    yield said
    tf.get_logger().removeHandler(handler)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("make", [value_and_gradient, hessian])
def test_a_tf_function_does_not_convert_the_library(make, log):
    def looked_at(x):
        generated = {frame.name for frame in traceback.extract_stack() if "autograph_generated" in frame.filename}
        assert generated <= {"tf__step", "tf__wrapper", "tf__looked_at"}
        return smooth(x)

    transform = make(looked_at)

    @tf.function
    def step(x):
        return transform(x), transform.plan(x).mode

    found, _ = step(X)
    tf.nest.map_structure(lambda one, other: np.testing.assert_allclose(one, other), found, transform(X))
    assert not [line for line in log if "AutoGraph" in line]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("autograph", [True, False])
def test_the_users_function_is_converted_where_it_needs_it(autograph):
    gradient = value_and_gradient(branching)

    @tf.function(autograph=autograph)
    def step(x):
        return gradient(x)[1]

    np.testing.assert_allclose(step(X), 3 * X**2)
    np.testing.assert_allclose(step(-X), -2 * X)


def calls(f):
    """The files of the library's own Python functions that a call of f runs, one for each call."""
    files = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.append(Path(frame.f_code.co_filename).relative_to(PACKAGE))

    sys.setprofile(note)
    try:
        f()
    finally:
        sys.setprofile(None)
    return files


NESTED = {f"layer_{number}": {"b": X, "w": X} for number in range(5)}
# What they run is in proportion to the time: 35 of them are 8 µs. Each has room for one or two more.
WARM = {
    "a gradient": (value_and_gradient(smooth), (X,), 37),
    "a product": (partial(hvp(smooth), vector=X), (X,), 38),
    "with a number": (value_and_gradient(lambda x, power: tf.reduce_sum(x**power)), (X, 3.0), 42),
    "of ten tensors": (
        value_and_gradient(lambda p: tf.add_n([smooth(w["w"] * w["b"]) for w in p.values()])),
        (NESTED,),
        85,
    ),
}


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("name", WARM)
def test_a_call_that_has_been_compiled_runs_little_python(name):
    transform, arguments, most = WARM[name]
    transform(*arguments)
    assert len(calls(lambda: transform(*arguments))) <= most


def test_a_first_hessian_takes_the_way_of_the_picture():
    weights = [tf.Variable(tf.random.stateless_normal(shape, [0, 1])) for shape in ((8, 16), (16, 16), (16, 6))]
    x = tf.random.stateless_normal((64, 8), [0, 2])
    loss = lambda x: tf.reduce_mean((tf.tanh(tf.tanh(x @ weights[0]) @ weights[1]) @ weights[2]) ** 2)  # noqa: E731
    way = calls(lambda: hessian(loss, wrt=weights)(x))
    assert len(way) <= 6000
    own = {path.relative_to("derivatives") for path in way if path.parts[0] == "derivatives"} - {Path("__init__.py")}
    assert len(own) == 12
    picture = Path(__file__).parents[1].joinpath("site", "_static", "hessian.svg").read_text("utf-8")
    assert {path.name for path in own if path.parent == Path()} == set(
        re.findall(r"\w+\.py", re.findall(r"</desc>.*", picture, re.DOTALL)[0])
    )
    assert f"wrong/ ({len([path for path in own if path.parent == Path('wrong')])} files)" in picture


def test_a_tape_that_watches_what_the_function_reads_counts():
    weights = tf.Variable(W)
    rows = hessian(lambda x: tf.reduce_sum(tf.tanh(tf.linalg.matvec(weights, x)) ** 3), chunk_size=2)
    rows(X)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(rows(X))

    def of(value):
        weights.assign(value)
        return np.sum(rows(X))

    found = tape.gradient(total, weights)
    np.testing.assert_allclose(found, np.squeeze(numerical_jacobian(of, W.numpy())), atol=1e-8)
