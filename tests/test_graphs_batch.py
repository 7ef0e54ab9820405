"""What a program does to the examples of a batch, as `tapelab.graphs.batch` proves it: claims are tried with values."""

from tapelab.graphs.batch import APART, FIXED, LOST, SUMMED, Examples
from tapelab.process.tensorflow import tf

import numpy as np
import pytest
from data_tables import FOLDER, read_table

BATCH = 4
X = np.cos(1.0 + 1.7 * np.arange(BATCH * 6)).reshape(BATCH, 6)
W, IMAGE = np.sin(np.arange(30.0)).reshape(6, 5), np.cos(np.arange(18.0)).reshape(3, 3, 2, 1)
LABELS = np.array([0, 2, 1, 5])
TABLE = np.sin(np.arange(40.0)).reshape(8, 5)


def series(x):
    return tf.reshape(x, [-1, 3, 2])


def images(x):
    return tf.reshape(tf.tile(x, [1, 3]), [-1, 3, 3, 2])


def recurrent(x):
    """A loop over the steps of a series, which gathers its states in a list."""
    steps = tf.unstack(series(x), axis=1)
    found = tf.TensorArray(x.dtype, 3, element_shape=[None, 2])
    stacked = tf.stack(steps)

    def turn(i, state, found):
        state = tf.tanh(state + stacked[i])
        return i + 1, state, found.write(i, state)

    _, _, found = tf.while_loop(lambda i, *_: i < 3, turn, (0, tf.zeros_like(steps[0]), found))
    return tf.transpose(found.stack(), [1, 0, 2])


APART_ALONG_THE_FIRST = read_table("graphs_batch", "APART_ALONG_THE_FIRST", globals())
SUMS = read_table("graphs_batch", "SUMS", globals())
LOSSES = read_table("graphs_batch", "LOSSES", globals())


def followed(f):
    """The state of a function's result, and the state of the examples' own."""
    graph = tf.function(f).get_concrete_function(tf.TensorSpec(X.shape, tf.float64)).graph
    examples = Examples(BATCH)
    examples.begin(graph.inputs[0])
    examples.follow_all(graph)
    return examples.state(graph.outputs[0])


def changed(example):
    x = X.copy()
    x[example] = 0.9 * x[example] - 0.2
    return x


@pytest.mark.parametrize("name", APART_ALONG_THE_FIRST)
def test_what_is_proved_apart_is_apart(name):
    f = APART_ALONG_THE_FIRST[name]
    state = followed(f)
    assert (state.kind, state.axis or 0) == (APART, 0), state
    whole = np.asarray(f(tf.constant(X)))
    for example in range(BATCH):
        other = np.asarray(f(tf.constant(changed(example))))
        rows = len(whole) // BATCH
        elsewhere = np.arange(len(whole)) // rows != example
        np.testing.assert_array_equal(whole[elsewhere], other[elsewhere])


@pytest.mark.parametrize("name", SUMS)
def test_what_is_proved_a_sum_is_one(name):
    """Where two examples change, the result changes by what either alone changes it."""
    f = SUMS[name]
    assert followed(f).kind == SUMMED
    both = changed(1)
    both[2] = changed(2)[2]
    base, one, two, together = (np.asarray(f(tf.constant(x))) for x in (X, changed(1), changed(2), both))
    np.testing.assert_allclose(together - base, (one - base) + (two - base), rtol=1e-9, atol=1e-12)
    assert not np.allclose(base, one)


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_lost_names_the_operation(name):
    f, operation = LOSSES[name]
    state = followed(f)
    assert state.kind == LOST
    assert state.why.startswith(f"{operation} at {FOLDER / 'graphs_batch.toml'}:"), state.why


def test_what_depends_on_no_example_is_fixed():
    assert followed(lambda x: tf.cast(tf.shape(x)[0], tf.float64) * tf.reduce_sum(W)).kind == FIXED
    assert followed(lambda x: tf.zeros_like(x)).kind == FIXED


def test_what_is_written_into_a_variable_is_read_again():
    state = tf.Variable(0.0, dtype=tf.float64)

    def through(x):
        state.assign(tf.reduce_max(x))
        return x * state

    assert followed(through).kind == LOST
    assert followed(tf.function(through)).kind == LOST
    written = tf.function(lambda x: state.assign(tf.reduce_max(x)))
    assert followed(lambda x: (written(x), x * state)[1]).kind == LOST


def test_a_function_that_is_called_with_other_arguments_is_followed_again():
    inner = tf.function(lambda x, y: x * y)
    assert followed(lambda x: inner(x, tf.constant(X)) + inner(tf.constant(X), x)).kind == APART
    assert followed(lambda x: inner(inner(x, x), tf.reverse(x, [0]))).kind == LOST


def test_derivatives_end_where_they_are_stopped():
    graph = tf.function(lambda x: x * tf.stop_gradient(tf.reduce_max(x))).get_concrete_function(
        tf.TensorSpec(X.shape, tf.float64)
    )
    for stops, kind in ((True, APART), (False, LOST)):
        examples = Examples(BATCH, stops=stops)
        examples.begin(graph.inputs[0])
        examples.follow_all(graph.graph)
        assert examples.state(graph.outputs[0]).kind == kind
