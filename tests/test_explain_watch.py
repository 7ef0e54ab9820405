"""`Watch` stops `fit` at the step that went wrong and explains it; otherwise fit is as it was."""

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


@pytest.mark.thorough(keep=2, dear=1)
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
    first, after, rows, before = said.split("\n")[:4]
    assert first == "Watch stopped the training: step 2 made the loss or a weight not finite."
    assert after == "Not finite after it: loss, hidden/kernel, hidden/bias, last/kernel, last/bias."
    assert watch.rows == [8]
    assert rows == "Without row 8 of the batch the step is in order."
    assert before.startswith("Before it: step 0")
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


@pytest.mark.dear
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


@pytest.mark.parametrize(("start", "end", "told"), [(0.01, 0.0, True), (0.0, 0.01, False)])
def test_a_rate_that_a_schedule_brought_to_0_is_said_and_one_that_begins_there_is_not(start, end, told):
    schedule = tf.keras.optimizers.schedules.PolynomialDecay(start, decay_steps=2, end_learning_rate=end)
    model = compiled(layers.Dense(1), optimizer=tf.keras.optimizers.Adam(schedule))
    _, said = watched_fit(model, x=X, epochs=2, watch={"every": 3})
    assert ("The learning rate is 0" in said) == bool(said) == told
    assert int(model.optimizer.iterations) == 8


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


@pytest.mark.thorough
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
    """An error of another callback says nothing to `Watch`: then the next fit puts the model back."""
    model = normalised()
    model.fit(X, Y, batch_size=16, verbose=0)
    function, step = model.train_function, model.train_step
    watched_fit(model, X)
    assert model.train_function is function
    for error in (ZeroDivisionError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            model.fit(X, Y, batch_size=16, verbose=0, callbacks=[watch := Watch(every=None), Failing(error)])
        assert model.train_function is not function
        model.fit(X, Y, batch_size=16, verbose=0)
        assert model.train_function is function
        assert watch.step is None
    assert model.train_step == step
    # An error inside the step itself.
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="incompatible"):
        model.fit(X[:, :3], Y, batch_size=16, verbose=0, callbacks=[Watch(every=None)])
    assert model.train_function is function


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


class OnlyX(tf.keras.Model):
    """Keras's own idiom for GANs: fit hands over x alone. Its gradients may be collected in a list."""

    def __init__(self, collect_over=1):
        super().__init__(name="only_x")
        self.first, self.last = layers.Dense(4, "relu"), layers.Dense(1)
        self.collect_over, self.counted = collect_over, tf.Variable(0, trainable=False)
        self.collected = []

    def build(self, shape):
        self.first.build(shape)
        self.last.build((None, 4))
        self.collected = [tf.Variable(tf.zeros_like(one), trainable=False) for one in self.trainable_variables]

    def call(self, x):
        return self.last(self.first(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x) ** 2)
        for total, one in zip(self.collected, tape.gradient(loss, self.trainable_variables), strict=True):
            total.assign_add(one)
        is_full = tf.cast(self.counted.assign_add(1) % self.collect_over == 0, tf.float32)
        for variable, total in zip(self.trainable_variables, self.collected, strict=True):
            variable.assign_sub(tf.where(is_full > 0, 0.01 * total, tf.zeros_like(total)))
            total.assign(tf.where(is_full > 0, tf.zeros_like(total), total))
        return {"loss": loss}


def relu(**options):
    """Hides a NaN from the loss: the weights alone show it."""
    return compiled(layers.Dense(4, "relu", name="hidden"), layers.Dense(1, name="last"), **options)


def only_x(**options):
    model = OnlyX(**options)
    model.compile("sgd", jit_compile=False)
    return model


POISONED = np.random.default_rng(0).normal(size=(12 * 16, 8)).astype("float32")
POISONED[5 * 16 + 3, 2] = np.nan
TARGETS = np.abs(POISONED[:, :1])
TARGETS[5 * 16 + 3] = 0.0
COLLECTING = {"learning_rate": 0.01, "gradient_accumulation_steps": 4}
POISON = {
    "plain": (relu, {}, {}),
    "adam": (lambda: relu(optimizer="adam"), {}, {}),
    "xla": (lambda: relu(jit_compile=True), {}, {}),
    "several steps": (lambda: relu(steps_per_execution=4), {}, {}),
    "eager": (lambda: relu(run_eagerly=True), {}, {}),
    "collected by Keras": (lambda: relu(optimizer=tf.keras.optimizers.SGD(**COLLECTING)), {}, {}),
    "collected by Keras, xla": (
        lambda: relu(optimizer=tf.keras.optimizers.Adam(**COLLECTING), jit_compile=True),
        {},
        {},
    ),
    "mixed precision": (lambda: in_mixed_precision(relu), {}, {}),
    "x alone": (only_x, {"y": None}, {}),
    "x alone, collected in a list": (lambda: only_x(collect_over=4), {"y": None}, {}),
    "remembers little": (relu, {}, {"remember": 2}),
}


