"""`diagnose` names each planted trouble of a Keras model, and leaves the model as it was."""

from tapelab import runtime
from tapelab.explain import Diagnosis, diagnose

import matplotlib
import numpy as np
import pytest
import tensorflow as tf
from process_texts import read_text

matplotlib.use("Agg")
runtime.start(seed=0)
layers = tf.keras.layers
X = np.random.default_rng(0).normal(size=(16, 8))
Y = np.abs(X[:, :1])


def sequential(*parts):
    return tf.keras.Sequential([tf.keras.Input((8,)), *parts], name="net")


def statuses(diagnosis):
    return [one.status for one in diagnosis.variables]


def healthy():
    return sequential(layers.Dense(16, "tanh", name="first"), layers.Dense(1, name="last"))


def test_a_healthy_model_has_nothing_to_mend():
    found = diagnose(healthy(), "mse", X, Y)
    assert isinstance(found, Diagnosis)
    assert found
    assert statuses(found) == ["fine"] * 4
    assert [one.name for one in found.variables] == ["first/kernel", "first/bias", "last/kernel", "last/bias"]
    assert found["net/first/kernel"] is found["first/kernel"]
    assert "all 4 variables learn" in found.heading
    assert "on 16 examples" in found.heading


def test_numbers_are_those_of_a_plain_tape():
    model = healthy()
    x, y = tf.constant(X, tf.float32), tf.constant(Y, tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    found = diagnose(model, lambda y, prediction: (y - prediction) ** 2, X, Y)
    assert found.loss == pytest.approx(float(loss), rel=1e-5)
    for one, gradient, variable in zip(found.variables, gradients, model.trainable_variables, strict=True):
        assert one.gradient_norm == pytest.approx(float(tf.norm(gradient)), rel=1e-4)
        assert one.weight_norm == pytest.approx(float(tf.norm(variable)), rel=1e-5)
        assert one.size == np.size(variable)
    assert found["first/bias"].ratio is None
    kernel = found["first/kernel"]
    assert kernel.ratio == pytest.approx(kernel.gradient_norm / kernel.weight_norm)


class Rounding(tf.keras.Model):
    def __init__(self):
        super().__init__(name="rounding")
        self.inner, self.outer, self.unused = (
            layers.Dense(4, name="inner"),
            layers.Dense(1),
            layers.Dense(2, name="unused"),
        )
        self.unused.build((None, 4))
        self.own = tf.Variable(1.0, name="own")

    def call(self, x):
        return self.outer(tf.round(self.inner(x)) * self.own)


def test_none_comes_with_reason_line_and_fix():
    found = diagnose(Rounding(), "mse", X, Y)
    assert {one.name: one.code for one in found.sick} == {
        "inner/kernel": "not_differentiable",
        "inner/bias": "not_differentiable",
        "unused/kernel": "unused_variable",
        "unused/bias": "unused_variable",
    }
    line = found["inner/kernel"].line
    assert (line.file, line.text) == (__file__, "return self.outer(tf.round(self.inner(x)) * self.own)")
    assert "own, a tf.Variable, and Keras does not train it" in found.notes[0]
    text = str(found)
    assert text.count("Round passes no gradient") == 1
    assert "inner/kernel, inner/bias: not_differentiable" in text


def test_line_of_diagnose_itself_is_never_blamed():
    model = sequential(layers.Dense(4, "relu", bias_initializer=tf.keras.initializers.Constant(-99.0)), layers.Dense(1))
    found = diagnose(model, "mse", X, Y)
    assert statuses(found) == ["zero", "zero", "zero", "fine"]
    assert found.variables[0].code == "dead_relu"
    assert found.variables[0].line is None
    assert found.variables[0].fix.startswith("layers.LeakyReLU()  # in place of the relu of dense")
    assert [(one.activation, one.units, one.dead) for one in found.layers] == [("relu", 4, 1.0)]
    assert "4 of 4 units dead" in str(found)


def test_nan_in_the_loss():
    model = sequential(layers.Dense(1, name="last"), layers.Lambda(lambda v: tf.math.log(v)))
    found = diagnose(model, "mse", X, Y)
    assert statuses(found) == ["not finite"] * 2
    assert {one.code for one in found.variables} == {"domain"}
    assert found.variables[0].line.text.startswith("model = sequential(layers.Dense(1")
    assert not found
    assert "loss nan" in found.heading


def test_vanishing_is_told_by_comparison():
    deep = sequential(*[layers.Dense(8, "sigmoid") for _ in range(10)], layers.Dense(1))
    found = diagnose(deep, "mse", X, Y)
    assert statuses(found)[:4] == ["vanishing"] * 4
    assert statuses(found)[-4:] == ["fine"] * 4
    first = found.variables[0]
    assert first.code == "vanishing"
    assert "on average, those nearest the loss" in first.sentence
    # As small a gradient everywhere is no comparison: the same loss in another unit.
    small = diagnose(healthy(), lambda y, prediction: 1e-3 * (y - prediction) ** 2, X, Y)
    assert statuses(small) == ["fine"] * 4


def test_exploding():
    grows = tf.keras.initializers.RandomNormal(stddev=4.0, seed=1)
    model = sequential(*[layers.Dense(32, "tanh") for _ in range(2)], layers.Dense(1))
    assert "exploding" not in statuses(diagnose(model, "mse", X, Y))
    model = sequential(
        layers.Dense(8), *[layers.Dense(32, kernel_initializer=grows) for _ in range(6)], layers.Dense(1)
    )
    found = diagnose(model, lambda y, prediction: 1e-6 * prediction, X, Y)
    assert found.variables[0].status == "exploding"
    assert found.variables[0].gradient_norm > 1e4 * found.variables[-1].gradient_norm


def two_outputs(names=("a", "b")):
    inputs = tf.keras.Input((8,))
    hidden = layers.Dense(4, "tanh", name="hidden")(inputs)
    outputs = [layers.Dense(1, name="a")(hidden), layers.Dense(3, "softmax", name="b")(hidden)]
    return tf.keras.Model(inputs, dict(zip(names, outputs, strict=True)) if names else outputs)


def test_several_outputs():
    classes, mse, cross = np.arange(16) % 3, "mse", "sparse_categorical_crossentropy"
    named = diagnose(two_outputs(), {"a": mse, "b": cross}, X, {"a": Y, "b": classes})
    listed = diagnose(two_outputs(None), [mse, cross], X, [Y, classes])
    assert statuses(named) == statuses(listed) == ["fine"] * 6
    both = diagnose(two_outputs(None), tf.keras.losses.MeanSquaredError(), X, [Y, np.zeros((16, 3))])
    assert statuses(both) == ["fine"] * 6
    model = two_outputs()
    model.compile("sgd", {"a": mse}, jit_compile=False)
    found = diagnose(model, None, X, {"a": Y})
    assert statuses(found) == ["fine"] * 4 + ["none"] * 2
    assert {one.code for one in found.sick} == {"unrelated"}
    assert "Nothing leads from b/kernel to the loss." in str(found)


class Stateful(tf.keras.Model):
    """A model with everything that a step changes."""

    def __init__(self):
        super().__init__(name="stateful")
        self.parts = [layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(1)]
        self.calls = tf.Variable(0.0)

    def call(self, x, training=False):
        self.calls.assign_add(1.0)
        for part in self.parts:
            x = part(x, training=training) if isinstance(part, layers.Dropout | layers.BatchNormalization) else part(x)
        return x


class OwnStep(Stateful):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.sqrt(0.0 * self(x, training=True)) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.parts[0].bias.assign_add(tf.ones(4))
        return {"loss": loss}


def state_of(model):
    kept = (*model.variables, *model.metrics_variables, *model.optimizer.variables, model.calls)
    return [np.copy(one) for one in kept]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("kind", "is_trained"), [(Stateful, False), (Stateful, True), (OwnStep, True)])
