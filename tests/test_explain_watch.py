"""`Watch` stops `fit` at the step that went wrong and explains it; otherwise fit is as it was."""

import gc

from tapelab import runtime
from tapelab.explain import Watch

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)
layers = tf.keras.layers
X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = np.abs(X[:, :1])
BAD = X.copy()
BAD[40] = 0.0  # in the third batch of 16


def compiled(*parts, optimizer="sgd", loss="mse", **options):
    model = tf.keras.Sequential([tf.keras.Input((8,)), *parts], name="net")
    model.compile(optimizer, loss, **({"jit_compile": False} | options))
    return model


def normalised(**options):
    """Divides by each example's norm, which is 0 for a row of zeros: the loss is NaN."""
    scale = layers.Lambda(lambda v: v / tf.reduce_sum(v**2, axis=1, keepdims=True))
    return compiled(scale, layers.Dense(4, "tanh", name="hidden"), layers.Dense(1, name="last"), **options)


def watched_fit(model, x=BAD, y=Y, **options):
    said = []
    watch = Watch(**({"every": None} | options.pop("watch", {})), report=said.append)
    model.fit(x, y, **({"batch_size": 16, "shuffle": False, "verbose": 0} | options), callbacks=[watch])
    return watch, "\n".join(said)


def batches():
    for i in range(0, 64, 16):
        yield BAD[i : i + 16], Y[i : i + 16]