def in_mixed_precision(make):
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        return make()
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("kind", POISON)
def test_a_nan_in_the_input_is_found_in_its_step_row_and_feature(kind):
    make, given, options = POISON[kind]
    model = make()
    watch, said = watched_fit(model, **({"x": POISONED, "y": TARGETS} | given), watch=options)
    assert watch.step == 5
    assert watch.rows == [3]
    assert "Its batch was not finite as it came in: x[3, 2] is NaN (row 3 of the batch, feature 2)." in said
    assert "Without row 3 of the batch the step is in order." in said
    assert "could not be run again" not in said
    assert [step for step, _, _ in watch.recent] == list(range(6 - options.get("remember", 4), 6))
    assert all(np.isfinite(norm) for _, _, norm in watch.recent[:-1])


def test_a_missing_value_that_does_no_harm_is_mentioned_once():
    mask = layers.Lambda(lambda v: tf.where(tf.math.is_nan(v), 0.0, v))
    x = POISONED.copy()
    x[100, 1] = np.nan
    watch, said = watched_fit(compiled(mask, layers.Dense(1)), x, TARGETS)
    assert watch.step is None
    assert watch.story == ""
    assert said.startswith("Watch, step 5: the batch is not finite as it comes in: x[3, 2] is NaN (row 3 ")
    assert said.count("Watch") == 1


def test_a_sum_that_overflows_is_no_step_that_went_wrong():
    model = compiled(layers.Dense(4, name="large", trainable=False), layers.Lambda(lambda v: 0.0 * v), layers.Dense(1))
    model.layers[0].set_weights([np.full((8, 4), 3e38), np.zeros(4)])
    watch, said = watched_fit(model, np.ones((64, 8), "float32") * 1e-3)
    assert (watch.step, said) == (None, "")


def test_no_step_is_named_that_did_nothing():
    class Spoiler(tf.keras.callbacks.Callback):
        def __init__(self, at):
            super().__init__()
            self.at = at

        def on_train_batch_begin(self, batch, logs=None):
            if batch == self.at:
                self.model.layers[0].bias.assign([np.nan] * 4)

    for at, when in ((0, "before the first step"), (2, "after step 1 and before step 2")):
        said, watch = [], Watch(every=None, report=lambda text: said.append(text))  # noqa: B023
        relu().fit(X, Y, batch_size=16, shuffle=False, verbose=0, callbacks=[Spoiler(at), watch])
        assert watch.step is None
        assert watch.diagnosis is None
        assert said == [watch.story]
        assert f"hidden/bias became not finite {when}." in watch.story


def test_a_step_that_is_in_order_when_run_again_is_said_to_be():
    """The loss is bad in the compiled step alone."""
    model = OwnStep()
    model.train_step = lambda data: {"loss": tf.constant(1.0 if tf.executing_eagerly() else np.nan)}
    model.compile("sgd", "mse", jit_compile=False)
    type(model).train_step, own = tf.keras.Model.train_step, type(model).train_step
    try:
        watch, said = watched_fit(model, X)
    finally:
        type(model).train_step = own
    assert watch.step == 0
    assert "Run again eagerly, the step is in order, so it cannot be explained." in said
    assert watch.diagnosis


def test_a_step_whose_update_overflows():
    """The gradient is finite, and the rate makes it infinite."""
    model = relu(optimizer=tf.keras.optimizers.SGD(3e38))
    watch, said = watched_fit(model, 10 * X)
    assert watch.step == 0
    assert "Not finite after it: " in said


def test_what_is_not_possible_is_refused():
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = compiled(layers.Dense(1))
    with pytest.raises(ValueError, match="does not work under a MirroredStrategy"):
        model.fit(X, Y, verbose=0, callbacks=[Watch()])


class MadeInTheStep(tf.keras.Model):
    """Its weights are made while the first step is traced."""

    def __init__(self):
        super().__init__(name="late")
        self.last = layers.Dense(1)

    def call(self, x):
        return self.last(tf.sqrt(tf.abs(x)) if x.shape[1] == 8 else x)


@pytest.mark.dear
def test_the_first_step_of_a_model_that_is_not_built():
    model = MadeInTheStep()
    model.compile("sgd", "mse", jit_compile=False)
    x = X.copy()
    x[3, 2] = np.inf
    watch, said = watched_fit(model, x)
    assert (watch.step, watch.rows) == (0, [3])
    assert np.isfinite([one.weight_norm for one in watch.diagnosis.variables]).all()  # from before the step
    assert "x[3, 2] is infinite" in said


@pytest.mark.dear
def test_data_whose_end_is_not_known():
    rows = tf.data.Dataset.from_generator(
        lambda: ((X[i : i + 16], Y[i : i + 16]) for i in range(0, 64, 16)),
        output_signature=(tf.TensorSpec((None, 8)), tf.TensorSpec((None, 1))),
    )
    with_last = rows.map(lambda x, y: (x, tf.where(x == X[63, 0], np.nan, y)))
    watch, _ = watched_fit(relu(steps_per_execution=3), with_last, None, batch_size=None, epochs=3)
    assert watch.step == 3