def test_the_model_is_not_changed(kind, is_trained):
    model = kind()
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
    model(X[:2])
    if is_trained and kind is Stateful:
        model.fit(X, Y, batch_size=8, verbose=0)
    before, built, step = state_of(model), model.optimizer.built, tf.keras.optimizers.Adam.apply_gradients
    found = diagnose(model, None, X, Y)
    after = state_of(model)
    assert len(before) == len(after)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert model.optimizer.built == built
    assert tf.keras.optimizers.Adam.apply_gradients is step
    if kind is OwnStep:
        assert {one.code for one in found.sick} == {"root_at_zero"}
        assert found.sick[0].line.text.startswith("loss = tf.reduce_mean((tf.sqrt(0.0 * self(x")
    else:
        assert found


def test_mixed_precision_is_examined_at_a_scale_that_fits():
    policy = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = sequential(layers.Dense(16, "tanh", name="first"), layers.Dense(1, dtype="float32", name="last"))
        model.compile("adam", "mse", jit_compile=False)
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)
    found = diagnose(model, None, 30 * X, 100 * Y)
    assert found, found
    assert 1 < found.scale < 2**15
    assert f"scaled by {found.scale:g} for mixed precision" in found.notes[-1]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(tf.constant(30 * X, tf.float32)) - 100 * Y) ** 2)
    gradient = tape.gradient(loss, model.trainable_variables)[-1]
    assert found.variables[-1].gradient_norm == pytest.approx(float(tf.norm(gradient)), rel=0.05)


