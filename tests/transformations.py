"""Every transformation of `tapelab.derivatives`, as one that a test can make and call."""

from tapelab.derivatives import (
    batch_jacobian,
    clipped_gradient,
    fvp,
    ggnvp,
    hessian,
    hvp,
    jacobian,
    jvp,
    laplacian,
    per_example_gradients,
    per_example_norms,
    value_and_gradient,
    vjp,
)
from tapelab.runtime import tf

X = tf.constant([[1.0, 2.0], [3.0, 5.0], [7.0, 4.0]])
KERNEL = tf.Variable([[0.3], [-0.2]])


def squares(x):
    return tf.tanh(x @ KERNEL)[:, 0] ** 2


def total(x):
    return tf.reduce_sum(squares(x))


def outputs(x):
    return tf.tanh(x @ KERNEL)


def squared_error(y, found):
    return tf.reduce_sum((found - y) ** 2)


# Of each: the function, how the derivative is made of it, its arguments, and its vector if it takes one.
TRANSFORMATIONS = {
    "value_and_gradient": (total, value_and_gradient, (X,)),
    "variables": (total, lambda f, **o: value_and_gradient(f, wrt=KERNEL, **o), (X,)),
    "jvp": (total, jvp, (X,), {"tangents": X}),
    "vjp": (squares, vjp, (X,), {"cotangents": tf.ones(3)}),
    "jacobian": (squares, jacobian, (X,)),
    "jacobian, forward": (squares, lambda f, **o: jacobian(f, mode="forward", **o), (X,)),
    "jacobian, chunks": (squares, lambda f, **o: jacobian(f, mode="reverse", chunk_size=1, **o), (X,)),
    "batch_jacobian": (squares, batch_jacobian, (X,)),
    "hvp": (total, hvp, (X,), {"vector": X}),
    "hessian": (total, hessian, (X,)),
    "hessian, variables": (total, lambda f, **o: hessian(f, wrt=KERNEL, **o), (X,)),
    "ggn": (
        outputs,
        lambda f, **o: ggnvp(f, squared_error, wrt=KERNEL, **o),
        (X, tf.ones((3, 1))),
        {"vector": KERNEL},
    ),
    "fisher": (outputs, lambda f, **o: fvp(f, "gaussian", wrt=KERNEL, **o), (X,), {"vector": KERNEL}),
}
OPERATORS = {
    "laplacian": (squares, laplacian, (X,)),
    "laplacian, unbatched": (total, lambda f, **o: laplacian(f, batched=False, **o), (X,)),
}
NORMS = {
    "per_example_norms": (squares, lambda f, **o: per_example_norms(f, wrt=KERNEL, **o), (X,)),
    "clipped_gradient": (squares, lambda f, **o: clipped_gradient(f, wrt=KERNEL, max_norm=1.0, **o), (X,)),
}
EVERY = TRANSFORMATIONS | OPERATORS | NORMS
EVERY["per_example_gradients"] = (squares, lambda f, **o: per_example_gradients(f, wrt=KERNEL, **o), (X,))
