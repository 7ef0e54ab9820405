"""Seventy-eight small programs as engineers and students write them: 62 with a bad gradient or value, 16 healthy.

Each ``case_*`` takes a tape class, makes its own data, opens the tape, and returns (tape, target, source). The line
to change, or on which the value turns bad, ends with "# <- here". Their author had not seen the explainer. `TRUTHS`
was written, and checked with a plain `tf.GradientTape`, before the explainer ran on any of them. One truth was wrong
and was mended since: where a softmax meets from_logits=True, Keras takes the logits that it remembers.
"""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf

# --------------------------------------------------------------------------- not a number


def case_nan_pairwise_distances(Tape):
    """Points repel: the diagonal of the distance matrix is zero."""
    points = tf.Variable([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    charge = tf.constant([1.0, 2.0, 1.0])
    with Tape() as tape:
        difference = points[:, None, :] - points[None, :, :]
        squared = tf.reduce_sum(difference**2, axis=-1)
        distance = tf.sqrt(squared)  # <- here
        weight = tf.sqrt(charge[:, None] * charge[None, :])
        energy = tf.reduce_sum(weight * tf.math.log1p(distance))
    return tape, energy, points


def unit(v):
    length = tf.norm(v, axis=-1, keepdims=True)
    return v / length  # <- here


def case_nan_cosine_similarity_helper(Tape):
    """A row without any feature has no direction."""
    table = tf.Variable([[1.0, 2.0, 2.0], [0.0, 0.0, 0.0], [2.0, 0.0, 1.0]])
    query = tf.constant([1.0, 1.0, 0.0])
    with Tape() as tape:
        a = unit(table)
        b = unit(query)
        similarity = tf.linalg.matvec(a, b)
        loss = tf.reduce_mean((similarity - 1.0) ** 2)
    return tape, loss, table


def case_nan_spring_at_rest_point(Tape):
    """Two ends of a spring at one place, in a compiled function."""
    a = tf.Variable([1.0, 2.0, 0.5])
    b = tf.constant([1.0, 2.0, 0.5])
    stiffness, rest = 3.0, 0.7

    @tf.function
    def spring(p, q):
        d = p - q
        length = tf.norm(d)  # <- here
        stretch = length - rest
        return 0.5 * stiffness * stretch**2

    with Tape() as tape:
        u = spring(a, b)
    return tape, u, a


def case_nan_entropy_where_function(Tape):
    """The textbook guard against 0 log 0, which guards the value only."""
    p = tf.Variable([0.5, 0.0, 0.25, 0.25])

    @tf.function
    def entropy(q):
        term = -q * tf.math.log(q)  # <- here
        return tf.reduce_sum(tf.where(q > 0, term, tf.zeros_like(q)))  # <- here

    with Tape() as tape:
        h = entropy(p)
        penalty = tf.sqrt(tf.reduce_sum(p**2) + 1.0)
        total = h + 0.1 * penalty
    return tape, total, p


def case_nan_black_scholes_at_expiry(Tape):
    """At the money, on the last day: log(1) / (sigma sqrt(0))."""
    spot = tf.Variable([100.0, 110.0])
    strike = tf.constant([100.0, 100.0])
    days = tf.constant([0.0, 30.0])
    sigma, rate = 0.2, 0.01
    with Tape() as tape:
        t = days / 365.0
        vol = sigma * tf.sqrt(t)
        moneyness = tf.math.log(spot / strike)
        d1 = (moneyness + (rate + sigma**2 / 2) * t) / vol  # <- here
        d2 = d1 - vol
        cdf = lambda z: 0.5 * (1.0 + tf.math.erf(z / math.sqrt(2.0)))
        price = spot * cdf(d1) - strike * tf.exp(-rate * t) * cdf(d2)
        value = tf.reduce_sum(price)
    return tape, value, spot


def case_nan_great_circle(Tape):
    """Distance of a place on the equator from itself."""
    here = tf.Variable([0.0, 0.0])
    there = tf.constant([0.0, 0.0])
    radius = 6371.0
    with Tape() as tape:
        lat1, lon1 = tf.unstack(here)
        lat2, lon2 = tf.unstack(there)
        inner = tf.sin(lat1) * tf.sin(lat2) + tf.cos(lat1) * tf.cos(lat2) * tf.cos(lon1 - lon2)
        angle = tf.acos(inner)  # <- here
        km = radius * angle
    return tape, km, here


def case_nan_correlation_angle(Tape):
    """A measured correlation of 1.02 has no angle."""
    correlation = tf.Variable([0.3, 1.02, -0.5])
    with Tape() as tape:
        spread = tf.sqrt(1.0 + correlation**2)
        theta = tf.acos(correlation)  # <- here
        loss = tf.reduce_mean(theta**2 / spread)
    return tape, loss, correlation


class HandSoftmax(keras.layers.Layer):
    def __init__(self, n):
        super().__init__()
        self.score = keras.layers.Dense(n, kernel_initializer="ones")

    def call(self, x):
        s = self.score(x)
        e = tf.exp(s)  # <- here
        total = tf.reduce_sum(e, axis=-1, keepdims=True)
        return e / total


def case_nan_softmax_layer_overflow(Tape):
    """exp(s) / sum(exp(s)) in a layer of one's own."""
    layer = HandSoftmax(3)
    x = tf.constant([[20.0, 30.0, 45.0], [0.1, 0.2, 0.3]])
    y = tf.one_hot([0, 2], 3)
    layer(x)
    with Tape() as tape:
        p = layer(x)
        loss = -tf.reduce_mean(tf.reduce_sum(y * tf.math.log(p + 1e-7), axis=-1))
    return tape, loss, layer.score.kernel


def case_nan_softplus_by_hand(Tape):
    """log(1 + exp(x)) of a large logit."""
    logits = tf.Variable([-2.0, 0.5, 120.0])
    labels = tf.constant([0.0, 1.0, 1.0])
    with Tape() as tape:
        grown = tf.exp(logits)  # <- here
        normaliser = tf.math.log(1.0 + grown)
        loss = tf.reduce_mean(normaliser - labels * logits)
    return tape, loss, logits


def case_nan_attention_row_all_masked(Tape):
    """An empty sentence in a batch: no key is left for its queries."""
    q = tf.Variable(np.linspace(-1, 1, 2 * 3 * 4).reshape(2, 3, 4).astype("float32"))
    k = tf.constant(np.linspace(0, 1, 2 * 3 * 4).reshape(2, 3, 4).astype("float32"))
    lengths = tf.constant([2, 0])
    with Tape() as tape:
        scores = tf.matmul(q, k, transpose_b=True) / tf.sqrt(4.0)
        keep = tf.sequence_mask(lengths, 3)[:, None, :]
        scores = tf.where(keep, scores, float("-inf"))  # <- here
        attention = tf.nn.softmax(scores)  # <- here
        out = tf.matmul(attention, k)
        loss = tf.reduce_mean(out**2)
    return tape, loss, q


def case_nan_regret_of_unreachable(Tape):
    """Costs of unreachable places are infinite, and so is the best of them."""
    cost = tf.Variable([[1.0, 2.0, 4.0], [2.0, 3.0, 1.0]])
    reachable = tf.constant([[True, True, False], [False, False, False]])
    with Tape() as tape:
        price = tf.where(reachable, cost, math.inf)
        best = tf.reduce_min(price, axis=1, keepdims=True)
        regret = price - best  # <- here
        choice = tf.exp(-regret)
        loss = tf.reduce_sum(choice)
    return tape, loss, cost


def case_nan_mask_times_log(Tape):
    """Padding has probability 0, and the mask comes too late."""
    w = tf.Variable([[0.2, 0.3], [0.5, -0.1]])
    steps = tf.constant([[1.0, 2.0], [2.0, 1.0], [0.0, 0.0]])
    mask = tf.constant([1.0, 1.0, 0.0])
    with Tape() as tape:
        strength = tf.reduce_sum(tf.square(tf.matmul(steps, w)), axis=-1)
        logs = tf.math.log(strength)  # <- here
        masked = logs * mask  # <- here
        loss = -tf.reduce_sum(masked) / tf.reduce_sum(mask)
    return tape, loss, w


def case_nan_harmonic_mean(Tape):
    """The value is 0 and right; the gradient is 0 times infinity."""
    speed = tf.Variable([30.0, 0.0, 60.0])
    with Tape() as tape:
        pace = 1.0 / speed  # <- here
        mean_pace = tf.reduce_mean(pace)
        harmonic = 1.0 / mean_pace
        loss = (harmonic - 40.0) ** 2
    return tape, loss, speed


def case_nan_contrast_of_flat_patch(Tape):
    """Standard deviation of a patch in which all pixels are equal, beside an innocent logarithm."""
    image = tf.Variable([[0.5, 0.5, 0.5], [0.1, 0.8, 0.3]])
    with Tape() as tape:
        mean, image_log = tf.reduce_mean(image, axis=1), tf.math.log(image)
        contrast = tf.math.reduce_std(image, axis=1)  # <- here
        loss = tf.reduce_sum(contrast / (mean + 1.0)) - 0.01 * tf.reduce_mean(image_log)
    return tape, loss, image


def case_nan_gamma_correction(Tape):
    """A pixel fell below black after sharpening."""
    image = tf.Variable([[0.2, 0.5, 0.2], [0.9, 0.1, 0.9], [0.4, 0.5, 0.4]])
    kernel = tf.constant([[0.0, -1.0, 0.0], [-1.0, 5.0, -1.0], [0.0, -1.0, 0.0]])
    with Tape() as tape:
        sharp = tf.nn.conv2d(image[None, :, :, None], kernel[:, :, None, None], 1, "SAME")
        shown = sharp ** (1 / 2.2)  # <- here
        brightness = tf.reduce_mean(shown)
    return tape, brightness, image


def case_nan_newton_while_loop(Tape):
    """Newton's method for a square root, started where the slope is 0."""
    a = tf.Variable(2.0)
    start = tf.Variable(0.0)

    @tf.function
    def root(a, x):
        i = tf.constant(0)
        while i < 6:
            step = (x * x - a) / (2.0 * x)  # <- here
            x = x - step
            i += 1
        return x

    with Tape() as tape:
        r = root(a, start)
    return tape, r, a


@tf.custom_gradient
def clamp_log(x):
    y = tf.math.log(tf.maximum(x, 1e-6))

    def grad(upstream):
        return tf.math.sign(x) * upstream / x  # <- here

    return y, grad


def case_nan_custom_gradient_of_log(Tape):
    """The forward pass is safe, the hand-written backward pass is not."""
    p = tf.Variable([0.1, 0.0, 0.9])
    with Tape() as tape:
        loss = -tf.reduce_sum(clamp_log(p))  # <- here
    return tape, loss, p


def case_nan_data_with_a_gap(Tape):
    """A sensor that did not answer."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
    x = np.array([[0.1, 0.2, 0.3], [0.4, np.nan, 0.6], [0.7, 0.8, 0.9]], "float32")  # <- here
    y = np.array([[1.0], [2.0], [3.0]], "float32")
    with Tape() as tape:
        prediction = model(x, training=True)  # <- here
        loss = tf.reduce_mean((y - prediction) ** 2)
    return tape, loss, model.trainable_variables[0]


def case_nan_rate_too_large(Tape):
    """Gradient descent that diverged some steps ago."""
    w = tf.Variable(1.0)
    for _ in range(60):
        with tf.GradientTape() as inner:
            cost = (w**2 - 2.0) ** 2
        w.assign_sub(1.0 * inner.gradient(cost, w))  # <- here
    with Tape() as tape:
        square = w**2  # <- here
        loss = (square - 2.0) ** 2
    return tape, loss, w


class Elu(keras.layers.Layer):
    def call(self, x):
        negative = tf.exp(x) - 1.0  # <- here
        return tf.where(x > 0, x, negative)  # <- here


def case_nan_elu_layer_functional(Tape):
    """exp of a large positive value in the branch that is not taken."""
    inputs = keras.Input((2,))
    hidden = keras.layers.Dense(2, kernel_initializer="ones")(inputs)
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(Elu()(hidden))
    model = keras.Model(inputs, outputs)
    x = tf.constant([[60.0, 70.0], [-1.0, 0.5]])
    with Tape() as tape:
        loss = tf.reduce_mean(tf.abs(model(x) - 1.0))
    return tape, loss, model.layers[1].kernel


def case_nan_sinc(Tape):
    """sin(x)/x with its value at 0 filled in."""
    x = tf.Variable([-1.0, 0.0, 2.0])
    with Tape() as tape:
        ratio = tf.sin(x) / x  # <- here
        sinc = tf.where(tf.equal(x, 0.0), 1.0, ratio)  # <- here
        power = tf.reduce_sum(sinc**2)
    return tape, power, x


def case_nan_xla_guarded_root(Tape):
    """XLA does not give 0 where the plain kernel does."""
    x = tf.Variable([4.0, 0.0, -1.0])

    @tf.function(jit_compile=True)
    def safe_root(v):
        root = tf.sqrt(v)  # <- here
        return tf.reduce_sum(tf.where(v > 0, root, 0.0))  # <- here

    with Tape() as tape:
        s = safe_root(x)
    return tape, s, x


def case_nan_map_fn_normalise(Tape):
    """Each row divided by its sum; one row is empty."""
    counts = tf.Variable([[1.0, 3.0], [0.0, 0.0], [2.0, 2.0]])

    def share(row):
        total = tf.reduce_sum(row)
        return row / total  # <- here

    @tf.function
    def run(c):
        return tf.map_fn(share, c)

    with Tape() as tape:
        shares = run(counts)
        gini = 1.0 - tf.reduce_sum(shares**2, axis=1)
        loss = tf.reduce_mean(gini)
    return tape, loss, counts


def case_nan_empty_sentence(Tape):
    """Mean of the embeddings of a sentence without words."""
    table = tf.Variable(np.linspace(-0.5, 0.5, 12).reshape(4, 3).astype("float32"))
    words = tf.constant([[1, 2, 0], [0, 0, 0]])
    with Tape() as tape:
        e = tf.nn.embedding_lookup(table, words)
        keep = tf.cast(words > 0, tf.float32)[..., None]
        mean = tf.reduce_sum(e * keep, axis=1) / tf.reduce_sum(keep, axis=1)  # <- here
        loss = tf.reduce_mean(tf.square(mean))
    return tape, loss, table


class Gauss(keras.Model):
    def __init__(self):
        super().__init__()
        self.mean = keras.layers.Dense(1, kernel_initializer="ones")
        self.variance = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.mean(x), self.variance(x)


def case_nan_variance_head_without_activation(Tape):
    """A network may predict a negative variance."""
    model = Gauss()
    x = tf.constant([[0.5, 0.5], [1.0, -2.5]])
    y = tf.constant([[1.0], [0.0]])
    model(x)
    with Tape() as tape:
        mu, var = model(x)
        z = (y - mu) / tf.sqrt(tf.square(var) + 1e-3)
        nll = 0.5 * z**2 + 0.5 * tf.math.log(var)  # <- here
        loss = tf.reduce_mean(nll)
    return tape, loss, model.trainable_variables


def case_nan_poisson_rate_zero(Tape):
    """relu gives a rate of 0 to a count of 3."""
    inputs = keras.Input((2,))
    rate = keras.layers.Dense(
        1, activation="relu", kernel_initializer="ones", bias_initializer=keras.initializers.Constant(0.1)
    )(inputs)
    model = keras.Model(inputs, rate)
    x = tf.constant([[1.0, 0.5], [-2.0, 0.5]])
    count = tf.constant([[2.0], [3.0]])

    def poisson(k, lam):
        return tf.reduce_mean(lam - k * tf.math.log(lam))  # <- here

    with Tape() as tape:
        loss = poisson(count, model(x))
    return tape, loss, model.trainable_variables[0]


def case_nan_log_cosh_by_hand(Tape):
    """cosh of an error of 120."""
    w = tf.Variable([[2.0], [1.0]])
    x = tf.constant([[50.0, 20.0], [0.1, 0.2]])
    y = tf.constant([[0.0], [0.1]])
    with Tape() as tape:
        error = x @ w - y
        loss = tf.reduce_mean(tf.math.log(tf.cosh(error)))  # <- here
    return tape, loss, w


def case_nan_gp_kernel(Tape):
    """Correlations that cannot hold together: Cholesky has no answer."""
    rho = tf.Variable(0.9)
    with Tape() as tape:
        one = tf.ones_like(rho)
        k = tf.stack([[one, rho, -rho], [rho, one, rho], [-rho, rho, one]])
        lower = tf.linalg.cholesky(k)  # <- here
        logdet = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(lower)))
    return tape, logdet, rho


def case_nan_polynomial_at_zero(Tape):
    """A column t ** 0 is 1 everywhere, and its slope at 0 is 0 times 0 ** -1."""
    t = tf.Variable([0.0, 0.5, 1.0])
    weights = tf.constant([1.0, -2.0, 0.5])
    with Tape() as tape:
        columns = tf.stack([tf.pow(t, float(k)) for k in range(3)], axis=1)  # <- here
        curve = tf.linalg.matvec(columns, weights)
        loss = tf.sqrt(tf.reduce_sum(curve**2))
    return tape, loss, t


# --------------------------------------------------------------------------- target not finite, gradient good


def case_target_nan_kl_one_hot(Tape):
    """0 log 0 of the labels: the loss is NaN, the gradient is fine."""
    logits = tf.Variable([[1.0, 0.0, -1.0]])
    p = tf.constant([[0.0, 1.0, 0.0]])
    with Tape() as tape:
        log_q = tf.nn.log_softmax(logits)
        log_p = tf.math.log(p)  # <- here
        kl = tf.reduce_sum(p * (log_p - log_q))  # <- here
    return tape, kl, logits


def case_target_nan_mean_of_nothing(Tape):
    """No example of the batch is hard enough."""
    w = tf.Variable([1.0, 2.0])
    x = tf.constant([[0.1, 0.2], [0.3, 0.1]])
    with Tape() as tape:
        error = tf.abs(tf.linalg.matvec(x, w))
        hard = tf.boolean_mask(error, error > 5.0)  # <- here
        loss = tf.reduce_mean(hard)  # <- here
    return tape, loss, w


# --------------------------------------------------------------------------- infinite


def case_inf_isoelastic_utility(Tape):
    """c ** 0.4 with one household that consumes nothing."""
    consumption = tf.Variable([4.0, 0.0, 9.0])
    share = tf.constant([0.3, 0.4, 0.3])
    with Tape() as tape:
        utility = tf.pow(consumption, 0.4)  # <- here
        welfare = tf.reduce_sum(share * utility)
    return tape, welfare, consumption


def case_inf_snell_critical_angle(Tape):
    """Light at the critical angle."""
    ratio = tf.Variable(1.5)
    with Tape() as tape:
        sine = ratio * (2.0 / 3.0) * tf.sin(tf.constant(math.pi / 2))
        refracted = tf.asin(sine)  # <- here
        offset = 0.3 * refracted
    return tape, offset, ratio


def case_inf_py_function_root(Tape):
    """A root inside tf.py_function."""
    area = tf.Variable([4.0, 0.0, 1.0])

    def side(a):
        return tf.sqrt(a)  # <- here

    with Tape() as tape:
        length = tf.py_function(side, [area], tf.float32)  # <- here
        fence = 4.0 * tf.reduce_sum(length)
    return tape, fence, area


def case_inf_float16_loss_scale(Tape):
    """The scale fits the loss and not the gradient."""
    w = tf.Variable(tf.constant([[1.0], [2.0]], tf.float16))
    x = tf.constant([[30.0, 10.0], [20.0, 40.0]], tf.float16)
    y = tf.constant([[51.0], [99.0]], tf.float16)
    with Tape() as tape:
        error = x @ w - y  # <- here
        loss = tf.reduce_mean(error**2)
        scaled = loss * 8192.0  # <- here
    return tape, scaled, w


def case_inf_cond_root(Tape):
    """The root is taken in one branch of a conditional, at 0."""
    height = tf.Variable(0.0)
    g = 9.81

    @tf.function
    def impact_speed(h):
        if h >= 0.0:
            v = tf.sqrt(2.0 * g * h)  # <- here
        else:
            v = tf.zeros_like(h)
        return v

    with Tape() as tape:
        v = impact_speed(height)
        momentum = 3.0 * v
    return tape, momentum, height


# --------------------------------------------------------------------------- all zero


def case_zero_rms_norm_float16(Tape):
    """300 squared is more than float16 holds; everything after it is 0."""
    x = tf.Variable(tf.constant([[300.0, 310.0, 320.0]], tf.float16))
    gain = tf.constant([1.0, 1.1, 0.9], tf.float16)
    with Tape() as tape:
        square = x * x  # <- here
        mean = tf.reduce_mean(square, axis=-1, keepdims=True)
        normed = x * tf.math.rsqrt(mean + tf.cast(1e-3, tf.float16)) * gain
        loss = tf.reduce_sum((normed - 1.0) ** 2)
    return tape, loss, x


def case_zero_dead_relu_sequential(Tape):
    """A bias that was pushed far below zero."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(
                5, activation="relu", kernel_initializer="ones", bias_initializer=keras.initializers.Constant(-20.0)
            ),
            keras.layers.Dense(1),
        ]
    )
    x = tf.random.stateless_uniform((8, 3), (1, 2))
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    with Tape() as tape:
        loss = keras.losses.MeanSquaredError()(y, model(x))  # <- here
    return tape, loss, model.layers[0].kernel


