"""Derivatives by TensorFlow's own tapes, which know nothing of tapelab: what others are compared with."""

from tapelab.runtime import tf

import numpy as np


def gradient(f, x):
    """The gradient of f at x, which may be a structure of tensors."""
    x = tf.nest.map_structure(tf.convert_to_tensor, x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


def jacobian(f, x):
    """The Jacobian of f at x, row by row."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x, experimental_use_pfor=False, unconnected_gradients="zero").numpy()


def hessian(f, x):
    """The Hessian of f at x, row by row."""
    return jacobian(lambda x: gradient(f, x), x)


def of_each_example(f, variables, *data):
    """The gradient of each example, on a batch of one: for each of the variables an array (batch, *shape)."""
    gradients = []
    for index in range(len(data[0])):
        with tf.GradientTape() as tape:
            loss = f(*[tf.convert_to_tensor(part[index : index + 1]) for part in data])
        found = tape.gradient(loss, variables, unconnected_gradients="zero")
        gradients.append([tf.convert_to_tensor(each).numpy() for each in found])
    return [np.stack(each) for each in zip(*gradients, strict=True)]
