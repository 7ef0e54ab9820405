"""The work in TensorFlow: the plain recipes of its guide, and tapelab. Each function gives the recipes of a kind."""

from functools import partial

from tapelab import derivatives
from tapelab.runtime import tf

import numpy as np
from works import CHUNK, DATA_BATCH, MAX_NORM, STEPS, batch, cut, direction, labels, weights


def version():
    return f"TensorFlow {tf.__version__}"


def wait(result):
    """A CPU has computed the result when the call returns; a GPU has when a value of it is here."""
    last = tf.nest.flatten(result)[-1]
    if "GPU" in last.device:
        tf.reshape(last, [-1])[:1].numpy()


def to_numpy(result):
    return [np.asarray(part) for part in tf.nest.flatten(result)]


def network(parameters, x):
    for matrix, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = tf.tanh(x @ matrix + bias)
    return x @ parameters[-2] + parameters[-1]


def convolutional(parameters, x):
    for kernel in parameters[:2]:
        x = tf.nn.avg_pool2d(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 2, 2, "VALID")
    return tf.reshape(x, [-1, parameters[2].shape[0]]) @ parameters[2] + parameters[3]


def squared(parameters, x, y):
    return tf.reduce_mean((network(parameters, x) - y) ** 2)


def losses_of_classes(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


def cross_entropy(parameters, x, y):
    return tf.reduce_mean(losses_of_classes(y, convolutional(parameters, x)))


def problem(work, loss=squared):
    """The variables, the data, and the loss of the data."""
    variables, data = [tf.Variable(weight) for weight in weights(work)], [tf.constant(part) for part in batch(work)]
    return variables, data, lambda x, y: loss(variables, x, y)


def function(work):
    """A network with constant weights, and its inputs."""
    parameters = [tf.constant(weight) for weight in weights(work)]
    return lambda x: network(parameters, x), tf.constant(batch(work)[0])


def taped(f, x, derivative):
    """What the method of a tape of this name gives for f at x."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return getattr(tape, derivative)(y, x)


def hessian(work):
    variables, data, loss = problem(work)

    def guide():
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                value = loss(*data)
            gradients = [tf.reshape(g, [-1]) for g in inner.gradient(value, variables)]
        rows = []
        for gradient in gradients:
            blocks = outer.jacobian(gradient, variables, unconnected_gradients="zero")
            rows.append(tf.concat([tf.reshape(block, [gradient.shape[0], -1]) for block in blocks], 1))
        return tf.concat(rows, 0)

    ours, chunks = (derivatives.hessian(loss, wrt=variables, packed=True, chunk_size=size) for size in (None, CHUNK))
    return {"guide": guide, "tapelab": lambda: ours(*data), "tapelab chunks": lambda: chunks(*data)}


def gradient(work):
    variables, data, loss = problem(work)
    ours = derivatives.value_and_gradient(loss, wrt=variables)
    return {"guide": lambda: taped(lambda _: loss(*data), variables, "gradient"), "tapelab": lambda: ours(*data)[1]}


def hvp(work):
    variables, data, loss = problem(work)
    vector = [tf.constant(part) for part in direction(work)]

    def guide():
        with tf.GradientTape() as outer:
            gradients = taped(lambda _: loss(*data), variables, "gradient")
        return outer.gradient(gradients, variables, output_gradients=vector)

    ours = derivatives.hvp(loss, wrt=variables)
    return {"guide": guide, "tapelab": lambda: ours(*data, vector=vector)}


def jacobian(work):
    f, x = function(work)
    ours = derivatives.jacobian(lambda x: f(x[tf.newaxis])[0])
    return {"guide": lambda: taped(lambda x: f(x[tf.newaxis])[0], x[0], "jacobian"), "tapelab": lambda: ours(x[0])}


def batch_jacobian(work):
    f, x = function(work)
    ours = derivatives.batch_jacobian(f)
    return {"guide": lambda: taped(f, x, "batch_jacobian"), "tapelab": lambda: ours(x)}


def per_example(work, loss=squared):
    variables, (x, y), mean = problem(work, loss)

    def guide():
        with tf.GradientTape(persistent=True) as tape:
            losses = tf.stack([mean(x[i : i + 1], y[i : i + 1]) for i in range(work.batch)])
        return tape.jacobian(losses, variables)

    ours = derivatives.per_example_gradients(mean, wrt=variables)
    return {"guide": guide, "tapelab": lambda: ours(x, y)}


def laplacian(work):
    f, x = function(work)

    @tf.function
    def guide(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            slopes = taped(f, x, "gradient")
        return tf.linalg.trace(tape.batch_jacobian(slopes, x))[:, tf.newaxis]

    ours, chunks = derivatives.laplacian(f), derivatives.laplacian(f, batch_chunk_size=CHUNK // 4)
    return {"guide": lambda: guide(x), "tapelab": lambda: ours(x), "tapelab chunks": lambda: chunks(x)}


def tiny(work):
    x = tf.constant([0.5, 1.5])
    ours = derivatives.value_and_gradient(f := lambda x: tf.reduce_sum(tf.sin(x)))
    return {"guide": lambda: taped(f, x, "gradient"), "tapelab": lambda: ours(x)[1]}


def product(work, kind):
    """A product with a curvature matrix, and the loss's gradient: over all of the data."""
    variables, (x, _), _ = problem(work)
    y, vector = tf.constant(labels(work)), derivatives.pack([tf.constant(part) for part in direction(work)])
    matrix = derivatives.CurvatureOperator(
        lambda x: network(variables, x),
        lambda y, logits: tf.reduce_mean(losses_of_classes(y, logits)),
        wrt=variables,
        data=(x, y),
        batch_size=DATA_BATCH,
        kind=kind,
    )
    each = derivatives.value_and_gradient(
        lambda x, y: tf.reduce_mean(losses_of_classes(y, network(variables, x))), wrt=variables
    )
    batches = cut(x, y)

    def gradient():
        parts = zip(*[each(*part)[1] for part in batches], strict=True)
        return [tf.add_n(part) / len(batches) for part in parts]

    def eigenvalues():
        return tf.constant(matrix.spectrum(STEPS, probes=1, seed=0).top(5).values)

    return {"tapelab": eigenvalues if work.kind == "spectrum" else lambda: matrix @ vector, "gradient": gradient}


def clipped(work, model=network):
    variables, (x, _), _ = problem(work)
    y = tf.constant(labels(work))
    ours = derivatives.clipped_gradient(
        lambda x, y: losses_of_classes(y, model(variables, x)), wrt=variables, max_norm=MAX_NORM
    )
    mean = derivatives.value_and_gradient(
        lambda x, y: tf.reduce_mean(losses_of_classes(y, model(variables, x))), wrt=variables
    )
    return {"tapelab": lambda: ours(x, y)[0], "gradient": lambda: mean(x, y)[1]}


per_example_cnn = partial(per_example, loss=cross_entropy)
ggn_product = partial(product, kind="ggn")
hessian_product = spectrum = partial(product, kind="hessian")
clipped_cnn = partial(clipped, model=convolutional)