def case_zero_pixels_into_tanh(Tape):
    """Bytes from 0 to 255 that nobody scaled."""
    w = tf.Variable(tf.fill((16, 4), 0.3))
    v = tf.Variable(tf.fill((4, 1), 0.5))
    pixels = tf.constant(np.arange(32).reshape(2, 16) * 8.0, tf.float32)
    with Tape() as tape:
        hidden = tf.tanh(pixels @ w)  # <- here
        out = tf.sigmoid(hidden @ v)
        loss = tf.reduce_mean(tf.nn.relu(1.0 - out))
    return tape, loss, w


def case_zero_clipped_prediction(Tape):
    """Predictions are clipped to [0, 1] and lie above it."""
    w = tf.Variable([2.0, 3.0])
    x = tf.constant([[1.0, 1.0], [2.0, 0.5]])
    y = tf.constant([0.0, 1.0])
    with Tape() as tape:
        raw = tf.linalg.matvec(x, w)
        p = tf.clip_by_value(raw, 0.0, 1.0)  # <- here
        loss = tf.reduce_mean((p - y) ** 2)
    return tape, loss, w


def case_zero_perceptron_sign(Tape):
    """Squared error of a class label."""
    w = tf.Variable([[0.3], [-0.2]])
    b = tf.Variable([0.1])
    x = tf.constant([[1.0, 2.0], [3.0, 1.0], [-1.0, 1.0]])
    y = tf.constant([[1.0], [1.0], [1.0]])
    with Tape() as tape:
        side = tf.sign(x @ w + b)  # <- here
        loss = tf.reduce_mean((side - y) ** 2)
    return tape, loss, [w, b]