DATASET = tf.data.Dataset.from_tensor_slices((BAD, Y)).batch(16)
KINDS = {
    "plain": ({}, {}),
    "xla, weights": ({"jit_compile": True}, {"sample_weight": np.full(64, 2.0)}),
    "several steps, dataset": ({"steps_per_execution": 3}, {"x": DATASET, "y": None, "batch_size": None}),
    "eager, generator": ({"run_eagerly": True}, {"x": batches, "y": None, "batch_size": None}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_stops_at_the_bad_step_and_explains_it(kind):
    options, given = KINDS[kind]
    model = normalised(**options)
    given = {name: value() if value is batches else value for name, value in given.items()}
    watch, said = watched_fit(model, **given)
    assert watch.step == 2
    assert [step for step, _, _ in watch.recent] == [0, 1, 2]
    assert np.isnan(watch.diagnosis.loss)
    assert {one.status for one in watch.diagnosis.variables} == {"not finite"}
    assert {one.code for one in watch.diagnosis.variables} <= {"zero_over_zero", "division_by_zero"}
    assert watch.diagnosis.variables[0].line.text.startswith("scale = layers.Lambda(")
    assert said == watch.story
    assert said.startswith(
        "Watch stopped the training: step 2 made the loss or a weight not finite.\nBefore it: step 0"
    )
    assert model.stop_training


def test_explains_with_the_weights_and_the_batch_of_that_step():
    model = normalised()
    before = []

    class Recorder(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            before.append([np.linalg.norm(variable) for variable in model.trainable_variables])

    watch = Watch(every=None, report=lambda text: None)
    model.fit(BAD, Y, batch_size=16, shuffle=False, verbose=0, callbacks=[Recorder(), watch])
    assert len(before) == 3
    assert [one.weight_norm for one in watch.diagnosis.variables] == pytest.approx(before[2], rel=1e-5)
    assert np.isnan(model.trainable_variables[0]).all()  # what the step left is left


def test_weights_that_turn_bad_a_step_before_the_loss():
    root = layers.Lambda(lambda v: tf.sqrt(tf.maximum(v, 0.0)))
    model = compiled(
        root, layers.Dense(1, use_bias=False, name="last"), loss=lambda y, p: tf.sqrt(tf.reduce_mean(p**2))
    )
    x = X.copy()
    x[16:32] = -1.0  # the prediction is 0, and so is the loss, whose gradient is NaN
    watch, _ = watched_fit(model, x)
    assert watch.step == 1
    assert watch.diagnosis.loss == 0.0
    assert watch.diagnosis["last/kernel"].status == "not finite"
    assert watch.diagnosis["last/kernel"].code == "root_at_zero"
    # The last step of all, after which no loss can tell.
    model = compiled(
        root, layers.Dense(1, use_bias=False, name="last"), loss=lambda y, p: tf.sqrt(tf.reduce_mean(p**2))
    )
    watch, _ = watched_fit(model, x[:32], Y[:32])
    assert watch.step == 1


def test_a_diverging_training_is_told_as_such():
    """https://datascience.stackexchange.com/questions/15962"""
    cubed = layers.Lambda(lambda v: v**3)
    model = compiled(layers.Dense(16, "relu"), layers.Dense(1), cubed, optimizer=tf.keras.optimizers.SGD(5.0))
    watch, said = watched_fit(model, np.tile(X, (3, 1)), np.tile(Y, (3, 1)))
    assert watch.step >= 2
    assert "The training diverges: the gradient's norm was" in said
    assert "The learning rate (5) is too large" in said
    norms = [norm for _, _, norm in watch.recent[:-1]]
    assert norms == sorted(norms)


def test_samples_give_the_reason_for_each_missing_gradient():
    model = compiled(layers.Dense(4, name="first"), layers.Lambda(tf.round), layers.Dense(1, name="last"))
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        watch, said = watched_fit(model, X, watch={"every": 2}, epochs=2)
    assert [step for step, _ in watch.samples] == [0, 2, 4, 6]
    assert {one.name: one.code for one in watch.samples[0][1].sick} == {
        "first/kernel": "not_differentiable",
        "first/bias": "not_differentiable",
    }
    assert said.count("Watch, step") == 1  # what is known is not said again
    assert "Round passes no gradient" in said
    assert watch.story == ""
    assert watch.step is None


def test_training_is_the_same_with_and_without():
    results = []
    for callbacks in ([], [Watch(every=3, report=lambda text: None)]):
        tf.keras.utils.set_random_seed(1)
        parts = layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)
        model = compiled(*parts, loss="mae")
        history = model.fit(X, Y, batch_size=24, epochs=2, verbose=0, callbacks=callbacks)
        results.append([*history.history["loss"], *(value for one in model.variables for value in np.ravel(one))])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


class Failing(tf.keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise self.error


@pytest.mark.thorough
def test_the_model_is_put_back_also_after_an_error_and_an_interrupt():
    model = normalised()
    model.fit(X, Y, batch_size=16, verbose=0)
    function, step = model.train_function, model.train_step
    watched_fit(model, X)
    assert model.train_function is function
    for error in (ZeroDivisionError(), KeyboardInterrupt()):
        try:
            model.fit(X, Y, batch_size=16, verbose=0, callbacks=[watch := Watch(every=None), Failing(error)])
        except (ZeroDivisionError, KeyboardInterrupt):
            assert model.train_function is not function
        error.__traceback__ = None
        gc.collect()
        assert model.train_function is function
        assert watch.step is None
    assert model.train_step == step
    # An error inside the step itself, and a fit without the callback while the error is still held.
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="incompatible"):
        model.fit(X[:, :3], Y, batch_size=16, verbose=0, callbacks=[Watch(every=None)])
    assert model.train_function is function
    with pytest.raises(ZeroDivisionError) as held:
        model.fit(X, Y, batch_size=16, verbose=0, callbacks=[Watch(every=None), Failing(ZeroDivisionError())])
    model.fit(X, Y, batch_size=16, verbose=0)
    assert model.train_function is function
    del held


class OwnStep(tf.keras.Model):
    def __init__(self):
        super().__init__(name="own")
        self.last = layers.Dense(1)

    def call(self, x):
        return self.last(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            distance = tf.sqrt(tf.reduce_sum(x**2, axis=1, keepdims=True))
            loss = tf.reduce_mean(tf.math.log(distance) * (self(x) - y) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"my_loss": loss}


def test_a_train_step_of_ones_own():
    model = OwnStep()
    model.compile("sgd", jit_compile=False)
    watch, _ = watched_fit(model)
    assert watch.step == 2
    assert {one.code for one in watch.diagnosis.sick} == {"log_of_zero"}
    assert watch.diagnosis.sick[0].line.text.startswith("loss = tf.reduce_mean(tf.math.log(distance)")


def test_a_step_that_is_in_order_when_run_again_is_said_to_be():
    model = compiled(layers.Dense(1))
    watch = Watch(every=None, report=lambda text: None)
    watch.set_model(model)
    model.make_train_function()
    model.train_function = lambda iterator: (list(iterator), {"loss": np.float32("nan")})[1]
    watch.on_train_begin()
    watch.on_train_batch_begin(0)
    model.train_function(iter([(tf.constant(X), tf.constant(Y))]))
    assert "Run again eagerly, the step is in order, so it cannot be explained." in watch.story
    assert watch.diagnosis


def test_what_is_not_possible_is_refused():
    with pytest.raises(ValueError, match="expected a number of steps"):
        Watch(every=0)
    with pytest.raises(ValueError, match="at least 2"):
        Watch(remember=1)
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = compiled(layers.Dense(1))
    with pytest.raises(ValueError, match=r"does not work under a tf\.distribute strategy"):
        model.fit(X, Y, verbose=0, callbacks=[Watch()])
