"""Programs whose gradients exist: bad ones, with what is wrong, and benign ones, about which no alarm may be raised.

Each program marks the line to change with "# here". Where somebody asked about it in public, the link is
there; the code is our own.
"""

import ast
import dataclasses
import linecache
import re
import textwrap

from tapelab import runtime
from tapelab.explain import REMARKS, VALUES, ExplainTape, explain
from tapelab.explain.causes import SYMPTOMS
from tapelab.explain.values import study as studying

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

keras = tf.keras
BAD, BENIGN = [], []


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and what is to be found: `run` returns (tape, target, source)."""

    run: object
    symptom: str
    code: str = ""
    op: str = ""


def bad(symptom, code, op):
    return lambda run: BAD.append(Program(run, symptom, code, op))


def benign(symptom):
    return lambda run: BENIGN.append(Program(run, symptom))


def named(programs):
    return pytest.mark.parametrize("program", programs, ids=[one.run.__name__ for one in programs])


# Not finite.


@bad("nan", "unselected_branch", "Log")
def entropy_with_where():
    """https://github.com/tensorflow/tensorflow/issues/38349"""
    p = tf.Variable([0.5, 0.0, 0.5])
    with ExplainTape() as tape:
        terms = p * tf.math.log(p)  # here
        loss = -tf.reduce_sum(tf.where(p > 0, terms, 0.0))
    return tape, loss, p