def case_zero_both_layers_start_at_zero(Tape):
    """The second layer's weights are zero, so the first one learns nothing."""
    first = tf.Variable(tf.zeros((3, 4)))
    second = tf.Variable(tf.zeros((4, 1)))
    x = tf.constant([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])
    y = tf.constant([[1.0], [0.0]])
    with Tape() as tape:
        h = tf.tanh(x @ first)
        out = tf.matmul(h, second)  # <- here
        loss = tf.reduce_mean((out - y) ** 2)
    return tape, loss, first


def case_zero_softmax_of_one_unit(Tape):
    """Dense(1, activation="softmax") says 1 whatever comes in."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(6, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=3))(
        inputs
    )
    outputs = keras.layers.Dense(1, activation="softmax")(hidden)
    model = keras.Model(inputs, outputs)
    x = tf.random.stateless_normal((5, 4), (3, 4))
    y = tf.constant([[0.0], [1.0], [1.0], [0.0], [1.0]])
    with Tape() as tape:
        p = model(x)  # <- here
        loss = tf.reduce_mean((y - p) ** 2)
    return tape, loss, model.layers[1].kernel


def case_zero_from_logits_forgotten(Tape):
    """The last layer is linear and the loss was not told."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    x = tf.constant([[4.0, 3.0], [2.0, 6.0], [1.0, 8.0]])
    y = tf.constant([[0.0], [1.0], [0.0]])
    bce = keras.losses.BinaryCrossentropy()
    with Tape() as tape:
        out = model(x)
        loss = bce(y, out)  # <- here
    return tape, loss, model.trainable_variables[0]