def test_data_come_in_many_kinds():
    expected = diagnose(model := healthy(), "mse", X, Y)
    dataset = tf.data.Dataset.from_tensor_slices((X.astype("float32"), Y.astype("float32"))).batch(16)
    for data in ((tf.constant(X, tf.float32), tf.constant(Y, tf.float32)), (X.tolist(), Y.tolist()), (dataset, None)):
        found = diagnose(model, "mse", *data)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    weighted = diagnose(model, "mse", X, Y, sample_weight=np.zeros(16))
    assert statuses(weighted) == ["zero"] * 4


class Handed(tf.keras.Model):
    """Takes down what its train_step is handed, and collects gradients in a list."""

    def __init__(self):
        super().__init__(name="handed")
        self.last, self.handed, self.collected = (
            layers.Dense(1, name="last"),
            [],
            {"kernel": [tf.Variable(tf.zeros((8, 1)))]},
        )

    def call(self, x):
        return self.last(x)

    def train_step(self, data):
        self.handed.append(tf.nest.map_structure(lambda one: one.shape, data))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(tf.nest.flatten(data)[0]) ** 2)
        self.collected["kernel"][0].assign_add(tape.gradient(loss, self.last.kernel))
        return {"loss": loss}


MANY = tf.data.Dataset.from_tensors((X.astype("float32"), Y.astype("float32"), Y, Y, Y))


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "data", [(X,), ([X, X],), (X, Y), (X, Y, np.ones(16)), ({"a": X, "b": X},), (MANY,)], ids=lambda data: len(data)
)
def test_a_train_step_is_handed_what_fit_hands_it(data):
    model = Handed()
    model.compile("sgd", run_eagerly=True)
    model(X)
    model.fit(*data[:2], batch_size=None if data[0] is MANY else 16, sample_weight=data[2] if len(data) > 2 else None)
    by_fit, collected = model.handed[-1], model.collected["kernel"][0].numpy()
    found = diagnose(model, None, *data[:2], sample_weight=data[2] if len(data) > 2 else None)
    assert model.handed[-1] == by_fit
    assert np.array_equal(model.collected["kernel"][0], collected)
    assert found["last/kernel"].status == "fine"


MIRRORED = read_text("explain_diagnose", "MIRRORED")


@pytest.mark.dear
def test_a_model_of_a_strategy_gets_no_note(fresh):
    assert fresh(MIRRORED) == "()\n"


def test_text_markdown_and_figure():
    model = sequential(layers.Dense(2, name="first"), layers.Lambda(tf.round), layers.Dense(1, name="last"))
    found = diagnose(model, "mse", X, Y)
    first, head, *rows = str(found).splitlines()[:6]
    assert first == f"net: 2 of 4 variables have a bad gradient; loss {found.loss:.4g} on 16 examples"
    assert head.split() == ["variable", "gradient", "norm", "weight", "ratio", "zeros", "cause"]
    assert [row.split()[:2] for row in rows[:2]] == [["first/kernel", "none"], ["first/bias", "none"]]
    assert "| first/kernel | none |" in found.markdown()
    ax = found.plot()
    assert ax.get_title() == "net: 2 of 4 variables have a bad gradient (none)"
    assert [label.get_text() for label in ax.get_yticklabels()] == [one.name for one in found.variables]
    assert [text.get_text() for text in ax.texts] == ["none", "none"]
    markers = {line.get_label(): line.get_marker() for line in ax.lines if line.get_marker() != "None"}
    assert markers["gradient: none"] != markers["gradient: fine"]
    well = diagnose(sequential(layers.Dense(2), layers.Dense(1)), "mse", X, Y)
    assert well.plot().get_title() == "net: all 4 variables learn"


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("frozen", [False, True])
def test_zero_weights_are_named_and_whether_they_are_frozen(frozen):
    adapter = layers.Dense(8, kernel_initializer="zeros", trainable=not frozen, name="adapter")
    model = sequential(layers.Dense(8, "tanh", name="encoder"), adapter, layers.Dense(1, name="head"))
    sick = diagnose(model, "mse", X, Y)["encoder/kernel"]
    assert sick.code == "zero_weights"
    assert sick.sentence.startswith("All of adapter/kernel is 0")
    assert ("is frozen" in sick.sentence, "trainable=True" in sick.fix) == (frozen, frozen)
    assert "In layer adapter." in str(diagnose(model, "mse", X, Y))


def deep(activation, biases, count=8):
    """A model of equal layers, of which some have another bias than 0: by its number."""
    parts = [layers.Dense(16, activation, name=f"layer_{i}") for i in range(count)]
    model = sequential(*parts, layers.Dense(1, name="out"))
    generator = np.random.default_rng(4)
    for part in model.layers:
        part.kernel.assign(generator.normal(size=part.kernel.shape, scale=part.kernel.shape[0] ** -0.5))
    for number, bias in biases.items():
        parts[number].bias.assign(np.broadcast_to(bias, 16))
    return model


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("dead", [0, 4, 7])
def test_first_dead_layer_is_blamed_for_the_silence_of_those_behind_it(dead):
    found = diagnose(deep("relu", {dead: -20.0}), "mse", X, Y)
    assert statuses(found) == ["zero"] * 17 + ["fine"]
    assert {(one.code, one.layer, one.certain) for one in found.sick} == {("dead_relu", f"layer_{dead}", True)}
    assert found.sick[0].fix.startswith(f"layers.LeakyReLU()  # in place of the relu of layer_{dead};")