@bad("nan", "unselected_branch", "RealDiv")
def where_around_a_division():
    """https://github.com/tensorflow/tensorflow/issues/20355"""
    n = tf.Variable([2.0, 0.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.where(n > 0, 1.0 / n, 0.0))  # here
    return tape, loss, n


@bad("nan", "unselected_branch", "Exp")
def where_around_exp():
    """https://github.com/tensorflow/tensorflow/issues/27684"""
    x = tf.Variable([-1.0, 100.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.where(x > 20.0, x, tf.exp(x)))  # here
    return tape, loss, x


@bad("nan", "unselected_branch", "Log")
def where_in_a_function():
    """https://github.com/tensorflow/tensorflow/issues/2540"""
    x = tf.Variable([1.0, 0.0])

    @tf.function
    def compute(value):
        logarithm = tf.math.log(value)  # here
        return tf.reduce_sum(tf.where(value > 0, logarithm, 0.0))

    with ExplainTape() as tape:
        loss = compute(x)
    return tape, loss, x


@bad("nan", "unselected_branch", "Sqrt")
def where_around_a_root_under_xla():
    """https://github.com/tensorflow/tensorflow/issues/118674"""
    x = tf.Variable([4.0, 0.0])

    @tf.function(jit_compile=True)
    def compute(value):
        return tf.reduce_sum(tf.where(value > 0, tf.sqrt(value), 0.0))  # here

    with ExplainTape() as tape:
        loss = compute(x)
    return tape, loss, x


@bad("nan", "zero_times_infinity", "Log")
def logarithm_beside_an_innocent_root():
    x = tf.Variable([4.0, 0.0])
    with ExplainTape() as tape:
        length = tf.sqrt(tf.reduce_sum(x * x))
        loss = length + tf.reduce_sum(0.0 - tf.math.log(x) * x)  # here
    return tape, loss, x


@bad("nan", "masked_by_zero", "Log")
def logarithm_times_mask():
    p, mask = tf.Variable([0.5, 0.0]), tf.constant([1.0, 0.0])
    with ExplainTape() as tape:
        surprise = -tf.math.log(p)  # here
        loss = tf.reduce_sum(surprise * mask)
    return tape, loss, p


@bad("nan", "root_at_zero", "Sqrt")
def distance_of_equal_points():
    """https://github.com/tensorflow/tensorflow/issues/12071"""
    a, b = tf.Variable([1.0, 2.0]), tf.constant([1.0, 2.0])
    with ExplainTape() as tape:
        loss = tf.norm(a - b)  # here
    return tape, loss, a


@bad("nan", "root_at_zero", "Sqrt")
def standard_deviation_of_equal_numbers():
    """https://github.com/tensorflow/tensorflow/issues/56830"""
    x = tf.Variable([2.0, 2.0, 2.0])
    with ExplainTape() as tape:
        loss = tf.math.reduce_std(x)  # here
    return tape, loss, x


@bad("nan", "root_at_zero", "EuclideanNorm")
def norm_of_a_zero_row():
    """https://github.com/tensorflow/tensorflow/issues/12071"""
    x = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.math.reduce_euclidean_norm(x, axis=1))  # here
    return tape, loss, x


@bad("inf", "root_at_zero", "Pow")
def fractional_power_of_zero():
    """https://github.com/tensorflow/tensorflow/issues/2295"""
    x = tf.Variable([0.0, 1.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(x**0.5)  # here
    return tape, loss, x


@bad("nan", "root_at_zero", "Sqrt")
def norm_inside_a_while_loop():
    """https://github.com/tensorflow/tensorflow/issues/6209"""
    x = tf.Variable([3.0, 3.0])

    @tf.function
    def run(value):
        total = tf.constant(0.0)
        for _ in tf.range(3):
            value = value - 1.0
            total = total + tf.norm(value)  # here
        return total

    with ExplainTape() as tape:
        loss = run(x)
    return tape, loss, x


@bad("nan", "log_of_zero", "Log")
def cross_entropy_by_hand():
    """https://github.com/tensorflow/tensorflow/issues/2403"""
    logits = tf.Variable([[0.0, 200.0]])
    labels = tf.constant([[1.0, 0.0]])
    with ExplainTape() as tape:
        p = tf.nn.softmax(logits)
        loss = -tf.reduce_sum(labels * tf.math.log(p))  # here
    return tape, loss, logits


@bad("nan", "domain", "Log")
def logarithm_of_a_linear_layer():
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    with ExplainTape() as tape:
        loss = tf.reduce_mean(tf.sqrt(1.0 + tf.math.log(layer(tf.constant([[1.0], [-2.0]])))))  # here
    return tape, loss, layer.kernel


@bad("nan", "domain", "Acos")
def angle_beyond_one():
    """https://github.com/tensorflow/tensorflow/issues/57786"""
    c = tf.Variable([1.0001, 0.5])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.acos(c))  # here
    return tape, loss, c


@bad("nan", "overflow", "Exp")
def softmax_by_hand():
    """https://github.com/tensorflow/tensorflow/issues/2540"""
    z = tf.Variable([1000.0, 1.0])
    with ExplainTape() as tape:
        e = tf.exp(z)  # here
        loss = (e / tf.reduce_sum(e))[0]
    return tape, loss, z


@bad("nan", "overflow", "Cosh")
def log_cosh_by_hand():
    x = tf.Variable([1.0, 100.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.math.log(tf.cosh(x)))  # here
    return tape, loss, x


@bad("target inf", "overflow", "Square")
def square_in_float16():
    """https://github.com/tensorflow/tensorflow/issues/38357"""
    x = tf.Variable(tf.constant([1.0, 300.0], tf.float16))
    with ExplainTape() as tape:
        loss = tf.math.log(tf.reduce_sum(tf.square(x)))  # here
    return tape, loss, x


@bad("nan", "zero_over_zero", "RealDiv")
def mean_over_an_empty_mask():
    """https://github.com/tensorflow/tensorflow/issues/20253"""
    x, mask = tf.Variable([1.0, 2.0]), tf.zeros(2)
    with ExplainTape() as tape:
        loss = tf.reduce_sum(x * mask) / tf.reduce_sum(mask)  # here
    return tape, loss, x


@bad("nan", "zero_over_zero", "Atan2")
def angle_of_the_origin():
    """https://github.com/tensorflow/tensorflow/issues/50854"""
    v = tf.Variable([0.0, 0.0])
    with ExplainTape() as tape:
        loss = tf.atan2(v[1], v[0])  # here
    return tape, loss, v


@bad("target nan", "all_masked", "Softmax")
def attention_with_nothing_to_attend_to():
    """https://github.com/pytorch/pytorch/issues/41508"""
    scores = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    mask = tf.constant([[True, True], [False, False]])
    with ExplainTape() as tape:
        weights = tf.nn.softmax(tf.where(mask, scores, -np.inf))  # here
        loss = tf.reduce_sum(weights[:, 0])
    return tape, loss, scores


@bad("nan", "underflow", "Prod")
def likelihood_as_a_product():
    p = tf.Variable(tf.fill([60], 1e-3))
    with ExplainTape() as tape:
        likelihood = tf.reduce_prod(p)  # here
        loss = -tf.math.log(likelihood)
    return tape, loss, p


@bad("nan", "source_not_finite", "MatMul")
def nan_in_the_batch():
    layer = keras.layers.Dense(2)
    batch = tf.constant([[1.0, np.nan]])
    with ExplainTape() as tape:
        loss = tf.reduce_mean(layer(batch) ** 2)  # here
    return tape, loss, layer.kernel


@bad("inf", "custom_gradient", "IdentityN")
def custom_gradient_in_a_function():
    @tf.custom_gradient
    def shifted(value):
        return value + 1.0, lambda upstream: upstream / value

    x = tf.Variable([1.0, 0.0])

    @tf.function
    def run(value):
        return tf.reduce_sum(shifted(value))  # here

    with ExplainTape() as tape:
        loss = run(x)
    return tape, loss, x


@bad("nan", "root_at_zero", "Sqrt")
def norm_inside_map_fn():
    x = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.map_fn(lambda row: tf.sqrt(tf.reduce_sum(row**2)), x))  # here
    return tape, loss, x


@bad("inf", "root_at_zero", "Sqrt")
def root_in_the_branch_of_a_cond():
    x = tf.Variable(0.0)

    @tf.function
    def run(value):
        if value < 1.0:
            return tf.sqrt(value)  # here
        return value

    with ExplainTape() as tape:
        loss = run(x)
    return tape, loss, x


@bad("nan", "root_at_zero", "Sqrt")
def distance_of_two_rows_of_an_embedding():
    layer = keras.layers.Embedding(5, 3)
    layer.build()
    with ExplainTape() as tape:
        rows = layer(tf.constant([2, 2]))
        loss = tf.norm(rows[0] - rows[1])  # here
    return tape, loss, layer.embeddings


@bad("nan", "root_at_zero", "Sqrt")
def distances_within_a_batch():
    """https://github.com/tensorflow/tensorflow/issues/30199"""
    x = tf.Variable([[1.0, 2.0], [4.0, 6.0]])
    with ExplainTape() as tape:
        squared = tf.reduce_sum((x[:, None] - x[None]) ** 2, -1)
        loss = tf.reduce_sum(tf.sqrt(squared))  # here
    return tape, loss, x


@bad("nan", "root_at_zero", "Sqrt")
def standard_deviation_over_a_batch_of_one():
    """https://github.com/pytorch/pytorch/issues/4320"""
    x = tf.Variable([[1.0, 3.0]])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.math.reduce_std(x, axis=0))  # here
    return tape, loss, x


@bad("nan", "root_at_zero", "Sqrt")
def gradient_penalty_where_the_critic_is_flat():
    """https://github.com/keras-team/keras-io/issues/910"""
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        with tf.GradientTape() as inner:
            score = tf.reduce_sum((x - [1.0, 2.0]) ** 2)
        slope = inner.gradient(score, x)
        loss = (tf.norm(slope) - 1.0) ** 2  # here
    return tape, loss, x


@bad("nan", "unselected_branch", "Atan2")
def where_around_an_angle():
    """https://github.com/jax-ml/jax/issues/1052"""
    x, y = tf.Variable([1.0, 0.0]), tf.constant([2.0, 0.0])
    with ExplainTape() as tape:
        away = x**2 + y**2 > 0
        loss = tf.reduce_sum(tf.where(away, tf.atan2(y, x), 0.0))  # here
    return tape, loss, x


@bad("nan", "zero_over_zero", "RealDiv")
def direction_of_a_zero_row():
    """https://github.com/tensorflow/tensorflow/issues/35257"""
    x = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
    with ExplainTape() as tape:
        unit = x / tf.norm(x, axis=1, keepdims=True)  # here
        loss = tf.reduce_sum(unit)
    return tape, loss, x


@bad("inf", "root_at_zero", "Rsqrt")
def direction_of_a_zero_row_without_epsilon():
    """https://github.com/tensorflow/tensorflow/issues/35257"""
    x = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
    with ExplainTape() as tape:
        unit = tf.nn.l2_normalize(x, axis=1, epsilon=0.0)  # here
        loss = tf.reduce_sum(unit)
    return tape, loss, x


@bad("nan", "zero_over_zero", "RealDiv")
def overlap_of_two_empty_boxes():
    """https://github.com/tensorflow/tensorflow/issues/61281"""
    a, b = tf.Variable([1.0, 1.0]), tf.constant([1.0, 1.0])  # from, to
    with ExplainTape() as tape:
        shared = tf.minimum(a[1], b[1]) - tf.maximum(a[0], b[0])
        union = (a[1] - a[0]) + (b[1] - b[0]) - shared
        loss = 1.0 - shared / union  # here
    return tape, loss, a


@bad("nan", "overflow", "Exp")
def softplus_by_hand():
    """https://github.com/pytorch/pytorch/issues/17455"""
    x = tf.Variable([1.0, 100.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.math.log(tf.exp(x) + 1.0))  # here
    return tape, loss, x


@bad("inf", "overflow", "Mul")
def loss_scale_in_float16():
    """https://github.com/tensorflow/models/issues/10381"""
    x = tf.Variable(tf.constant([3.0, 4.0], tf.float16))
    with ExplainTape() as tape:
        loss = tf.reduce_sum(x**2)
        scaled = loss * 2.0**15  # here
    return tape, scaled, x


@bad("inf", "overflow", "Cast")
def layer_normalisation_with_an_epsilon_too_small_for_float16():
    """https://github.com/keras-team/keras/issues/22586"""
    layer = keras.layers.LayerNormalization(epsilon=1e-12, dtype="float16")
    x = tf.Variable(tf.constant([[2.0, 2.0], [1.0, 3.0]], tf.float16))
    with ExplainTape() as tape:
        loss = tf.reduce_sum(layer(x)[:, 0])  # here
    return tape, loss, x


@bad("nan", "root_at_zero", "Rsqrt")
def epsilon_that_float16_rounds_to_zero():
    """https://github.com/tensorflow/tensorflow/pull/24979"""
    x = tf.Variable(tf.constant([[2.0, 2.0], [1.0, 3.0]], tf.float16))
    with ExplainTape() as tape:
        mean, variance = tf.nn.moments(x, [1], keepdims=True)
        normal = tf.nn.batch_normalization(x, mean, variance, None, None, 1e-12)  # here
        loss = tf.reduce_sum(normal[:, 0])
    return tape, loss, x


@bad("zero", "overflow", "Square")
def instance_normalisation_in_float16():
    """https://github.com/tensorflow/tensorflow/issues/47156"""
    x = tf.Variable(tf.constant([-400.0, 400.0, 100.0], tf.float16))
    with ExplainTape() as tape:
        middle = x - tf.reduce_mean(x)
        variance = tf.reduce_mean(tf.square(middle))  # here
        loss = tf.reduce_sum(middle * [1.0, 2.0, 4.0] / tf.sqrt(variance + 1e-3))
    return tape, loss, x


# Zero.


@bad("zero", "dead_relu", "Relu")
def network_of_dead_units():
    """https://ai.stackexchange.com/questions/39853"""
    hidden = keras.layers.Dense(4, activation="relu", bias_initializer=keras.initializers.Constant(-100.0))
    out = keras.layers.Dense(1, bias_initializer="ones")
    with ExplainTape() as tape:
        inside = hidden(tf.ones((3, 2)))  # here
        loss = tf.reduce_mean(out(inside) ** 2)
    return tape, loss, hidden.kernel


@bad("partly zero", "dead_relu", "Relu")
def one_dead_unit():
    w, b = tf.Variable([[1.0, 1.0, -1.0]]), tf.constant([0.5, -100.0, 0.5])
    with ExplainTape() as tape:
        inside = tf.nn.relu(tf.constant([[0.1], [0.2], [0.3]]) @ w + b)  # here
        loss = tf.reduce_mean(tf.reduce_sum(inside, 1) ** 2)
    return tape, loss, w


@bad("zero", "saturated", "Sigmoid")
def sigmoid_of_unscaled_pixels():
    w = tf.Variable([[1.0], [1.0]])
    with ExplainTape() as tape:
        p = tf.sigmoid(tf.constant([[255.0, 128.0]]) @ w)  # here
        loss = tf.reduce_mean((p - 0.5) ** 2)
    return tape, loss, w


@bad("zero", "clipped", "Minimum")
def logits_given_as_probabilities():
    """https://github.com/keras-team/keras/issues/9664"""
    z = tf.Variable([[8.0], [-6.0]])
    with ExplainTape() as tape:
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(tf.constant([[0.0], [1.0]]), z))  # here
    return tape, loss, z


@bad("zero", "flat_operation", "Sign")
def sign_of_a_score():
    w = tf.Variable([0.5, -2.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum((tf.sign(w) - 1.0) ** 2)  # here
    return tape, loss, w


@bad("zero", "multiplied_by_zero", "Mul")
def weight_of_a_loss_term_is_zero():
    w, beta = tf.Variable([0.5, -2.0]), tf.constant(0.0)
    with ExplainTape() as tape:
        loss = beta * tf.reduce_sum(w**2)  # here
    return tape, loss, w


@bad("zero", "zero_weights", "MatMul")
def second_layer_starts_at_zero():
    first, second = tf.Variable([[1.0, 2.0]]), tf.Variable([[0.0], [0.0]])
    with ExplainTape() as tape:
        loss = tf.reduce_mean((tf.tanh(tf.ones((3, 1)) @ first) @ second - 1.0) ** 2)  # here
    return tape, loss, first


@bad("zero", "constant_output", "Softmax")
def softmax_over_one_unit():
    """https://stats.stackexchange.com/questions/481881"""
    layer = keras.layers.Dense(1, activation="softmax")
    with ExplainTape() as tape:
        p = layer(tf.constant([[1.0, 2.0], [3.0, 1.0]]))  # here
        loss = tf.reduce_mean((p - tf.constant([[0.0], [1.0]])) ** 2)
    return tape, loss, layer.kernel


@bad("zero", "other_output", "both")
def output_that_another_argument_made():
    def both(a, b):
        return a * a, b * b

    call = tf.function(both)
    a, b = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        _, y = call(a, b)  # here
    return tape, y, a


@bad("partly zero", "wrong_at_zero", "Cumprod")
def transmittance_with_an_opaque_sample():
    """https://github.com/tensorflow/tensorflow/issues/119430"""
    alpha = tf.Variable([0.2, 1.0, 0.3])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.math.cumprod(1.0 - alpha))  # here
    return tape, loss, alpha


@bad("zero", "constant_output", "Mean")
def batch_norm_of_one_element_per_channel():
    """https://github.com/d2l-ai/d2l-en/issues/1722"""
    x, layer = tf.Variable([[1.0, 3.0]]), keras.layers.BatchNormalization()
    with ExplainTape() as tape:
        normal = layer(x, training=True)  # here
        loss = tf.reduce_sum((normal - 1.0) ** 2)
    return tape, loss, x


# Huge, tiny, and silent.


@bad("huge", "steep", "Mul")
def direction_of_a_zero_row_with_a_small_epsilon():
    """https://github.com/tensorflow/tensorflow/issues/56796"""
    x = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.nn.l2_normalize(x, axis=1))  # here
    return tape, loss, x


@bad("tiny", "vanishing", "Sigmoid")
def deep_sigmoid_network():
    layers = [keras.layers.Dense(8, activation="sigmoid") for _ in range(12)]
    with ExplainTape() as tape:
        value = tf.ones((4, 8))
        for layer in layers:
            value = layer(value)  # here
        loss = tf.reduce_mean(value**2)
    return tape, loss, layers[0].kernel


@bad("huge", "exploding", "MatMul")
def recurrence_with_large_weights():
    w = tf.Variable([[2.0, 1.0], [1.0, 2.0]])
    with ExplainTape() as tape:
        state = tf.ones((1, 2))
        for _ in range(12):
            state = state @ w  # here
        loss = tf.reduce_sum(state)
    return tape, loss, w


@bad("huge", "degenerate_eigenvalues", "SelfAdjointEigV2")
def eigenvectors_of_almost_equal_eigenvalues():
    """https://github.com/tensorflow/tensorflow/issues/17476"""
    a = tf.Variable([[2.0, 0.0], [0.0, 2.000001]])
    with ExplainTape() as tape:
        _, vectors = tf.linalg.eigh(a)  # here
        loss = tf.reduce_sum(vectors * [[1.0, 2.0], [3.0, 4.0]])
    return tape, loss, a


@bad("fine", "softmax_twice", "SoftmaxCrossEntropyWithLogits")
def softmax_before_a_loss_from_logits():
    """https://github.com/keras-team/keras/issues/15271"""
    z = tf.Variable([[1.0, 3.0, -1.0]])
    loss_function = keras.losses.CategoricalCrossentropy(from_logits=True)
    with ExplainTape() as tape:
        p = tf.nn.softmax(z)
        loss = loss_function(tf.constant([[0.0, 1.0, 0.0]]), p)  # here
    return tape, loss, z


@bad("fine", "broadcast_loss", "Sub")
def column_of_predictions_less_a_row_of_labels():
    """https://github.com/tensorflow/tensorflow/issues/37770"""
    w = tf.Variable([[1.0]])
    labels = tf.constant([1.0, 2.0, 4.0])
    with ExplainTape() as tape:
        predictions = tf.constant([[1.0], [2.0], [5.0]]) @ w
        loss = tf.reduce_mean((predictions - labels) ** 2)  # here
    return tape, loss, w


# Benign.


@benign("zero")
def at_the_minimum():
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum((x - tf.constant([1.0, 2.0])) ** 2)
    return tape, loss, x


@benign("zero")
def data_and_penalty_in_balance():
    x = tf.Variable([0.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum((x - 1.0) ** 2 + (x + 1.0) ** 2)
    return tape, loss, x


@benign("zero")
def satisfied_triplet():
    """https://github.com/adambielski/siamese-triplet/issues/18"""
    a = tf.Variable([0.0, 0.1])
    with ExplainTape() as tape:
        near, far = tf.reduce_sum((a - 0.1) ** 2), tf.reduce_sum((a - 9.0) ** 2)
        loss = tf.maximum(0.2 + near - far, 0.0)
    return tape, loss, a


@benign("partly zero")
def padding_that_is_meant_to_be_masked():
    x, mask = tf.Variable([1.0, 2.0, 3.0]), tf.constant([1.0, 1.0, 0.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(x**2 * mask) / tf.reduce_sum(mask)
    return tape, loss, x


@benign("partly zero")
def largest_of_several():
    x = tf.Variable([1.0, 5.0, 3.0])
    with ExplainTape() as tape:
        loss = tf.reduce_max(x)
    return tape, loss, x


@benign("partly zero")
def rows_of_an_embedding_that_were_not_looked_up():
    table = tf.Variable(tf.ones((6, 2)))
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0, 3]) ** 2)
    return tape, loss, table


@benign("fine")
def infinity_that_a_softmax_removes():
    """https://github.com/tensorflow/tensorflow/issues/40228"""
    x = tf.Variable([[1.0, 2.0]])
    with ExplainTape() as tape:
        loss = tf.nn.softmax(tf.concat([x, [[-np.inf]]], 1))[0, 0]
    return tape, loss, x


@benign("fine")
def straight_through_estimator():
    x = tf.Variable([0.4, 1.7])
    with ExplainTape() as tape:
        loss = tf.reduce_sum((x + tf.stop_gradient(tf.round(x) - x)) * 3.0)
    return tape, loss, x


@benign("fine")
def root_guarded_by_the_double_where():
    x = tf.Variable([4.0, 1.0])
    with ExplainTape() as tape:
        safe = tf.where(x > 0, x, 1.0)
        loss = tf.reduce_sum(tf.where(x > 0, tf.sqrt(safe), 0.0))
    return tape, loss, x


@benign("partly zero")
def segment_without_members():
    """https://github.com/tensorflow/tensorflow/issues/127233"""
    x = tf.Variable([[1.0, 0.0], [2.0, 0.0]])
    with ExplainTape() as tape:
        means = tf.math.segment_mean(x, tf.constant([0, 2]))
        loss = tf.reduce_sum(means**2)
    return tape, loss, x


@benign("fine")
def row_of_an_embedding_looked_up_twice():
    """https://github.com/keras-team/keras/issues/18985"""
    table = tf.Variable(tf.ones((2, 3)))
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [0, 1, 0]) ** 2)
    return tape, loss, table


