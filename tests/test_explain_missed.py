"""Causes that people meet and that leave a plausible number, each with a twin in which nothing is wrong."""

from tapelab import runtime
from tapelab.explain import ExplainTape, Watch, diagnose, explain

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)
keras = tf.keras
losses, layers = keras.losses, keras.layers

INPUTS, NUMBERS = tf.random.stateless_normal((32, 6), [1, 2]), np.arange(32) % 4


def classifier(last=None):
    return keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(4, last)])


@pytest.mark.parametrize(("last", "sick"), [(None, 4), ("softmax", 0)])
def test_a_model_that_gives_logits_to_a_loss_for_probabilities_has_something_to_mend(last, sick):
    found = diagnose(classifier(last), "sparse_categorical_crossentropy", INPUTS, NUMBERS)
    assert [one.code for one in found.sick] == ["not_probabilities"] * sick, str(found)
    assert ("from_logits=True" in str(found)) == bool(sick)


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


@pytest.mark.dear
@pytest.mark.parametrize("kind", [keras.optimizers.Adam, keras.optimizers.SGD])
def test_a_rate_that_is_too_large_is_told_by_the_loss_of_the_steps_own_batch(kind):
    said = trained(kind(1e3))
    assert "raises the loss of its own batch from" in said
    assert "the learning rate (1000) is too large" in said
    rate = float(said.partition("learning_rate=")[2].split()[0])
    assert 0 < rate < 1e3
    assert "learning rate" not in trained(kind(rate / 10))
