"""Questions that people asked on public issue trackers. The code is our own; the mistake in it is theirs.

Each is tried as its author would have: `tf.GradientTape` replaced by `ExplainTape`, then one call of `explain`.
"""

from tapelab import runtime
from tapelab.explain import ExplainTape, explain

import tensorflow as tf

runtime.start(seed=0)


def test_target_is_a_constant():
    """https://github.com/tensorflow/tensorflow/issues/56968"""
    image = tf.ones((1, 8, 8, 1))
    with ExplainTape() as tape:
        score = tf.constant([4.43])
    explanation = explain(tape, score, image)
    assert explanation.code == "unrelated"
    assert explanation.source == "image"


def test_variable_does_not_occur_in_the_expression():
    """https://github.com/tensorflow/tensorflow/issues/24849"""
    used, missing = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        loss = tf.square(used)
    explanations = explain(tape, loss, [used, missing])
    assert explanations["used"]
    assert explanations["missing"].code == "unused_variable"


def test_generator_loss_through_numpy():
    """https://github.com/tensorflow/tensorflow/issues/31919"""
    generator, discriminator = tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)
    with ExplainTape() as tape:
        fake = generator(tf.ones((6, 2)))
        moments = fake.numpy().mean(axis=0).reshape((1, 4))
        loss = tf.reduce_mean(tf.square(discriminator(moments) - 1.0))
    explanation = explain(tape, loss, generator.kernel)
    assert explanation.code == "left_tensorflow"
    assert explanation.line.text == "moments = fake.numpy().mean(axis=0).reshape((1, 4))"


def test_source_is_a_sum_and_not_a_variable():
    """https://github.com/tensorflow/tensorflow/issues/29942"""
    start = tf.Variable(1.0)
    x = start + 3.0
    with ExplainTape() as tape:
        z = x + 4.0
    explanation = explain(tape, z, x)
    assert explanation.code == "not_watched"
    assert explanation.fix.startswith("tape.watch(x)")


def test_convolution_of_plain_tensors():
    """https://github.com/tensorflow/tensorflow/issues/50661"""
    image, kernel = tf.random.normal((1, 4, 4, 1)), tf.random.normal((3, 3, 1, 1))
    with ExplainTape(persistent=True) as tape:
        out = tf.nn.conv2d(image, kernel, strides=1, padding="VALID")
    explanations = explain(tape, out, {"image": image, "kernel": kernel})
    assert [one.code for one in explanations.values()] == ["not_watched", "not_watched"]


def test_grad_cam_with_two_forward_passes():
    """https://github.com/tensorflow/tensorflow/issues/62797"""
    inputs = tf.keras.Input((8, 8, 1))
    features = tf.keras.layers.Conv2D(3, 3, activation="relu")(inputs)
    outputs = tf.keras.layers.Dense(5)(tf.keras.layers.GlobalAveragePooling2D()(features))
    model, to_features = tf.keras.Model(inputs, outputs), tf.keras.Model(inputs, features)
    image = tf.random.normal((1, 8, 8, 1))
    with ExplainTape() as tape:
        last_conv = to_features(image)
        score = model(image)[:, 2]
    explanation = explain(tape, score, last_conv)
    assert explanation.code == "recomputed"
    assert explanation.line.text == "score = model(image)[:, 2]"


def test_a_layer_without_a_gradient():
    """https://github.com/tensorflow/tensorflow/issues/62145"""
    first, last = tf.keras.layers.Conv2D(3, 3), tf.keras.layers.Dense(1)
    with ExplainTape() as tape:
        images = first(tf.random.uniform((1, 8, 8, 3)))
        images = tf.image.adjust_contrast(images, 0.8)
        loss = tf.reduce_sum(last(images))
    explanation = explain(tape, loss, first.kernel)
    assert explanation.code == "no_gradient_registered"
    assert explanation.line.text == "images = tf.image.adjust_contrast(images, 0.8)"


def test_gradient_of_a_gradient_taken_outside():
    """https://github.com/tensorflow/tensorflow/issues/41510"""
    y, v = tf.constant(2.0), tf.Variable(3.0)
    with ExplainTape(persistent=True) as tape:
        tape.watch(y)
        w = y * y * v
    first = tape.gradient(w, y)
    assert explain(tape, first, v).code == "inner_gradient_outside"


def test_custom_gradient_within_a_custom_gradient():
    """https://github.com/tensorflow/tensorflow/issues/34503"""

    @tf.custom_gradient
    def op(x):
        @tf.custom_gradient
        def first(upstream):
            return upstream * 5.0, lambda second: second

        return x * 5.0, first

    x = tf.constant([0.3])
    with ExplainTape() as tape:
        tape.watch(x)
        with ExplainTape() as inner:
            inner.watch(x)
            y = op(x)
        slope = inner.gradient(y, x)
    assert explain(tape, slope, x).code == "constant_derivative"


def test_a_threshold_in_the_loss():
    """https://github.com/tensorflow/tensorflow/issues/8625"""
    layer, truth = tf.keras.layers.Dense(1), tf.ones((4, 1))
    with ExplainTape() as tape:
        probability = tf.sigmoid(layer(tf.random.normal((4, 3))))
        predicted = tf.floor(probability)
        loss = tf.reduce_mean(tf.abs(truth - predicted))
    explanation = explain(tape, loss, layer.kernel)
    assert explanation.code == "not_differentiable"
    assert explanation.line.text == "predicted = tf.floor(probability)"


def test_the_difference_of_predicted_and_true_classes():
    """https://github.com/tensorflow/tensorflow/issues/1511"""
    weights, labels = tf.Variable(tf.random.normal((3, 4))), tf.one_hot([0, 2], 4)
    with ExplainTape() as tape:
        logits = tf.matmul(tf.ones((2, 3)), weights)
        difference = tf.cast(tf.argmax(logits, 1) - tf.argmax(labels, 1), tf.float32)
        loss = tf.nn.l2_loss(difference)
    explanation = explain(tape, loss, weights)
    assert explanation.code == "not_differentiable"
    assert "ArgMax" in explanation.sentence
    assert explanation.line.text.startswith("difference")


def test_rounding_in_a_custom_loss():
    """https://github.com/keras-team/keras/issues/4175"""
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])

    def loss_function(truth, predicted):
        return tf.reduce_mean(tf.square(truth - tf.keras.ops.round(predicted)))

    with ExplainTape() as tape:
        loss = loss_function(tf.ones((2, 1)), model(tf.ones((2, 3))))
    explanations = explain(tape, loss, model.trainable_variables)
    assert {one.code for one in explanations.values()} == {"not_differentiable"}
    assert len(explanations) == 2


def test_a_threshold_by_casting():
    """https://github.com/tensorflow/tensorflow/issues/47083"""
    weight = tf.Variable(9.0)
    with ExplainTape() as tape:
        score = weight * 0.3
        decision = tf.cast(tf.cast(score, tf.int32), tf.float32)
        loss = tf.square(1.0 - decision)
    assert explain(tape, loss, weight).code == "cast_to_integer"


def test_the_jacobian_of_a_py_function():
    """https://github.com/tensorflow/tensorflow/issues/60084"""
    a = tf.Variable([1.0, 2.0])
    with ExplainTape(persistent=True) as tape:
        y = tf.py_function(lambda value: value**2, [a], a.dtype)
    assert tape.gradient(y, a).numpy().tolist() == [2.0, 4.0]
    explanation = explain(tape, y, a)
    assert explanation.exists
    assert "be computed once" in str(explanation)
