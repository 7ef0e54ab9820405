"""Causes that people meet and that leave a plausible number, each with a twin in which nothing is wrong."""

from tapelab import runtime
from tapelab.explain import ExplainTape, Watch, diagnose, explain

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)
keras = tf.keras
losses, layers = keras.losses, keras.layers

LOGITS = tf.Variable([[0.4, -2.0, 3.0], [0.3, 1.0, -1.0]])
SCORES = tf.Variable([[0.5], [2.0]])
CLASSES, HOT, TWO = tf.constant([0, 1]), tf.constant([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), tf.constant([[0.0], [1.0]])
# Name → loss of a source, the source, and what is found: "" where nothing is wrong.
LOSSES = {
    "sparse": (lambda x: losses.sparse_categorical_crossentropy(CLASSES, x), LOGITS, "not_probabilities"),
    "sparse of logits": (
        lambda x: losses.sparse_categorical_crossentropy(CLASSES, x, from_logits=True),
        LOGITS,
        "",
    ),
    "sparse of probabilities": (
        lambda x: losses.sparse_categorical_crossentropy(CLASSES, tf.nn.softmax(x)),
        LOGITS,
        "",
    ),
    "one-hot": (lambda x: losses.CategoricalCrossentropy()(HOT, x), LOGITS, "not_probabilities"),
    "one-hot of probabilities": (lambda x: losses.CategoricalCrossentropy()(HOT, tf.nn.softmax(x)), LOGITS, ""),
    "binary": (lambda x: losses.BinaryCrossentropy()(TWO, x * 1.0), SCORES, "not_probabilities"),
    "binary of probabilities": (lambda x: losses.BinaryCrossentropy()(TWO, tf.sigmoid(x)), SCORES, ""),
    "probabilities as logits": (
        lambda x: tf.nn.sigmoid_cross_entropy_with_logits(TWO, tf.sigmoid(x)),
        SCORES,
        "softmax_twice",
    ),
    "labels -1 and 1": (
        lambda x: losses.BinaryCrossentropy(from_logits=True)(2.0 * TWO - 1.0, x),
        SCORES,
        "labels_outside",
    ),
    "labels -1 and 1 of probabilities": (
        lambda x: losses.BinaryCrossentropy()(2.0 * TWO - 1.0, tf.sigmoid(x)),
        SCORES,
        "labels_outside",
    ),
    "smoothed labels": (
        lambda x: losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)(TWO, x),
        SCORES,
        "",
    ),
    "pixels as labels": (lambda x: tf.nn.softmax_cross_entropy_with_logits(HOT * 255.0, x), LOGITS, "labels_outside"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_was_given_something_else(name):
    loss, x, code = LOSSES[name]
    with ExplainTape() as tape:
        y = tf.reduce_mean(loss(x))
    answer = explain(tape, y, x)
    assert (answer.code, answer.healthy) == ((code, False) if code else ("exists", True)), str(answer)


INPUTS, NUMBERS = tf.random.stateless_normal((32, 6), [1, 2]), np.arange(32) % 4


def classifier(last=None):
    return keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(4, last)])


@pytest.mark.parametrize(("last", "sick"), [(None, 4), ("softmax", 0)])
def test_a_model_that_gives_logits_to_a_loss_for_probabilities_has_something_to_mend(last, sick):
    found = diagnose(classifier(last), "sparse_categorical_crossentropy", INPUTS, NUMBERS)
    assert [one.code for one in found.sick] == ["not_probabilities"] * sick, str(found)
    assert ("from_logits=True" in str(found)) == bool(sick)


@pytest.mark.parametrize(("shift", "advice"), [(1, "pass y - 1"), (-1, "make the last layer larger"), (7, "y - 7")])
def test_class_numbers_out_of_range_are_named(shift, advice):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match=f"from {shift} to {shift + 3}, and the model has 4 outputs; .*{advice}"):
        diagnose(classifier(), loss, INPUTS, NUMBERS + shift)


def changed(how):
    w = tf.Variable(1.0)
    with ExplainTape(persistent=True) as tape:
        with tf.GradientTape() as inner:
            loss = (w - 3.0) ** 2
        how(w, inner.gradient(loss, w))
        query = w**2
    return explain(tape, query, w), explain(tape, loss, w)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (lambda w, g: w.assign_sub(0.1 * g), "assigned_inside"),
        (lambda w, g: w.assign(tf.clip_by_value(w, 0.0, 3.0)), "assigned_inside"),
        (lambda w, g: keras.optimizers.SGD(0.1).apply_gradients([(g, w)]), "assigned_inside"),
        (lambda w, g: w.assign(2.0), "exists"),
        (lambda w, g: None, "exists"),
    ],
    ids=["step", "projection", "optimizer", "constant", "nothing"],
)
def test_a_variable_that_is_changed_inside_the_tape(how, code):
    after, before = changed(how)
    assert (after.code, after.healthy) == (code, code == "exists"), str(after)
    assert (before.code, before.healthy) == ("exists", True), str(before)


def test_a_bias_without_effect_is_healthy_and_said_to_be_so():
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(4, name="before"), layers.BatchNormalization(), layers.Dense(1, name="last")]
    )
    found = diagnose(model, "mse", INPUTS, NUMBERS[:, None])
    assert {one.name for one in found.variables if one.code == "no_effect"} == {"before/bias"}
    assert bool(found)
    assert "before/bias: no effect, by theory." in str(found)


def test_the_bias_of_the_keys_in_attention_has_no_effect():
    attention = layers.MultiHeadAttention(2, 4, name="heads")
    with ExplainTape() as tape:
        y = tf.reduce_mean(attention(INPUTS[None], INPUTS[None]) ** 2)
    answers = explain(tape, y, attention.trainable_variables)
    assert [name for name, one in answers.items() if one.code == "no_effect"] == ["heads/key/bias"]
    assert not answers.sick()


def trained(optimizer):
    said = []
    model = classifier()
    model.compile(optimizer, losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(INPUTS, NUMBERS, batch_size=16, verbose=0, callbacks=[Watch(report=said.append)])
    return "\n".join(said)


@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.SGD])
def test_a_rate_that_is_too_large_is_told_by_the_loss_of_the_steps_own_batch(kind):
    said = trained(kind(1e3))
    assert "raises the loss of its own batch from" in said
    assert "the learning rate (1000) is too large" in said
    rate = float(said.partition("learning_rate=")[2].split()[0])
    assert 0 < rate < 1e3
    assert "learning rate" not in trained(kind(rate / 10))
