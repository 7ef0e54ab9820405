"""The work in TensorFlow: the plain recipes of its guide, and tapelab."""

from tapelab.derivatives import (
    CurvatureOperator,
    batch_jacobian,
    biharmonic,
    clipped_gradient,
    hessian,
    hvp,
    jacobian,
    laplacian,
    pack,
    per_example_gradients,
    sparse_hessian,
    sparse_jacobian,
    value_and_gradient,
)
from tapelab.runtime import tf

import numpy as np
import sparse_functions
from works import DATA_BATCH, LAPLACIAN_CHUNK, MAX_NORM, STEPS, batch, cut, direction, labels, weights


def version():
    return f"TensorFlow {tf.__version__}"


def wait(result):
    """A CPU has computed the result when the call returns; a GPU has when a value of it is here."""
    last = tf.nest.flatten(result)[-1]
    if "GPU" in last.device:
        tf.reshape(last, [-1])[:1].numpy()


def allocator(resident):
    """Say what becomes of memory that is freed, by freeing 64 MiB: what was measured depends on it.

    Args:
        resident: returns this process's resident memory in bytes.
    """
    tf.zeros([2, 2])
    kept = tf.fill([16 * 2**20], 1.0)
    with_it = resident()
    del kept
    if with_it - resident() > 32 * 2**20:
        return "TensorFlow's allocator gave freed memory back to the system"
    return "TensorFlow's allocator was a pool, which keeps freed memory (oneDNN's)"


def to_numpy(result):
    return [np.asarray(part) for part in tf.nest.flatten(result)]


def network(parameters, x):
    for matrix, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = tf.tanh(x @ matrix + bias)
    return x @ parameters[-2] + parameters[-1]