@benign("partly zero")
def relu_of_mixed_signs():
    x = tf.Variable([1.0, -2.0, 3.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.nn.relu(x))
    return tape, loss, x


@benign("huge")
def large_unit():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        metres = 1e6 * x
        loss = tf.reduce_sum(metres)
    return tape, loss, x


@benign("tiny")
def almost_at_the_minimum():
    x = tf.Variable(1.0 + 1e-7)
    with ExplainTape() as tape:
        loss = (x - 1.0) ** 2
    return tape, loss, x


@benign("fine")
def infinity_that_is_not_used():
    x = tf.Variable([0.0, 2.0])
    with ExplainTape() as tape:
        unused = tf.math.log(x)
        loss = tf.reduce_sum(tf.sin(x)) + tf.cast(tf.size(unused), tf.float32)
    return tape, loss, x


@benign("fine")
def healthy_network():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    with ExplainTape() as tape:
        loss = tf.reduce_mean(model(tf.constant([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])) ** 2)
    return tape, loss, model.trainable_variables[0]


def marked_line(program):
    code = program.run.__code__
    lines = linecache.getlines(code.co_filename)
    return next(number for number in range(code.co_firstlineno, len(lines)) if lines[number - 1].endswith("# here\n"))


@named(BAD)
def test_symptom_mechanism_operation_and_line(program):
    explanation = explain(*program.run())
    found = (explanation.exists, explanation.healthy, explanation.symptom, explanation.code, explanation.op)
    assert found == (True, False, program.symptom, program.code, program.op), str(explanation)
    assert explanation.line.number == marked_line(program), str(explanation)
    assert explanation.code in VALUES
    assert explanation.fix


@named(BENIGN)
def test_no_alarm_where_nothing_is_wrong(program):
    explanation = explain(*program.run())
    assert (explanation.exists, explanation.healthy, explanation.symptom) == (True, True, program.symptom), str(
        explanation
    )


# The registry, and the fixes.


def run_example(code, source):
    """Run a documented example as a file of its own, so that its lines are known. Returns its names."""
    file = f"<ipython-input-example-{code}-{hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"tf": tf, "np": np, "ExplainTape": ExplainTape}
    exec(compile(source, file, "exec"), names)
    return names


def explained(names):
    tape, y, x = names["tape"], names["y"], names["x"]
    return explain(tape, y, x)


@pytest.mark.parametrize("code", sorted(set(VALUES) - {"unexplained"}))
def test_the_documented_example_of_a_mechanism_has_that_mechanism(code):
    explanation = explained(run_example(code, VALUES[code].example))
    assert (explanation.code, explanation.exists, explanation.certain) == (code, True, True), str(explanation)
    assert explanation.symptom in SYMPTOMS
    assert explanation.op


# The mechanisms whose fix is the learner's own line, rewritten.
REWRITTEN = [
    "unselected_branch",
    "masked_by_zero",
    "root_at_zero",
    "log_of_zero",
    "zero_times_infinity",
    "division_by_zero",
    "zero_over_zero",
    "domain",
    "pole",
    "overflow",
    "underflow",
    "inf_minus_inf",
    "all_masked",
    "not_positive_definite",
    "dead_relu",
    "flat_operation",
    "wrong_at_zero",
    "softmax_twice",
    "broadcast_loss",
]
# Where the fixed function is meant to differ from its own gradient.
STRAIGHT_THROUGH = {"flat_operation"}


def function_of_x(source, names):
    """The body of the with block of an example, as a function from x to the sum of y."""
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.With))
    body = compile(ast.Module(block.body, []), "<body>", "exec")

    def run(x):
        inside = dict(names) | {"x": x}
        exec(body, inside)
        return tf.reduce_sum(inside["y"])

    return run