def case_zero_kl_weight_in_first_epoch(Tape):
    """Annealing starts at 0: the prior's mean gets nothing."""
    prior_mean = tf.Variable([0.5, -0.5])
    code = tf.constant([[1.0, 0.0], [0.2, 0.4]])
    epoch = 0
    with Tape() as tape:
        reconstruction = tf.reduce_mean(code**2)
        beta = min(1.0, epoch / 10)
        divergence = 0.5 * tf.reduce_sum((code - prior_mean) ** 2)
        loss = reconstruction + beta * divergence  # <- here
    return tape, loss, prior_mean


def case_zero_likelihood_of_many(Tape):
    """The product of three hundred probabilities."""
    logit = tf.Variable(0.3)
    tosses = tf.constant([1.0, 0.0, 1.0] * 100)
    with Tape() as tape:
        p = tf.sigmoid(logit)
        each = tosses * p + (1.0 - tosses) * (1.0 - p)
        likelihood = tf.reduce_prod(each)  # <- here
        loss = -likelihood
    return tape, loss, logit


def case_zero_other_output_of_function(Tape):
    """The function returns two losses and the wrong one is used."""
    encoder = tf.Variable([1.0, 2.0])
    decoder = tf.Variable([0.5, 0.1])

    @tf.function
    def losses(x):
        fit = tf.reduce_sum((x * decoder - 1.0) ** 2)
        code = tf.reduce_sum((x * encoder) ** 2)
        return fit, code

    with Tape() as tape:
        fit, code = losses(tf.constant([1.0, 3.0]))  # <- here
        loss = 2.0 * fit  # <- here
    return tape, loss, encoder


