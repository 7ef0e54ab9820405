"""What a program does to the examples of a batch, as `tapelab.graphs.batch` proves it: claims are tried with values."""

from tapelab.graphs.batch import APART, FIXED, LOST, SUMMED, Examples
from tapelab.process.tensorflow import tf

import numpy as np
import pytest

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


APART_ALONG_THE_FIRST = {
    "a dense layer": lambda x: tf.tanh(x @ W + W[0]),
    "rows of examples, merged and parted": lambda x: tf.reshape(tf.reshape(series(x), [-1, 2]) @ W[:2], [-1, 15]),
    "examples second, and first again": lambda x: tf.transpose(
        tf.cumsum(tf.transpose(series(x), [1, 0, 2])), [1, 2, 0]
    ),
    "attention within an example": lambda x: tf.nn.softmax(series(x) @ tf.transpose(series(x), [0, 2, 1])) @ series(x),
    "a contraction": lambda x: tf.einsum("btf,bsf->bts", series(x), series(x)),
    "padding": lambda x: tf.pad(x, [[0, 0], [1, 2]]),
    "mirrored": lambda x: tf.pad(series(x), [[0, 0], [1, 1], [0, 0]], "REFLECT"),
    "x log y": lambda x: tf.math.xlogy(x, x * x + 1),
    "a slice with a new axis": lambda x: series(x)[:, tf.newaxis, 1:, ..., 0],
    "every second row": lambda x: tf.reshape(x, [-1, 3])[::2],
    "images": lambda x: tf.nn.max_pool2d(tf.nn.conv2d(images(x), IMAGE, 1, "SAME"), 2, 1, "VALID"),
    "pixels to channels": lambda x: tf.nn.space_to_depth(images(x)[:, :2, :2], 2),
    "a table by labels": lambda x: tf.gather(TABLE, tf.argmax(x, 1)),
    "one of several, by labels": lambda x: tf.gather(x, LABELS, axis=1, batch_dims=1),
    "one-hot labels": lambda x: tf.one_hot(tf.argmax(x, 1), 7, dtype=x.dtype) * x[:, :1],
    "cross-entropy": lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, x),
    "eigenvalues": lambda x: tf.linalg.eigvalsh(series(x)[:, :2] + tf.transpose(series(x)[:, :2], [0, 2, 1])),
    "the largest of each": lambda x: tf.math.top_k(x, 2)[0],
    "a function": tf.function(lambda x: tf.tanh(tf.function(lambda y: y @ W)(x))),
    "a branch on a constant": lambda x: tf.cond(tf.reduce_sum(W) > 0, lambda: x @ W, lambda: tf.zeros_like(x @ W)),
    "a loop": recurrent,
    "the same for all": lambda x: tf.zeros_like(x) + 1.0 + 0 * x,
    "group sums": lambda x: tf.transpose(tf.math.unsorted_segment_sum(tf.transpose(x), [0, 0, 1, 1, 1, 2], 3)),
}
SUMS = {
    "a mean": tf.reduce_mean,
    "half the squares": tf.nn.l2_loss,
    "a scaled sum and an offset": lambda x: 3.0 * tf.reduce_sum(x**2) / 7.0 - 1.0,
    "a sum over the first axis": lambda x: tf.linalg.matvec(W, tf.reduce_sum(x @ W, 0)),
    "a weighted sum": lambda x: tf.reduce_sum(W[:4, 0] * tf.reduce_sum(x, 1)),
    "a mean in a function": tf.function(lambda x: tf.reduce_mean(x**2)),
    "one of two sums": lambda x: tf.cond(W[0, 1] > 0, lambda: tf.reduce_sum(x), lambda: tf.constant(0.0, x.dtype)),
}
LOSSES = {
    "minus the mean": (lambda x: x - tf.reduce_mean(x, 0), "Sub"),
    "the root of a mean": (lambda x: tf.sqrt(tf.reduce_mean(x**2)), "Sqrt"),
    "reversed examples": (lambda x: x[::-1] * x, "StridedSlice"),
    "examples in reverse": (lambda x: tf.reverse(x, [0]) * x, "ReverseV2"),
    "the next one's values": (lambda x: tf.roll(x, 1, 0), "Roll"),
    "a softmax over examples": (lambda x: tf.transpose(tf.nn.softmax(tf.transpose(x))), "Softmax"),
    "the first one last": (lambda x: tf.concat([x[1:], x[:1]], 0), "StridedSlice"),
    "two batches side by side": (lambda x: tf.reshape(tf.tile(x, [2, 1]), [-1, 12]), "Tile"),
    "a factor along the wrong axis": (lambda x: x[:, :4] * tf.reduce_sum(x, 1), "Mul"),
    "the largest of all": (lambda x: tf.reduce_max(x, 0) + x, "Max"),
    "attention over the batch": (lambda x: tf.nn.softmax(x @ tf.transpose(x)) @ x, "MatMul"),
    "examples side by side": (lambda x: tf.reshape(tf.transpose(x), [-1, 6]) * x, "Reshape"),
    "a running sum over examples": (lambda x: tf.cumsum(x), "Cumsum"),
    "one example for all": (lambda x: x * x[:1], "StridedSlice"),
    "a branch on the examples": (lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x), "Greater"),
    "a loop that they end": (
        lambda x: tf.while_loop(lambda y: tf.reduce_max(y) < 3, lambda y: (2 * y,), (x,))[0],
        "StatelessWhile",
    ),
    "a loop that mixes them": (
        lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y - tf.reduce_max(y)), (0, x))[1],
        "Max",
    ),
    "a function that mixes them": (tf.function(lambda x: x - tf.reduce_max(x, 0)), "Max"),
}


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


@pytest.mark.thorough(keep=8, dear=4)
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


@pytest.mark.thorough(keep=3)
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


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("name", LOSSES)
def test_what_is_lost_names_the_operation(name):
    f, operation = LOSSES[name]
    state = followed(f)
    assert state.kind == LOST
    assert state.why.startswith(f"{operation} at {__file__}:"), state.why


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