def test_layer_kept_alive_by_its_bias_is_not_blamed_and_of_two_dead_ones_the_one_whose_cure_changes_something():
    found = diagnose(deep("relu", {4: -20.0, 5: np.linspace(-1, 1, 16)}), "mse", X, Y)
    assert {(one.code, one.layer, one.certain) for one in found.sick} == {("dead_relu", "layer_4", True)}
    assert found["layer_5/kernel"].status == "zero"
    assert found["layer_5/bias"].healthy
    found = diagnose(deep("relu", {2: -20.0, 4: -20.0}), "mse", X, Y)
    assert {(one.code, one.layer, one.certain) for one in found.sick} == {("dead_relu", "layer_4", True)}
    assert "layer_2 before it is flat, too: see to it after this one." in str(found)


def test_saturated_layer_is_blamed_alone_among_sound_ones_of_its_kind():
    (cause,) = {(one.code, one.layer) for one in diagnose(deep("tanh", {4: 200.0}), "mse", X, Y).sick}
    assert cause == ("saturated", "layer_4")
    slightly = diagnose(deep("tanh", {4: 6.0}), "mse", X, Y)
    assert "zero" not in statuses(slightly)
    assert {(one.status, one.code, one.layer) for one in slightly.sick} == {("vanishing", "saturated", "layer_4")}
    behind = diagnose(deep("sigmoid", {2: -200.0, 5: 50.0}), "mse", X, Y)
    assert {(one.code, one.layer, one.certain) for one in behind.sick} == {("saturated", "layer_5", True)}


def test_a_partly_dead_layer_is_named_and_is_something_to_mend():
    found = diagnose(deep("relu", {3: [-20.0] * 12 + [0.5] * 4}), "mse", X, Y)
    assert "and layer_3 (relu): 12 of 16 units dead" in found.heading
    assert not found.sick
    assert not found


def test_an_accuracy_of_numbers_is_noted_and_that_of_shares_is_not():
    for loss, labels, is_noted in (("mse", Y, True), ("categorical_crossentropy", tf.nn.softmax(X[:, :2]), False)):
        model = sequential(layers.Dense(labels.shape[1], "softplus"))
        model.compile("sgd", loss, metrics=["accuracy"])
        model.fit(X, labels, verbose=0)
        assert ("accuracy counts equal numbers" in str(diagnose(model, None, X, labels))) == is_noted


def test_dead_branch_beside_a_living_one_concerns_its_own_weights_only():
    inputs = tf.keras.Input((8,))
    branch = layers.Dense(8, "relu", bias_initializer=tf.keras.initializers.Constant(-20.0), name="branch")(inputs)
    hidden = layers.Dense(8, "tanh", name="hidden")(layers.Add()([inputs, branch]))
    found = diagnose(tf.keras.Model(inputs, layers.Dense(1, name="out")(hidden)), "mse", X, Y)
    assert {one.name: one.layer for one in found.sick} == {"branch/kernel": "branch", "branch/bias": "branch"}


def test_weights_that_start_at_0_get_a_fix_for_a_model():
    model = sequential(layers.Dense(8, "relu", kernel_initializer="zeros", name="first"), layers.Dense(1))
    first = diagnose(model, "mse", X, Y)["first/kernel"]
    assert (first.code, first.fix.split("  #")[0]) == ("at_kink", 'kernel_initializer="glorot_uniform"')


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("bias", "scale"), [(20.0, 1.0), (0.0, 1e6)], ids=["a bias of 20", "inputs that are too large"]
)
def test_the_fix_for_saturated_units_makes_them_learn(bias, scale):
    constant = tf.keras.initializers.Constant(bias)
    dense = [layers.Dense(6, bias_initializer=constant, name="hidden"), layers.Dense(1)]
    x = scale * X
    model = sequential(dense[0], layers.Activation("tanh", name="tanh"), dense[1])
    found = diagnose(model, "mse", x, Y)["hidden/kernel"]
    assert (found.code, found.layer) == ("saturated", "tanh")
    code, where = found.fix.split("  # ")
    assert where == "before the activation of tanh; it works in training mode"
    normalised = sequential(dense[0], eval(code, {"layers": layers}), layers.Activation("tanh"), dense[1])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((normalised(x, training=True) - Y) ** 2)
    assert float(tf.norm(tape.gradient(loss, dense[0].kernel))) * scale > 1e-2