def case_zero_units_start_at_the_kink(Tape):
    """relu of a layer that starts at zero."""
    w = tf.Variable(tf.zeros((2, 3)))
    readout = tf.constant([[1.0], [0.5], [-1.0]])
    x = tf.constant([[1.0, 2.0], [3.0, -1.0]])
    with Tape() as tape:
        x = tf.matmul(x, w)
        x = tf.nn.relu(x)  # <- here
        x = tf.matmul(x, readout)
        loss = tf.reduce_mean((x - 1.0) ** 2)
    return tape, loss, w


def case_zero_batch_norm_of_one_row(Tape):
    """The mean of one row is the row."""
    keras.utils.set_random_seed(2)
    dense = keras.layers.Dense(4)
    norm = keras.layers.BatchNormalization()
    x = tf.constant([[1.0, -2.0, 0.5]])
    norm(dense(x))
    with Tape() as tape:
        h = dense(x)
        h = norm(h, training=True)  # <- here
        loss = tf.reduce_sum((h - 1.0) ** 2)
    return tape, loss, dense.kernel


def case_zero_warm_up_selects_the_other(Tape):
    """For the first thousand steps the schedule uses the fixed temperature."""
    temperature = tf.Variable(2.0)
    logits = tf.constant([1.0, 0.0, 3.0])
    step = tf.constant(10)
    with Tape() as tape:
        t = tf.where(step < 1000, tf.constant(1.0), temperature)  # <- here
        p = tf.nn.softmax(logits / t)
        loss = -tf.math.log(p[0])
    return tape, loss, temperature


# --------------------------------------------------------------------------- zero for a share


def case_part_adversarial_pixels(Tape):
    """Pixels that already are white cannot get whiter."""
    image = tf.constant([[1.0, 1.0, 0.2], [0.4, 1.0, 1.0]])
    delta = tf.Variable(tf.fill((2, 3), 0.05))
    w = tf.constant([[0.5], [-0.25], [1.0]])
    with Tape() as tape:
        shown = tf.clip_by_value(image + delta, 0.0, 1.0)  # <- here
        score = tf.reduce_sum(tf.matmul(shown, w))
    return tape, score, delta


def case_part_survival_curve(Tape):
    """In one month every patient left the study: the hazard is 1."""
    hazard = tf.Variable([0.1, 1.0, 0.3, 0.2])
    with Tape() as tape:
        survival = tf.math.cumprod(1.0 - hazard)  # <- here
        expected = tf.reduce_sum(survival)
    return tape, expected, hazard


# --------------------------------------------------------------------------- huge and tiny


def case_tiny_deep_sigmoid(Tape):
    """Fourteen sigmoid layers."""
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(10, activation="sigmoid") for _ in range(14)]
    model = keras.Sequential([keras.Input((10,)), *layers, keras.layers.Dense(1)])
    x = tf.random.stateless_normal((6, 10), (5, 6))
    y = tf.ones((6, 1))
    with Tape() as tape:
        loss = tf.reduce_mean(keras.losses.mean_squared_error(y, model(x)))  # <- here
    return tape, loss, model.layers[0].kernel


def case_tiny_recurrent_by_hand(Tape):
    """A recurrent network that forgets: the first state, sixty steps later."""
    h0 = tf.Variable([[0.5, -0.3]])
    w = tf.constant([[0.4, 0.1], [-0.2, 0.5]])
    inputs = tf.constant(np.sin(np.arange(120)).reshape(60, 1, 2), tf.float32)

    def cell(h, x):
        return tf.tanh(tf.matmul(h, w) + x)  # <- here

    @tf.function
    def last(h):
        states = tf.scan(cell, inputs, initializer=h)
        return states[-1]

    with Tape() as tape:
        loss = tf.reduce_sum(last(h0) ** 2)
    return tape, loss, h0