@pytest.mark.parametrize("code", REWRITTEN)
def test_the_fix_gives_a_finite_and_right_gradient(code):
    source = VALUES[code].example
    names = run_example(code, source)
    explanation = explained(names)
    lines = source.splitlines()
    assert "y = " in explanation.fix, explanation.fix
    lines[explanation.line.number - 1 : explanation.line.number] = textwrap.indent(explanation.fix, "    ").splitlines()
    run = function_of_x("\n".join(lines), names)
    x = tf.constant(names["x"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(x)
    gradient = tape.gradient(y, x).numpy()
    assert np.isfinite(y.numpy())
    assert np.isfinite(gradient).all(), (explanation.fix, gradient)
    if code in STRAIGHT_THROUGH:
        assert gradient.all()
        return
    bad = np.zeros(gradient.shape, bool)
    if explanation.elements is not None and explanation.symptom in ("nan", "inf"):
        bad[tuple(explanation.elements.indices.T)] = True
    for index in np.argwhere(~bad):
        step = np.zeros(gradient.shape, "float32")
        step[tuple(index)] = 1e-2
        difference = float((run(x + step) - run(x - step)) / 2e-2)
        np.testing.assert_allclose(gradient[tuple(index)], difference, rtol=0.05, atol=2e-3)


def test_a_fix_keeps_the_learners_names_and_the_rest_of_the_line():
    weights = tf.Variable([1.0, 0.0])
    with ExplainTape() as tape:
        penalty = 0.5 * tf.reduce_sum(tf.where(weights > 0, 1.0 / weights, 0.0), axis=0)
    assert explain(tape, penalty, weights).fix.splitlines() == [
        "safe = tf.where(weights > 0, weights, 1.0)",
        "penalty = 0.5 * tf.reduce_sum(tf.where(weights > 0, 1.0 / safe, 0.0), axis=0)",
    ]
    with ExplainTape() as tape:
        kept = tf.where(weights > 0, weights, 1.0)
        losses = [tf.reduce_sum(tf.sqrt(tf.nn.relu(-kept)))]
    assert explain(tape, losses[0], weights).fix == "losses = [tf.reduce_sum(tf.sqrt(tf.nn.relu(-kept) + 1e-12))]"


# What an answer holds.


def test_an_answer_names_the_elements_and_the_chain():
    x = tf.Variable([[1.0, 0.0], [4.0, 9.0]])
    with ExplainTape() as tape:
        roots = tf.sqrt(x)
        y = tf.reduce_sum(roots)
    explanation = explain(tape, y, x)
    assert (explanation.symptom, explanation.code) == ("inf", "root_at_zero")
    assert (explanation.elements.count, explanation.elements.total) == (1, 4)
    assert explanation.elements.indices.tolist() == [[0, 1]]
    assert str(explanation).splitlines()[:3] == [
        "d y / d x is infinite: root_at_zero",
        "Sqrt is taken at 0, where its slope is infinite.",
        "Concerned: element [0, 1] (1 of 4).",
    ]
    with ExplainTape() as tape:
        logarithm = tf.math.log(x)
        y = tf.reduce_sum(logarithm * [[1.0, 0.0], [1.0, 1.0]])
    chain = explain(tape, y, x).chain
    assert [link.op for link in chain] == ["Log", "Mul"]
    assert [link.line.text.split(" = ")[0] for link in chain] == ["logarithm", "y"]


def test_a_layer_is_named():
    model = tf.keras.Sequential(
        [tf.keras.Input((2,)), tf.keras.layers.Dense(2, "tanh", name="squashing"), tf.keras.layers.Dense(1)]
    )
    batch = tf.constant([[1e5, -1e5], [2e5, 3e5]])
    for run in (model, tf.function(model)):
        with ExplainTape() as tape:
            loss = tf.reduce_mean((run(batch) - 1.0) ** 2)
        explanation = explain(tape, loss, model.trainable_variables[0])
        assert explanation.code == "saturated", str(explanation)
        assert explanation.layer.startswith("squashing")  # in a function TensorFlow adds a number
        assert f"(layer {explanation.layer})" in str(explanation)


def test_sources_with_the_same_cause_are_explained_once():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    with ExplainTape() as tape:
        loss = tf.norm(model(tf.zeros((2, 2))))
    explanations = explain(tape, loss, model.trainable_variables)
    assert [one.code for one in explanations.values()] == ["root_at_zero"] * 4
    assert len(explanations.groups()) == 1
    assert explanations
    assert len(explanations.sick()) == 4
    assert str(explanations).count("root_at_zero") == 1
    assert "And 3 other sources:" in str(explanations)
    assert explanations.markdown().count("```python") == 1


def test_asking_changes_nothing():
    x, calls = tf.Variable([1.0, 0.0]), []
    generator = tf.random.Generator.from_seed(1)

    @tf.function
    def run(value):
        x.assign_add(tf.zeros(2))
        return tf.reduce_sum(tf.math.log(value) * generator.uniform((2,)))

    with ExplainTape() as tape:
        y = run(x)
        calls.append(generator.state.numpy())
    explanation = explain(tape, y, x)
    assert (explanation.symptom, explanation.code) == ("inf", "log_of_zero"), str(explanation)
    np.testing.assert_array_equal(generator.state.numpy(), calls[0])
    assert tape.gradient(y, x) is not None


def test_an_answer_that_the_tape_contradicts_is_not_given(monkeypatch):
    x = tf.Variable([4.0, 0.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.sqrt(x))
    monkeypatch.setattr(ExplainTape, "result_for", lambda *_: [tf.constant([np.nan, 7.0])])
    explanation = explain(tape, y, x)
    assert (explanation.symptom, explanation.healthy, explanation.code) == ("nan", False, "unexplained")
    assert not explanation.certain


def test_random_numbers_in_a_loop_of_a_function_are_those_that_were_drawn():
    x = tf.Variable([1.0, 0.0])

    @tf.function
    def run(value):
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total += tf.reduce_sum(tf.random.uniform(()) * tf.sqrt(value))
        return total

    with ExplainTape() as tape:
        y = run(x)
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.op) == ("root_at_zero", "Sqrt"), str(explanation)


def second_derivative(moments):
    x = tf.Variable([1.0, 2.0, 4.0])
    with ExplainTape() as tape:
        with tf.GradientTape() as inner:
            variance = moments(x) ** 2
        y = tf.reduce_sum(inner.gradient(variance, x) ** 2)
    return explain(tape, y, x)


def test_what_scales_a_gradient_is_what_it_is_steep_at():
    x, scale = tf.Variable([3.0, 2.0]), tf.Variable(1e7)
    with ExplainTape() as tape:
        y = tf.reduce_sum(x * scale)
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.op) == ("steep", "Mul")
    assert explanation.sentence.startswith("Mul is steep at 1e7: ")


def test_a_second_derivative_through_moments_is_silently_wrong_and_says_so():
    assert second_derivative(lambda x: tf.nn.moments(x, [0])[1]).remarks == ("moments_twice",)
    assert second_derivative(lambda x: tf.reduce_mean((x - tf.reduce_mean(x)) ** 2)).remarks == ()
    assert "silently wrong" in REMARKS["moments_twice"].meaning
    x = tf.Variable([1.0, 2.0, 4.0])
    with ExplainTape() as tape:
        y = tf.nn.moments(x, [0])[1]
    assert explain(tape, y, x).remarks == ()


def test_a_gradient_that_tensorflow_gets_wrong_says_so():
    x = tf.Variable([1.0, 2.0, 4.0])
    with ExplainTape(persistent=True) as tape:
        twice = tf.dynamic_stitch([[0, 1], [1]], [x[:2], x[2:]])
        once = tf.dynamic_stitch([[0, 1], [2]], [x[:2], x[2:]])
    assert tape.gradient(twice, x).numpy().tolist() == [1.0, 1.0, 1.0]  # the overwritten one counts, and does not
    assert explain(tape, twice, x).remarks == ("wrong_in_tensorflow",)
    assert explain(tape, once, x).remarks == ()
    images = tf.Variable(tf.reshape(tf.range(16.0), [1, 4, 4, 1]))
    with ExplainTape() as tape:
        turned = tf.keras.layers.RandomRotation(0.1, seed=1)(images, training=True)
    assert explain(tape, turned, images).remarks == ("wrong_in_tensorflow",)


def test_stopped_path_is_noted_where_the_learner_stopped_it_on_the_way_to_the_target():
    x = tf.Variable([1.0, 2.0])
    with ExplainTape(persistent=True) as tape:
        shown = tf.stop_gradient(x) * 3.0
        y = x * 2.0
        z = y + shown
        variance = tf.nn.moments(x, [0])[1]
    assert explain(tape, z, x).remarks == ("partly_stopped",)
    assert explain(tape, y, x).remarks == ()  # stopped on the way to something else
    assert explain(tape, variance, x).remarks == ()  # stopped within TensorFlow


def test_explaining_compiled_functions_warns_of_no_retracing(caplog):
    x = tf.Variable([0.0, 1.0, 2.0])

    @tf.function(jit_compile=True)
    def roots(v):
        for _ in range(8):  # more gradient functions than TensorFlow lets pass without a word
            v = tf.sqrt(v + 0.0)
        return v

    with ExplainTape() as tape:
        y = roots(x)
    assert explain(tape, y, x).code == "root_at_zero"
    assert "retracing" not in caplog.text


def test_a_note_about_some_elements_says_how_many_and_where():
    x = tf.Variable([0.5, 2.0, 3.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.clip_by_value(x, 0.0, 1.0))
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.healthy, explanation.remarks) == ("exists", True, ("clipped",))
    assert explanation.sentence == "2 of the gradient's 3 elements are 0: clipped, at Minimum."
    assert "tf.clip_by_value(x, 0.0, 1.0)" in explanation.line.text


OPERATIONS = {"log": lambda v: tf.reduce_sum(tf.math.log(v)), "where": lambda v: tf.where(v > 0, tf.math.log(v), 0.0)}


def test_fix_of_a_lambda_is_that_lambda_and_not_the_line_of_all():
    x = tf.Variable([2.0, 0.0])
    for name, fix in {
        "log": "lambda v: tf.reduce_sum(tf.math.log(v + 1e-7))",
        "where": "lambda v: tf.where(v > 0, tf.math.log(tf.where(v > 0, v, 1.0)), 0.0)",
    }.items():
        with ExplainTape() as tape:
            y = OPERATIONS[name](x)
        assert explain(tape, y, x).fix == fix


WEIGHTS = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]])
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]


