"""What people ask of whole models: data, optimisers and steps that are to blame, and what training really does."""

import time

from tapelab import runtime
from tapelab.explain import ExplainTape, Watch, diagnose, explain, explain_retracing
from tapelab.explain.ground.origins import Origins

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)
keras = tf.keras
layers = keras.layers

INPUTS = tf.random.stateless_normal((32, 6), [1, 2])
TARGETS = tf.reduce_sum(INPUTS, axis=1, keepdims=True)


def network(*middle, **last):
    return keras.Sequential([keras.Input((6,)), *middle, layers.Dense(1, **last)])


def rounded(y, prediction):
    return tf.reduce_mean((y - tf.round(prediction)) ** 2)  # here


def test_fit_that_finds_no_gradients_is_explained_and_so_is_the_model_afterwards():
    said = []
    for callbacks in ([], [Watch(report=said.append)]):
        model = network()
        model.compile("adam", rounded)
        with pytest.raises(ValueError, match="No gradients provided"):
            model.fit(INPUTS, TARGETS, verbose=0, callbacks=callbacks)
        found = diagnose(model, rounded, INPUTS, TARGETS)
        assert [one.code for one in found.variables] == ["not_differentiable"] * 2
        assert {one.line.text for one in found.variables} == {
            "return tf.reduce_mean((y - tf.round(prediction)) ** 2)  # here"
        }
    assert said[0].startswith("Watch, before any step: ")
    assert "not_differentiable" in said[0]


def test_the_line_that_made_the_data_not_finite_is_named():
    table = np.array(INPUTS)
    table[:, 2] = 1.0
    with np.errstate(invalid="ignore"):
        table = (table - table.min(0)) / np.ptp(table, axis=0)  # a constant column: 0 / 0
    found = diagnose(network(layers.Dense(4, "relu")), "mse", table[:8], TARGETS[:8])
    assert {one.code for one in found.variables} == {"source_not_finite"}
    assert "x[0, 2] is NaN" in found.variables[0].sentence
    assert found.variables[0].line.text.startswith("table = (table - table.min(0))")
    assert "dead" not in str(found)  # NaN is no dead unit
    found = diagnose(network(), "mse", np.sqrt(table[:8] - 9.0), TARGETS[:8])  # made in the call itself
    assert found.variables[0].line.text.endswith("# made in the call itself")


class Clipping(keras.Model):
    """Clips what is still multiplied by the loss scale."""

    def __init__(self, norm):
        super().__init__()
        self.dense, self.norm = layers.Dense(1), norm

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
            scaled = self.optimizer.scale_loss(loss)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(scaled, self.trainable_variables), self.norm)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize(("norm", "is_used"), [(1.0, False), (1e9, True)])
def test_a_step_that_is_clipped_to_nothing_is_no_learning(norm, is_used):
    said, model = [], Clipping(norm)
    scaling = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.05))
    model.compile(scaling, loss="mse")
    model.fit(INPUTS, TARGETS, batch_size=32, verbose=0, callbacks=[Watch(report=said.append)])
    found = diagnose(model, "mse", INPUTS, TARGETS)
    assert bool(found) is is_used, str(found)
    assert ("variables learn" in found.heading) is is_used
    assert ("still multiplied by the loss scale" in "".join(said)) is not is_used


def test_the_saturated_layer_whose_cure_changes_something_is_blamed_for_all_before_it():
    biased = {"bias_initializer": keras.initializers.Constant(20.0)}
    middle = [layers.Dense(6, "tanh", name=f"l{i}", **(biased if i in (1, 4) else {})) for i in range(6)]
    found = diagnose(network(*middle), "mse", INPUTS, TARGETS)
    blamed = {one.layer for one in found.sick if one.code == "saturated"}
    assert blamed == {"l4"}, str(found)


def test_an_unused_variable_of_a_model_that_holds_itself_is_found_in_the_end():
    model = network(layers.Dense(4))
    model.itself = [model.build, model.layers]
    assert Origins(None, [model]).made(model.layers[0].kernel) is None


def test_a_fix_has_the_tapes_own_name():
    x = tf.constant(1.0)
    with ExplainTape() as outer, ExplainTape() as inner:
        y = x * x
    assert explain(inner, y, x).fix.startswith("inner.watch(x)")
    assert explain(outer, y, x).fix.startswith("outer.watch(x)")


def test_watch_counts_all_variables_and_shows_the_sick():
    said, middle = [], [layers.Dense(4, name="first"), layers.Lambda(tf.sign), layers.Dense(4)]
    model = network(*middle, name="last")
    model.compile("sgd", "mse")
    model.fit(INPUTS, TARGETS, batch_size=32, verbose=0, callbacks=[Watch(report=said.append)])
    assert "2 of 6 variables have a bad gradient" in said[0]
    assert "last/kernel" not in said[0]


def test_offsets_whose_gradient_is_rounding_are_not_called_vanishing():
    middle = [layers.Dense(8), layers.BatchNormalization(name="first"), layers.Dense(8), layers.BatchNormalization()]
    found = diagnose(network(*middle), "mse", INPUTS, TARGETS)
    assert found["first/beta"].code == "no_effect", str(found)
    assert found


def test_jacobians_that_are_taken_eagerly_again_and_again_are_named():
    x, w = tf.constant([1.0, 2.0, 3.0]), tf.Variable([1.0, 2.0])

    def jacobian():
        with tf.GradientTape() as tape:
            y = w[0] * x**2 + w[1]
        return tape.jacobian(y, w)

    with explain_retracing() as report:
        for _ in range(3):
            jacobian()
    (one,) = report
    assert [(cause.code, cause.line.text) for cause in one.causes] == [
        ("vectorised_anew", "return tape.jacobian(y, w)")
    ]
    with explain_retracing() as report:
        compiled = tf.function(jacobian)
        for _ in range(3):
            compiled()
    assert report.healthy


@pytest.mark.dear
def test_many_variables_take_a_few_times_as_long_as_their_gradient():
    model = network(*[layers.Dense(6, "tanh") for _ in range(80)])

    def seconds(run):
        start = time.process_time()
        run()
        return time.process_time() - start

    with ExplainTape(persistent=True) as tape:
        loss = tf.reduce_mean(model(INPUTS) ** 2)
    tape.gradient(loss, model.trainable_variables)
    plain = min(seconds(lambda: tape.gradient(loss, model.trainable_variables)) for _ in range(3))
    assert seconds(lambda: explain(tape, loss, model.trainable_variables)) < 40 * plain + 0.5


def test_a_function_that_is_traced_names_what_the_learner_named_and_is_not_converted(recwarn):
    w = tf.Variable([1.0, 2.0])
    told = []

    @tf.function
    def step():
        with ExplainTape() as tape:
            tape.watch(w)
            hard = tf.round(w) * 2.0
        told.append(str(explain(tape, hard, w)))
        return hard

    step()
    assert told[0].startswith("d hard / d w is None: inside_function")
    assert not [one for one in recwarn if "AutoGraph" in str(one.message)]