def case_huge_zscore_of_constant_feature(Tape):
    """The second feature is the same in every row, and epsilon is 1e-6."""
    x = tf.Variable([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    w = tf.constant([[0.3], [0.7]])
    with Tape() as tape:
        centre = tf.reduce_mean(x, axis=0)
        scale = tf.math.reduce_std(x, axis=0)
        z = (x - centre) / (scale + 1e-6)  # <- here
        loss = tf.reduce_mean(tf.square(z @ w - 1.0))
    return tape, loss, x


def case_huge_log_of_tiny_probability(Tape):
    """One event was thought to be all but impossible, and happened."""
    p = tf.Variable([0.5, 1e-9, 0.3])
    with Tape() as tape:
        root = tf.sqrt(tf.reduce_sum(p))
        surprise = -tf.math.log(p)  # <- here
        loss = tf.reduce_mean(surprise) * root
    return tape, loss, p


def case_huge_nearly_equal_eigenvalues(Tape):
    """The axes of an ellipse that is nearly a circle."""
    a = tf.Variable([[2.0, 1e-7], [1e-7, 2.0]], dtype=tf.float64)
    with Tape() as tape:
        values, axes = tf.linalg.eigh(a)  # <- here
        first = axes[:, 0] * tf.sign(axes[0, 0])
        tilt = first[0] * 0.3 + first[1] ** 3 + tf.reduce_sum(values)
    return tape, tilt, a


def case_huge_linear_recurrence(Tape):
    """A recurrent matrix whose largest eigenvalue is about 2.6, forty times."""
    w = tf.Variable([[2.0, 1.0], [0.5, 2.0]])
    h0 = tf.constant([[0.1], [0.2]])

    @tf.function
    def unroll(w):
        body = lambda i, h: (i + 1, tf.matmul(w, h))  # <- here
        _, h = tf.while_loop(lambda i, h: i < 40, body, [tf.constant(0), h0])
        return tf.reduce_mean(h)

    with Tape() as tape:
        out = unroll(w)
    return tape, out, w


def case_huge_logistic_map(Tape):
    """Chaos: the last state depends on the first one by a factor of 2 a step."""
    x0 = tf.Variable(0.3123, dtype=tf.float64)
    with Tape() as tape:
        x = x0
        for _ in range(45):
            x = 4.0 * x * (1.0 - x)  # <- here
        loss = tf.reduce_sum(x)
    return tape, loss, x0


def case_huge_ill_conditioned_fit(Tape):
    """Normal equations of a polynomial of degree 8: where shall the points lie?"""
    t = tf.Variable(np.linspace(0.05, 1.0, 12), dtype=tf.float64)
    y = tf.constant(np.cos(9 * np.linspace(0.0, 1.0, 12)), tf.float64)
    with Tape() as tape:
        a = tf.stack([t**k for k in range(9)], axis=1)
        gram = tf.matmul(a, a, transpose_a=True)
        inverse = tf.linalg.inv(gram)  # <- here
        coefficients = tf.linalg.matvec(inverse, tf.linalg.matvec(a, y, transpose_a=True))
        loss = tf.reduce_sum(coefficients**2)
    return tape, loss, t


# --------------------------------------------------------------------------- silently wrong


def case_silent_broadcast_loss(Tape):
    """Labels (n,) against predictions (n, 1)."""
    w = tf.Variable([[0.5], [1.0]])
    x = tf.constant([[1.0, 2.0], [2.0, 1.0], [0.0, 1.0], [3.0, 1.0]])
    labels = tf.constant([1.0, 2.0, 3.0, 4.0])
    with Tape() as tape:
        predicted = tf.matmul(x, w)
        residual = labels - predicted  # <- here
        loss = tf.reduce_mean(tf.square(residual))
    return tape, loss, w


def case_silent_symmetric_units(Tape):
    """All hidden units start alike, and stay alike."""
    w1 = tf.Variable(tf.fill((3, 5), 0.1))  # <- here
    w2 = tf.Variable(tf.fill((5, 1), 0.2))
    x = tf.constant([[1.0, 2.0, 0.5], [0.3, -1.0, 1.0], [2.0, 0.1, -0.4]])
    y = tf.constant([[1.0], [0.0], [2.0]])
    with Tape() as tape:
        hidden = tf.tanh(x @ w1)  # <- here
        loss = tf.reduce_mean((hidden @ w2 - y) ** 2)
    return tape, loss, w1


# --------------------------------------------------------------------------- nothing is wrong


def case_fine_softmax_remembered(Tape):
    """Softmax in the model and from_logits=True: Keras warns, and takes the logits that it remembers."""
    keras.utils.set_random_seed(6)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, activation="softmax")]
    )
    cce = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = tf.random.stateless_normal((6, 4), (7, 8))
    y = tf.constant([0, 1, 2, 0, 1, 2])
    with Tape() as tape:
        p = model(x)
        loss = cce(y, p)
    return tape, loss, model.trainable_variables[0]


def case_fine_at_the_minimum(Tape):
    """A fit that is exact."""
    w = tf.Variable([2.0, -1.0])
    x = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    y = tf.constant([2.0, -1.0, 1.0])
    with Tape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return tape, loss, w


def case_fine_causal_mask(Tape):
    """Minus infinity above the diagonal, as everybody writes it."""
    q = tf.Variable(np.linspace(-1, 1, 12).reshape(1, 4, 3).astype("float32"))
    with Tape() as tape:
        scores = tf.matmul(q, q, transpose_b=True) / math.sqrt(3)
        future = tf.linalg.band_part(tf.ones((4, 4)), -1, 0)
        scores = tf.where(future > 0, scores, -np.inf)
        out = tf.nn.softmax(scores) @ q
        loss = tf.reduce_mean(out**2)
    return tape, loss, q


def case_fine_straight_through(Tape):
    """Binary units with the gradient of the identity."""
    w = tf.Variable([[0.3, -0.4], [0.1, 0.2]])
    x = tf.constant([[1.0, 2.0], [0.5, -1.0]])
    with Tape() as tape:
        soft = tf.sigmoid(x @ w)
        hard = soft + tf.stop_gradient(tf.round(soft) - soft)
        loss = tf.reduce_mean((hard - 0.3) ** 2)
    return tape, loss, w


def case_fine_unused_metric(Tape):
    """log(0) is computed for a print-out and not used."""
    p = tf.Variable([0.0, 0.4, 0.6])
    with Tape() as tape:
        perplexity = tf.exp(-tf.reduce_sum(p * tf.math.log(p)))  # noqa: F841
        loss = tf.reduce_sum((p - 0.2) ** 2)
    return tape, loss, p