@pytest.mark.parametrize(
    "matrix", [2 * np.eye(3), np.diag([1.0, 1.0, 2.0]), ROTATION @ np.diag([3.0, 3, 1]) @ ROTATION.T]
)
@pytest.mark.parametrize("vectors", [lambda a: tf.linalg.svd(a)[1], lambda a: tf.linalg.eigh(a)[1]])
def test_vectors_of_equal_eigenvalues_have_no_gradient_to_rely_on(matrix, vectors):
    x = tf.Variable(matrix)
    with ExplainTape() as tape:
        y = tf.reduce_sum(vectors(x) * WEIGHTS)
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.healthy) == ("degenerate_eigenvalues", False), str(explanation)
    assert explanation.op in ("Svd", "SelfAdjointEigV2")
    assert "compute_uv=False" in explanation.fix


@pytest.mark.parametrize("matrix", [2 * np.eye(3), np.diag([1.0, 1.0, 2.0])])
def test_what_does_not_change_where_equal_eigenvectors_turn_has_a_derivative(matrix):
    """TensorFlow finds it where the values alone count, and misses a part of it where the vectors do."""

    def again(x):
        values, u, v = tf.linalg.svd(x)
        return tf.reduce_sum(WEIGHTS * (u @ tf.linalg.diag(values) @ tf.transpose(v)))

    def projected(x):
        values, vectors = tf.linalg.eigh(x)
        return tf.reduce_sum(WEIGHTS * (vectors @ tf.linalg.diag(values**2) @ tf.transpose(vectors)))

    def of_values(x):
        singular = (tf.linalg.svd(x)[0], tf.linalg.svd(x, compute_uv=False))
        return tf.add_n([tf.reduce_sum(one**2) for one in (*singular, tf.linalg.eigvalsh(x))])

    for function, code in ((again, "equal_eigenvalues"), (projected, "equal_eigenvalues"), (of_values, "exists")):
        x = tf.Variable(matrix)
        with ExplainTape() as tape:
            y = function(x)
        explanation = explain(tape, y, x)
        assert (explanation.code, explanation.healthy) == (code, code == "exists"), str(explanation)
        step = 1e-4 * (np.eye(3)[[0]] + np.eye(3)[[0]].T * np.eye(3)[[1]])  # off the diagonal too
        slope = float(function(matrix + step) - function(matrix - step)) / 2e-4
        assert np.isclose(slope, np.sum(tape.gradient(y, x) * step) / 1e-4, rtol=1e-4) == (code == "exists")