def convolutional(parameters, x, pool=tf.nn.avg_pool2d):
    for kernel in parameters[:2]:
        x = pool(tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME")), 2, 2, "VALID")
    return tf.reshape(x, [-1, parameters[2].shape[0]]) @ parameters[2] + parameters[3]


def squared(parameters, x, y):
    return tf.reduce_mean((network(parameters, x) - y) ** 2)


def cross_entropy(parameters, x, y):
    logits = convolutional(parameters, x)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def _variables(work):
    return [tf.Variable(weight) for weight in weights(work)]


def _tensors(work):
    return [tf.constant(part) for part in batch(work)]


def run_hessian(work):
    variables, (x, y) = _variables(work), _tensors(work)

    def loss(x, y):
        return squared(variables, x, y)

    def guide():
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape() as inner:
                value = loss(x, y)
            gradients = [tf.reshape(g, [-1]) for g in inner.gradient(value, variables)]
        rows = []
        for gradient in gradients:
            blocks = outer.jacobian(gradient, variables, unconnected_gradients="zero")
            rows.append(tf.concat([tf.reshape(block, [gradient.shape[0], -1]) for block in blocks], 1))
        return tf.concat(rows, 0)

    ours, chunks = (hessian(loss, wrt=variables, packed=True, chunk_size=size) for size in (None, 256))
    return {"guide": guide, "tapelab": lambda: ours(x, y), "tapelab chunks": lambda: chunks(x, y)}


def run_gradient(work):
    variables, (x, y) = _variables(work), _tensors(work)

    def loss(x, y):
        return squared(variables, x, y)

    def guide():
        with tf.GradientTape() as tape:
            value = loss(x, y)
        return tape.gradient(value, variables)

    ours = value_and_gradient(loss, wrt=variables)
    return {"guide": guide, "tapelab": lambda: ours(x, y)[1]}


def run_hvp(work):
    variables, (x, y) = _variables(work), _tensors(work)
    vector = [tf.constant(part) for part in direction(work)]

    def loss(x, y):
        return squared(variables, x, y)

    def guide():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                value = loss(x, y)
            gradients = inner.gradient(value, variables)
        return outer.gradient(gradients, variables, output_gradients=vector)

    ours = hvp(loss, wrt=variables)
    return {"guide": guide, "tapelab": lambda: ours(x, y, vector=vector)}


def run_jacobian(work):
    parameters = [tf.constant(weight) for weight in weights(work)]
    x = _tensors(work)[0][0]

    def f(x):
        return network(parameters, x[tf.newaxis])[0]

    def guide():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.jacobian(y, x)

    modes = {mode: jacobian(f, mode=mode) for mode in ("auto", "forward", "reverse")}
    recipes = {f"tapelab {mode}": lambda run=run: run(x) for mode, run in modes.items() if mode != "auto"}
    return {"guide": guide, "tapelab": lambda: modes["auto"](x), **recipes}


def run_batch_jacobian(work):
    parameters = [tf.constant(weight) for weight in weights(work)]
    x = _tensors(work)[0]

    def f(x):
        return network(parameters, x)

    def guide():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.batch_jacobian(y, x)

    checked, unchecked = batch_jacobian(f), batch_jacobian(f, check_independence=False)
    return {"guide": guide, "tapelab": lambda: checked(x), "tapelab unchecked": lambda: unchecked(x)}


def run_per_example(work, loss=squared):
    variables, (x, y) = _variables(work), _tensors(work)

    def mean(x, y):
        return loss(variables, x, y)

    def guide():
        with tf.GradientTape(persistent=True) as tape:
            losses = tf.stack([mean(x[i : i + 1], y[i : i + 1]) for i in range(work.batch)])
        return tape.jacobian(losses, variables)

    ours = per_example_gradients(mean, wrt=variables)
    results = [tf.fill([work.batch, *variable.shape], 0.5) for variable in variables]
    negatives = tf.function(lambda results: [tf.negative(result) for result in results])

    def floor():
        # What any operation on the results costs, with both cores and in whichever memory TensorFlow gives results:
        # writing alone would stay in the caches where memory comes from a pool.
        wait(negatives(results))

    return {"guide": guide, "tapelab": lambda: ours(x, y), "one pass": floor}


def run_per_example_cnn(work):
    return run_per_example(work, cross_entropy)


def _nested(f, x):
    """The Laplacian as it is usually written: the trace of the Jacobian of the gradient."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return tf.linalg.trace(outer.batch_jacobian(gradient, x))[:, tf.newaxis]


def run_laplacian(work):
    parameters = [tf.constant(weight) for weight in weights(work)]
    x = _tensors(work)[0]

    def f(x):
        return network(parameters, x)

    ours, guide = laplacian(f), tf.function(lambda x: _nested(f, x))
    chunks = laplacian(f, batch_chunk_size=LAPLACIAN_CHUNK)
    return {"guide": lambda: guide(x), "tapelab": lambda: ours(x), "tapelab chunks": lambda: chunks(x)}


def run_residual(work):
    variables, x = _variables(work), _tensors(work)[0]

    def f(x):
        return network(variables, x)

    def step(operator):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(operator(x) ** 2)
        return tape.gradient(loss, variables, unconnected_gradients="zero")

    ours = laplacian(f)
    guide = tf.function(lambda: step(lambda x: _nested(f, x)), autograph=False)
    whole = tf.function(lambda: step(laplacian(f)), autograph=False, jit_compile=True)  # as JAX's step is
    return {"guide": guide, "tapelab": whole, "tapelab, a tape around it": lambda: step(ours)}


def run_biharmonic(work):
    parameters = [tf.constant(weight) for weight in weights(work)]
    x, ours = _tensors(work)[0], biharmonic(lambda x: network(parameters, x))
    return {"tapelab": lambda: ours(x)}


def run_tiny(work):
    x = tf.constant([0.5, 1.5])

    def f(x):
        return tf.reduce_sum(tf.sin(x))

    def guide():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    ours = value_and_gradient(f)
    return {"guide": guide, "tapelab": lambda: ours(x)[1]}


def losses_of_classes(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


def _curvature(work, kind):
    """Return a loss's curvature matrix, and its gradient, a function: over all of the data."""
    variables, x, y = _variables(work), _tensors(work)[0], tf.constant(labels(work))
    matrix = CurvatureOperator(
        lambda x: network(variables, x),
        lambda y, logits: tf.reduce_mean(losses_of_classes(y, logits)),
        wrt=variables,
        data=(x, y),
        batch_size=DATA_BATCH,
        kind=kind,
    )
    each = value_and_gradient(lambda x, y: tf.reduce_mean(losses_of_classes(y, network(variables, x))), wrt=variables)
    batches = cut(x, y)

    def gradient():
        parts = zip(*[each(*part)[1] for part in batches], strict=True)
        wait([tf.add_n(part) / len(batches) for part in parts])

    return matrix, gradient


def _product(work, kind):
    matrix, gradient = _curvature(work, kind)
    vector = pack([tf.constant(part) for part in direction(work)])
    return {"tapelab": lambda: matrix @ vector, "tapelab gradient": gradient}


def run_ggn_product(work):
    return _product(work, "ggn")


def run_hessian_product(work):
    return _product(work, "hessian")


def run_spectrum(work):
    matrix, _ = _curvature(work, "hessian")
    return {"tapelab": lambda: tf.constant(matrix.spectrum(STEPS, probes=1, seed=0).top(5).values)}


def run_clipped(work, model=network):
    variables, x, y = _variables(work), _tensors(work)[0], tf.constant(labels(work))
    ours = clipped_gradient(lambda x, y: losses_of_classes(y, model(variables, x)), wrt=variables, max_norm=MAX_NORM)
    mean = value_and_gradient(lambda x, y: tf.reduce_mean(losses_of_classes(y, model(variables, x))), wrt=variables)
    return {"tapelab": lambda: ours(x, y)[0], "tapelab gradient": lambda: wait(mean(x, y))}


def run_clipped_cnn(work):
    return run_clipped(work, convolutional)


def _sparse(work, function, sparse, dense):
    f, x = sparse_functions.in_framework(function, tf), _tensors(work)[0][0]
    sparse, dense = sparse(f), dense(f)
    places = sparse(x).indices
    return {"tapelab": lambda: sparse(x).values, "tapelab dense": lambda: tf.gather_nd(dense(x), places)}


def run_sparse_jacobian(work):
    return _sparse(work, sparse_functions.band, sparse_jacobian, jacobian)


def run_sparse_hessian(work):
    return _sparse(work, sparse_functions.chain, sparse_hessian, hessian)