def case_fine_max_pool(Tape):
    """Most pixels are not the largest of their window."""
    image = tf.Variable(np.random.RandomState(0).rand(1, 6, 6, 1).astype("float32"))
    pool = keras.layers.MaxPooling2D(3)
    with Tape() as tape:
        loss = tf.reduce_sum(pool(image) ** 2)
    return tape, loss, image


def case_fine_dropout(Tape):
    """Half of the inputs are dropped on purpose."""
    x = tf.Variable(np.linspace(0.1, 2.0, 20).reshape(2, 10).astype("float32"))
    drop = keras.layers.Dropout(0.5, seed=7)
    with Tape() as tape:
        loss = tf.reduce_sum(drop(x, training=True) ** 2)
    return tape, loss, x


def case_fine_rare_words(Tape):
    """Rows of an embedding that the batch does not use."""
    embedding = keras.layers.Embedding(50, 4)
    head = keras.layers.Dense(1)
    ids = tf.constant([[1, 2, 3], [4, 5, 6]])
    head(embedding(ids))
    with Tape() as tape:
        loss = tf.reduce_mean((head(tf.reduce_mean(embedding(ids), axis=1)) - 1.0) ** 2)
    return tape, loss, embedding.embeddings


def case_fine_converged_regression(Tape):
    """Tiny because the fit has converged."""
    rng = np.random.RandomState(1)
    x = rng.randn(40, 3)
    y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.randn(40)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    w = tf.Variable(best + 1e-9)
    with Tape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return tape, loss, w


def case_fine_double_where(Tape):
    """The right guard."""
    x = tf.Variable([0.0, 4.0, 9.0])
    with Tape() as tape:
        positive = x > 0
        safe = tf.where(positive, x, 1.0)
        root = tf.where(positive, tf.sqrt(safe), 0.0)
        loss = tf.reduce_sum(root)
    return tape, loss, x


def case_fine_all_margins_met(Tape):
    """A support vector machine that separates its data."""
    w = tf.Variable([2.0, 2.0])
    x = tf.constant([[1.0, 1.0], [-1.0, -1.0], [2.0, 0.5]])
    y = tf.constant([1.0, -1.0, 1.0])
    with Tape() as tape:
        margin = y * tf.linalg.matvec(x, w)
        loss = tf.reduce_mean(tf.nn.relu(1.0 - margin))
    return tape, loss, w


def case_fine_nearest_neighbour(Tape):
    """The diagonal is made infinite so that no point is its own neighbour."""
    points = tf.Variable([[0.0, 0.0], [1.0, 0.5], [3.0, 3.0], [3.5, 2.0]])
    with Tape() as tape:
        squared = tf.reduce_sum((points[:, None] - points[None]) ** 2, -1)
        squared = tf.linalg.set_diag(squared, tf.fill([4], math.inf))
        nearest = tf.sqrt(tf.reduce_min(squared, axis=1))
        loss = tf.reduce_mean(nearest)
    return tape, loss, points


def case_fine_padded_tokens(Tape):
    """Padding carries no loss."""
    logits = tf.Variable(np.linspace(-1, 1, 2 * 5 * 3).reshape(2, 5, 3).astype("float32"))
    labels = tf.constant([[0, 1, 2, 0, 0], [2, 1, 0, 0, 0]])
    mask = tf.constant([[1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0, 0.0]])
    with Tape() as tape:
        token = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_sum(token * mask) / tf.reduce_sum(mask)
    return tape, loss, logits


def case_fine_top_two_experts(Tape):
    """Routing to the two best of six experts."""
    gate = tf.Variable([[0.1, 0.9, -0.3, 0.4, 0.0, 0.2]])
    with Tape() as tape:
        best, index = tf.math.top_k(gate, k=2)
        share = tf.nn.softmax(best)
        answer = tf.reduce_sum(share * tf.cast(index, tf.float32))
    return tape, answer, gate


def case_fine_half_precision_model(Tape):
    """float16 inside, float32 outside, with a modest loss scale."""
    keras.utils.set_random_seed(8)
    policy = keras.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(8, activation="tanh", dtype=policy),
            keras.layers.Dense(1, dtype="float32"),
        ]
    )
    x = tf.random.stateless_normal((6, 4), (9, 9))
    y = tf.ones((6, 1))
    with Tape() as tape:
        loss = 128.0 * tf.reduce_mean((model(x) - y) ** 2)
    return tape, loss, model.trainable_variables[0]


def case_fine_xlogy_and_safe_division(Tape):
    """0 log 0 and 0/0, with the operations made for them."""
    p = tf.Variable([0.0, 0.3, 0.7])
    n = tf.constant([0.0, 2.0, 4.0])
    with Tape() as tape:
        entropy = -tf.reduce_sum(tf.math.xlogy(p, p + 1e-12))
        rate = tf.math.divide_no_nan(p, n)
        loss = entropy + tf.reduce_sum(rate)
    return tape, loss, p


CASES = {name[5:]: f for name, f in globals().items() if name.startswith("case_")}


@dataclasses.dataclass(frozen=True)
class Truth:
    """What is right to say about a program.

    Attributes:
        symptoms: nan, inf, zero, part (some elements are zero), tiny, huge, target (the value itself is not finite),
            silent (finite, and wrong), none. Any of these is right.
        codes: likewise the mechanisms.
        ops: likewise TensorFlow's operations; empty where none is asked for.
        sick: the position of the source that is asked about, where the program returns several.
    """

    symptoms: frozenset
    codes: frozenset
    ops: frozenset
    sick: int = 0


def t(symptoms, codes, ops, sick=0):
    return Truth(frozenset(symptoms.split()), frozenset(codes.split()), frozenset(ops.split()), sick)


FINE = t("none", "", "")