def test_squares_of_what_was_normalised_are_constant_and_nothing_overflowed_or_underflowed():
    x = tf.Variable(tf.constant([[0.0, 2.0], [1.0, 3.0]], tf.float16))
    with ExplainTape() as tape:
        y = tf.reduce_sum(keras.layers.LayerNormalization(epsilon=1e-12, dtype="float16")(x) ** 2)
    explanation = explain(tape, y, x)
    assert explanation.code == "constant_output"
    assert "another loss" in explanation.fix


def test_fix_of_an_overflow_fits_the_operation():
    x = tf.Variable(tf.constant([200.0] * 4, tf.float16))
    with ExplainTape(persistent=True) as tape:
        by_python = sum(x**2)
        layer = keras.layers.LayerNormalization(epsilon=1e-12, dtype="float16")
        normal = layer(tf.reshape(x, (2, 2)))[:, 0]
    assert "softplus" not in explain(tape, by_python, x).fix
    explanation = explain(tape, normal, x)
    assert (explanation.code, explanation.op) == ("overflow", "Cast")
    assert "a larger epsilon where something is normalised" in explanation.fix


def test_fix_of_a_steep_operation_within_a_call_is_no_division():
    x = tf.Variable([[3.0, 4.0], [1e-9, 0.0]])
    with ExplainTape(persistent=True) as tape:
        direction = tf.nn.l2_normalize(x, axis=1, epsilon=1e-20)[1, 1]
        logarithm = tf.math.log(x[1, 0])
        quotient = 1.0 / x[1, 0]
    for target, word in ((direction, "larger epsilon"), (logarithm, "away from 0"), (quotient, "tf.maximum")):
        explanation = explain(tape, target, x)
        assert explanation.code == "steep", str(explanation)
        assert word in explanation.fix
        assert ("tf.maximum" in explanation.fix) == (target is quotient)


def test_contributions_that_cancel_are_named_with_their_sizes():
    x = tf.constant([1.0, 2.0], tf.float64)
    with ExplainTape() as tape:
        tape.watch(x)
        first = tf.reduce_sum(1000.0 * x)
        second = tf.reduce_sum((1000.0 - 2.0**-30) * x)
        y = first - second
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.healthy) == ("cancelling", True)
    assert re.search(r"1e\+03 by Mul \(.*, line \d+\), -1e\+03 by Mul .*; 9.31e-10 is left", explanation.sentence)


def test_rounding_that_cancellation_leaves_is_not_taken_for_a_contradiction():
    """The replay adds up in another order than the tape, and is left with another rounding error."""
    part = tf.constant([1e3], tf.float32)
    found, expected = tf.constant([6e-5]), tf.constant([-3e-5])
    assert studying._agree(found, expected, [(None, part), (None, -part)])
    assert not studying._agree(found, expected, [(None, part / 1e3)])