TRUTHS = {
    "nan_pairwise_distances": t("nan", "root_at_zero", "Sqrt"),
    "nan_cosine_similarity_helper": t("nan target", "zero_over_zero", "RealDiv"),
    "nan_spring_at_rest_point": t("nan", "root_at_zero", "Sqrt"),
    "nan_entropy_where_function": t("nan", "unselected_branch", "Log Mul SelectV2 Select"),
    "nan_black_scholes_at_expiry": t("nan target", "zero_over_zero", "RealDiv"),
    "nan_great_circle": t("nan", "pole", "Acos"),
    "nan_correlation_angle": t("nan target", "domain", "Acos"),
    "nan_softmax_layer_overflow": t("nan target", "overflow", "Exp"),
    "nan_softplus_by_hand": t("nan target inf", "overflow", "Exp"),
    "nan_attention_row_all_masked": t("target", "all_masked", "Softmax"),
    "nan_regret_of_unreachable": t("target", "inf_minus_inf", "Sub"),
    "nan_mask_times_log": t("nan target", "masked_by_zero", "Log Mul"),
    "nan_harmonic_mean": t("nan", "division_by_zero", "RealDiv Reciprocal"),
    "nan_contrast_of_flat_patch": t("nan", "root_at_zero", "Sqrt"),
    "nan_gamma_correction": t("nan target", "domain", "Pow"),
    "nan_newton_while_loop": t("nan target", "division_by_zero", "RealDiv"),
    "nan_custom_gradient_of_log": t("nan", "custom_gradient", ""),
    "nan_data_with_a_gap": t("nan target", "source_not_finite", ""),
    "nan_rate_too_large": t(
        "nan target",
        "source_not_finite diverged diverging diverged_rate learning_rate learning_rate_diverged",
        "",
    ),
    "nan_elu_layer_functional": t("nan", "unselected_branch", "Exp SelectV2 Select"),
    "nan_sinc": t("nan", "unselected_branch", "RealDiv SelectV2 Select"),
    "nan_xla_guarded_root": t("nan", "unselected_branch", "Sqrt SelectV2 Select"),
    "nan_map_fn_normalise": t("nan target", "zero_over_zero", "RealDiv"),
    "nan_empty_sentence": t("nan target", "zero_over_zero", "RealDiv"),
    "nan_variance_head_without_activation": t("target", "domain", "Log"),
    "nan_poisson_rate_zero": t("nan target inf", "log_of_zero", "Log"),
    "nan_log_cosh_by_hand": t("nan target inf", "overflow", "Cosh"),
    "nan_gp_kernel": t("nan target", "not_positive_definite", "Cholesky"),
    "nan_polynomial_at_zero": t("nan", "zero_times_infinity", "Pow"),
    "target_nan_kl_one_hot": t("target", "zero_times_infinity masked_by_zero log_of_zero", "Mul Log"),
    "target_nan_mean_of_nothing": t(
        "target",
        "zero_over_zero division_by_zero empty empty_mean mean_of_nothing mean_of_empty empty_reduction",
        "Mean",
    ),
    "inf_isoelastic_utility": t("inf", "root_at_zero", "Pow"),
    "inf_snell_critical_angle": t("inf", "pole", "Asin"),
    "inf_py_function_root": t("inf", "root_at_zero custom_gradient py_function", "Sqrt EagerPyFunc PyFunc"),
    "inf_float16_loss_scale": t("inf", "overflow", "MatMul Mul"),
    "inf_cond_root": t("inf", "root_at_zero", "Sqrt"),
    "zero_rms_norm_float16": t("zero", "overflow", "Mul Square"),
    "zero_dead_relu_sequential": t("zero", "dead_relu", "Relu"),
    "zero_pixels_into_tanh": t("zero", "saturated", "Tanh"),
    "zero_clipped_prediction": t("zero", "clipped", "ClipByValue Minimum Maximum"),
    "zero_perceptron_sign": t("zero", "flat_operation", "Sign"),
    "zero_both_layers_start_at_zero": t("zero", "zero_weights", "MatMul"),
    "zero_softmax_of_one_unit": t("zero", "constant_output", "Softmax"),
    "zero_from_logits_forgotten": t("zero", "clipped", "ClipByValue Minimum Maximum"),
    "zero_kl_weight_in_first_epoch": t("zero", "multiplied_by_zero", "Mul"),
    "zero_likelihood_of_many": t("zero", "underflow", "Prod"),
    "zero_other_output_of_function": t("zero", "other_output zero_from_function", ""),
    "zero_units_start_at_the_kink": t("zero", "at_kink dead_relu", "Relu"),
    "zero_batch_norm_of_one_row": t("zero", "constant_output", ""),
    "zero_warm_up_selects_the_other": t("zero", "not_selected", "SelectV2 Select"),
    "part_adversarial_pixels": t("part", "clipped", "ClipByValue Minimum Maximum"),
    "part_survival_curve": t("part silent", "wrong_at_zero", "Cumprod"),
    "tiny_deep_sigmoid": t("tiny", "vanishing", "Sigmoid"),
    "tiny_recurrent_by_hand": t("tiny", "vanishing", "MatMul Tanh"),
    "huge_zscore_of_constant_feature": t("huge", "steep", "RealDiv"),
    "huge_log_of_tiny_probability": t("huge", "steep", "Log"),
    "huge_nearly_equal_eigenvalues": t("huge", "degenerate_eigenvalues", "SelfAdjointEigV2"),
    "huge_linear_recurrence": t("huge", "exploding", "MatMul"),
    "huge_logistic_map": t("huge", "exploding", "Mul Sub"),
    "huge_ill_conditioned_fit": t("huge", "ill_conditioned", "MatrixInverse"),
    "silent_broadcast_loss": t("silent", "broadcast_loss", "Sub"),
    "silent_symmetric_units": t("silent", "symmetric_units", ""),
    "fine_softmax_remembered": FINE,
    "fine_at_the_minimum": FINE,
    "fine_causal_mask": FINE,
    "fine_straight_through": FINE,
    "fine_unused_metric": FINE,
    "fine_max_pool": FINE,
    "fine_dropout": FINE,
    "fine_rare_words": FINE,
    "fine_converged_regression": FINE,
    "fine_double_where": FINE,
    "fine_all_margins_met": FINE,
    "fine_nearest_neighbour": FINE,
    "fine_padded_tokens": FINE,
    "fine_top_two_experts": FINE,
    "fine_half_precision_model": FINE,
    "fine_xlogy_and_safe_division": FINE,
}
