"""The causes of a missing gradient, each with a stable code: what it means, an example, and the fix.

`CAUSES` are the answers of `explain`; `REMARKS` are what it adds where a gradient exists and may still surprise.
"""

import dataclasses
import functools
import textwrap


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause.

    Attributes:
        code: its stable name.
        title: a few words, as they are written on a cut edge of a drawing.
        meaning: what happened, for a learner.
        example: code in which it happens; the gradient asked for is of `y` with respect to `x`.
        fix: what to write; `{source}`, `{target}` and `{op}` stand for the learner's names.
    """

    code: str
    title: str
    meaning: str
    example: str
    fix: str

    def _repr_markdown_(self):
        example, fix = (f"```python\n{code}\n```" for code in (self.example, self.fix))
        return f"**{self.code}**: {self.title}\n\n{self.meaning}\n\n{example}\n\nFix:\n\n{fix}"


CAUSES, REMARKS = {}, {}


def _define(registry, code, title, meaning, example, fix):
    tidy = [" ".join(meaning.split()), textwrap.dedent(example).strip(), textwrap.dedent(fix).strip()]
    registry[code] = Cause(code, title, *tidy)


_cause = functools.partial(_define, CAUSES)
_remark = functools.partial(_define, REMARKS)


# At the source.

_cause(
    "not_watched",
    "not watched",
    """A tape watches trainable variables by itself. A plain tensor, a constant or an input batch it records nothing
    about, unless it is told to watch it before it is used.""",
    """
    x = tf.constant(3.0)
    with ExplainTape() as tape:
        y = x * x
    """,
    """
    tape.watch({source})  # first thing inside the with block
    """,
)
_cause(
    "not_trainable",
    "not trainable",
    """The variable was made with trainable=False, and such variables are not watched when they are read. Freezing a
    Keras layer does not do this: see the remark frozen_layer.""",
    """
    x = tf.Variable(3.0, trainable=False)
    with ExplainTape() as tape:
        y = x * x
    """,
    """
    tape.watch({watchable})  # first thing inside the with block; or make the variable with trainable=True
    """,
)
_cause(
    "moving_statistics",
    "moving statistics",
    """Batch normalisation keeps a moving mean and a moving variance. They are updated by assignment, not by gradient
    descent, so they are variables that are not trainable.""",
    """
    layer = tf.keras.layers.BatchNormalization()
    with ExplainTape() as tape:
        y = layer(batch, training=True)
    # gradient with respect to layer.moving_mean
    """,
    """
    sources = model.trainable_variables  # leaves the moving statistics out, where model.variables does not
    """,
)
_cause(
    "watching_off",
    "automatic watching off",
    """The tape was made with watch_accessed_variables=False, so it watches only what it is told to.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape(watch_accessed_variables=False) as tape:
        y = x * x
    """,
    """
    tape.watch({watchable})  # first thing inside the with block
    """,
)
_cause(
    "watched_late",
    "watched too late",
    """The tape was told to watch only after the first operation had used the value, and it does not look back.""",
    """
    x = tf.constant(3.0)
    with ExplainTape() as tape:
        y = x * x
        tape.watch(x)
    """,
    """
    tape.watch({source})  # above the line named here
    """,
)
_cause(
    "watch_reset",
    "watch forgotten by reset",
    """tape.reset() forgets the watched tensors as well as the operations.""",
    """
    x = tf.constant(3.0)
    with ExplainTape() as tape:
        tape.watch(x)
        tape.reset()
        y = x * x
    """,
    """
    tape.reset()
    tape.watch({source})
    """,
)
_cause(
    "source_replaced",
    "source replaced",
    """The name stands for another object than the one that was used. x = x + 1 makes a new tensor, and so do a slice,
    a copy and tf.convert_to_tensor; the target was computed from the old one. A variable that is reassigned in this way
    is a plain tensor from then on.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = x * x
        x = x + 1.0
    """,
    """
    {source}.assign_add(1.0)  # for a variable: change it in place, after the gradient was computed
    {source} = {source} + 1.0  # for a tensor: above the computation of {target}, inside the tape
    """,
)
_cause(
    "recomputed",
    "recomputed",
    """The source was computed, and then computed a second time on the way to the target: two tensors with the same
    value, of which the target used the other. Two forward passes do this, as in a first attempt at Grad-CAM.""",
    """
    w = tf.Variable(3.0)
    with ExplainTape() as tape:
        x = tf.square(w)
        y = 2.0 * tf.square(w)
    """,
    """
    # compute {source} once, and {target} from that same tensor
    """,
)
_cause(
    "source_dtype",
    "source is not real",
    """Only floating-point and complex values have gradients. The source is an integer, a boolean or a string (which
    tf.strings.to_number turns into a number).""",
    """
    x = tf.constant(3)
    with ExplainTape() as tape:
        tape.watch(x)
        y = x * x
    """,
    """
    {source} = tf.cast({source}, tf.float32)  # above tape.watch; or write 3.0 rather than 3
    """,
)
_cause(
    "keras_tensor",
    "symbolic KerasTensor",
    """layer.output and tf.keras.Input are placeholders that describe a model. No value ever flowed through them.""",
    """
    with ExplainTape() as tape:
        y = model(batch)
    # gradient with respect to model.layers[0].output
    """,
    """
    inner = tf.keras.Model(model.inputs, [model.layers[0].output, model.outputs[0]])
    with ExplainTape() as tape:
        features, y = inner(batch)  # ask for the gradient with respect to features
    """,
)
_cause(
    "wrong_type",
    "not a tensor",
    """A gradient is taken of a tensor with respect to a tensor or a variable. A Python number, a NumPy array or None is
    not on any tape.""",
    """
    x = np.float32(3.0)
    with ExplainTape() as tape:
        y = tf.square(x)
    """,
    """
    {source} = tf.convert_to_tensor({source})  # above the computation, then watch it; or make it a tf.Variable
    """,
)
_cause(
    "unused_variable",
    "never read",
    """The variable was not read while the tape was recording: its layer is not part of what was computed, or a copy of
    the layer was used.""",
    """
    x, other = tf.Variable(3.0), tf.Variable(2.0)
    with ExplainTape() as tape:
        y = other * other
    """,
    """
    # use {source} in the computation of {target}, or leave it out of the sources
    """,
)

# On the way.

_cause(
    "recording_stopped",
    "recording stopped",
    """The operation ran inside tape.stop_recording(), so the tape knows nothing of it.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        with tape.stop_recording():
            y = x * x
    """,
    """
    # move the operation out of the `with tape.stop_recording():` block
    """,
)
_cause(
    "tape_reset",
    "tape reset",
    """tape.reset() was called after the computation, and the tape forgot it.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = x * x
        tape.reset()
    """,
    """
    # call tape.reset() before this computation, or repeat the computation after it
    """,
)
_cause(
    "stop_gradient",
    "stop_gradient",
    """tf.stop_gradient passes its value on and lets no gradient back. It cuts a path, not a variable: here every path
    goes through one.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = 2.0 * tf.stop_gradient(x)
    """,
    """
    # take tf.stop_gradient away on the path that should carry the gradient
    """,
)
_cause(
    "left_tensorflow",
    "left TensorFlow",
    """The value was handed to Python or NumPy and came back as a new constant: by .numpy(), float(), a NumPy function,
    model.predict, tf.numpy_function or tf.data. The tape sees only TensorFlow's operations.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = tf.constant(2.0) * float(x * x)
    """,
    """
    # stay in TensorFlow: tf.reduce_mean for np.mean, model(batch) for model.predict(batch), no .numpy() on the way
    """,
)
_cause(
    "cast_to_integer",
    "cast to an integer",
    """The value was converted to an integer or a boolean on the way. That is flat almost everywhere, and TensorFlow
    carries no gradient through such dtypes, even if the value is converted back.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = tf.cast(tf.cast(x, tf.int32), tf.float32)
    """,
    """
    # keep the value floating-point; to cut it to a whole number as the cast does, and keep the gradient:
    x + tf.stop_gradient(tf.cast(tf.cast(x, tf.int32), x.dtype) - x)
    """,
)
_cause(
    "through_string",
    "goes through a string",
    """The value was written out as text on the way, by tf.strings.as_string, tf.strings.format or
    tf.io.serialize_tensor. Text carries no gradient, even if it is read back as a number.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = tf.strings.to_number(tf.strings.as_string(x))
    """,
    """
    # compute {target} from the number itself, and make text of it only to show or to store it
    """,
)
_cause(
    "not_differentiable",
    "not differentiable",
    """The operation is registered as having no gradient, or has none for this argument: argmax, round, floor, a
    comparison, the condition of tf.where, a shape.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = tf.round(x)
    """,
    """
    # replace {op} by a smooth counterpart, or give it a gradient of your own with tf.custom_gradient
    """,
)
_cause(
    "no_gradient_registered",
    "no gradient registered",
    """TensorFlow's authors registered no gradient for this operation, neither a function nor that there is none. The
    tape raises LookupError rather than returning None.""",
    """
    x = tf.Variable(tf.ones([1, 2, 2, 3]))
    with ExplainTape() as tape:
        y = tf.image.adjust_contrast(x, 2.0)
    """,
    """
    # write {op} with other operations, or give it a gradient with tf.custom_gradient
    """,
)
_cause(
    "custom_gradient_none",
    "custom gradient gives none",
    """A function with @tf.custom_gradient returned None for this input, or used the value without taking it as an
    argument: a custom gradient answers for its arguments only.""",
    """
    @tf.custom_gradient
    def double(value):
        return 2.0 * value, lambda upstream: None

    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = double(x)
    """,
    """
    # return a gradient for every argument, and pass every tensor that needs one as an argument
    """,
)
_cause(
    "python_closure",
    "not an argument of py_function",
    """tf.py_function passes a gradient to its arguments only. The Python function used this value without taking it as
    an argument: a variable or tensor from outside.""",
    """
    x, a = tf.Variable(3.0), tf.Variable(2.0)
    with ExplainTape() as tape:
        y = tf.py_function(lambda value: value * x, [a], tf.float32)
    """,
    """
    y = tf.py_function(function, [{source}, ...], tf.float32)  # {source} among the arguments
    """,
)
_cause(
    "state",
    "assigned to state",
    """The value was written into a variable, a table or a metric and read back. A write is not recorded: what is read
    later is a fresh value without a history.""",
    """
    x, total = tf.Variable(3.0), tf.Variable(0.0)
    with ExplainTape() as tape:
        total.assign_add(x)
        y = total * total
    """,
    """
    # compute with the value itself, and assign it to the variable after the gradient was taken
    """,
)

# At the target.

_cause(
    "target_before_tape",
    "computed before the tape",
    """The target, or the part of it that depends on the source, was computed before the tape began to record.""",
    """
    x = tf.Variable(3.0)
    y = x * x
    with ExplainTape() as tape:
        pass
    """,
    """
    # move the forward computation into the with block
    """,
)
_cause(
    "target_after_tape",
    "computed after the tape",
    """The target was computed after the with block had ended, when the tape no longer recorded.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        z = x * x
    y = 2.0 * z
    """,
    """
    # indent the computation of {target} into the with block
    """,
)
_cause(
    "inner_gradient_outside",
    "inner gradient outside",
    """The target is itself a gradient, and it was computed after the outer tape had closed. The outer tape can only
    differentiate what it recorded, and that includes the inner tape's backward pass.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        with ExplainTape() as inner:
            z = x ** 3
    y = inner.gradient(z, x)
    """,
    """
    # indent the inner gradient call so that it is inside the outer tape's with block
    """,
)
_cause(
    "constant_derivative",
    "the derivative is constant",
    """The target is itself a gradient that does not depend on the source: the derivative of a linear function is a
    constant. The second derivative is zero, and TensorFlow says None.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        with ExplainTape() as inner:
            z = 2.0 * x
        y = inner.gradient(z, x)
    """,
    """
    tape.gradient({target}, {source}, unconnected_gradients="zero")
    """,
)
_cause(
    "target_dtype",
    "target is not real",
    """Only floating-point and complex values have gradients. The target is an integer, a boolean or a string.""",
    """
    x = tf.Variable([1.0, 3.0])
    with ExplainTape() as tape:
        y = tf.argmax(x)
    """,
    """
    # differentiate the floating-point value from which {target} was made, such as the largest logit
    """,
)
_cause(
    "target_is_variable",
    "target is a variable",
    """A variable's value has no history: whatever was assigned to it, a write is not recorded.""",
    """
    x, y = tf.Variable(3.0), tf.Variable(0.0)
    with ExplainTape() as tape:
        y.assign(x * x)
    """,
    """
    # keep the tensor that was assigned to the variable, and differentiate that
    """,
)
_cause(
    "unrelated",
    "unrelated",
    """Nothing that the tape saw leads from the source to the target: the target does not depend on it.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        z = x * x
        y = tf.Variable(2.0) * 1.0
    """,
    """
    tape.gradient({target}, {source}, unconnected_gradients="zero")  # if zero is what is meant
    """,
)

# The tape.

_cause(
    "used_up",
    "tape used up",
    """A tape gives one gradient and is then used up, unless it was made with persistent=True.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        z = x * x
        y = z * z
    tape.gradient(z, x)
    """,
    """
    with ExplainTape(persistent=True) as tape:  # or ask for all sources in one call: tape.gradient(y, [a, b])
    """,
)
_cause(
    "not_opened",
    "tape never opened",
    """The tape was made but never entered, so it recorded nothing.""",
    """
    x = tf.Variable(3.0)
    tape = ExplainTape()
    y = x * x
    """,
    """
    with ExplainTape() as tape:  # and compute inside
    """,
)

# What cannot be explained.

_cause(
    "plain_tape",
    "plain tape",
    """A tf.GradientTape keeps no record that could be read afterwards.""",
    """
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        y = x * x
    """,
    """
    with ExplainTape() as tape:  # in place of tf.GradientTape(), and run it again
    """,
)
_cause(
    "inside_function",
    "inside a tf.function",
    """The tape was opened inside a tf.function, where operations are being traced and have not run yet.""",
    """
    @tf.function
    def step(x):
        with ExplainTape() as tape:
            y = x * x
        return explain(tape, y, x).code
    """,
    """
    tf.config.run_functions_eagerly(True)  # run it once as ordinary Python, explain, and set it back
    """,
)
_cause(
    "blind",
    "cannot see",
    """The explanations look into TensorFlow through private symbols, and in this TensorFlow they do not behave as
    expected. The tape works; it cannot be explained.""",
    """
    import tensorflow as tf  # a version that tapelab does not know
    """,
    """
    # use a TensorFlow from 2.19 to 2.21
    """,
)
_cause(
    "unknown",
    "could not explain",
    """What the log of the operations says and what the tape really returned do not agree, or the tape raised. An answer
    would be a guess.""",
    """
    # an operation with a gradient that depends on its values
    """,
    """
    # make the program smaller until it can be explained: differentiate an intermediate result of {target} first
    """,
)
_cause(
    "exists",
    "gradient exists",
    """There is a gradient.""",
    """
    x = tf.Variable(3.0)
    with ExplainTape() as tape:
        y = x * x
    """,
    """
    tape.gradient({target}, {source})
    """,
)

# Where there is a gradient.

_remark(
    "indexed_slices",
    "IndexedSlices",
    """The gradient of a lookup (tf.gather, an embedding) is a tf.IndexedSlices: the rows that were looked up, and which
    they are. It stands for a tensor that is zero elsewhere.""",
    "y = tf.gather(x, [0, 2])",
    "tf.convert_to_tensor(gradient)  # where a dense tensor is needed",
)
_remark(
    "frozen_layer",
    "frozen layer",
    """layer.trainable = False takes a Keras layer's variables out of trainable_variables. The tape does not know of it:
    it watches the TensorFlow variables inside, which are trainable as before. Asked for by name, their gradients exist,
    and an optimizer that is given them changes the frozen layer.""",
    """
    layer = tf.keras.layers.Dense(1)
    layer.build((None, 3))
    layer.trainable = False
    y, x = layer(tf.ones((1, 3))), layer.kernel
    """,
    "sources = model.trainable_variables  # leaves frozen layers out",
)
_remark(
    "py_function",
    "through tf.py_function",
    """The gradient goes through a tf.py_function. Where its Python code passes none, it is 0.0 rather than None; and it
    can be computed once: another tape.gradient or a tape.jacobian fails with a KeyError, even of a persistent tape.""",
    "y = tf.py_function(tf.square, [x], tf.float32)",
    "# ask for all sources in one call: tape.gradient({target}, [{source}, ...])",
)
_remark(
    "moments_twice",
    "second derivative of moments",
    """This is a derivative of a derivative, and on the way tf.nn.moments takes a variance. Inside, it stops the
    gradient of the mean: the first derivative is right, and the second silently wrong, by some percent to a factor of
    three. Keras's LayerNormalization, GroupNormalization and BatchNormalization (in training) use it.""",
    """
    with ExplainTape() as inner:
        variance = tf.nn.moments(x, axes=[0])[1] ** 2
    y = inner.gradient(variance, x)
    """,
    "variance = tf.reduce_mean((x - tf.reduce_mean(x)) ** 2)  # in place of tf.nn.moments(x, axes=[0])[1]",
)
_remark(
    "wrong_in_tensorflow",
    "wrong in TensorFlow",
    """On the way is an operation whose gradient in TensorFlow is not its derivative, and nothing warns of it:
    ImageProjectiveTransform, which Keras's RandomRotation, RandomZoom and RandomTranslation use, and tf.dynamic_stitch
    where an index stands twice (the last value wins, and the gradient goes to all). Comparing with central differences
    found them.""",
    "y = tf.dynamic_stitch([[0, 1], [1]], [x[:2], x[2:]])",
    "y = tf.tensor_scatter_nd_update(x[:2], [[1]], x[2:])  # each index once; keep random image layers out of the tape",
)
_remark(
    "partly_stopped",
    "one path of several stopped",
    """A tf.stop_gradient cuts one of the paths from the source to the target. The gradient counts the other paths only.
    That is what a straight-through estimator, a target network or a baseline wants.""",
    """
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        y = x * tf.stop_gradient(x)
    """,
    "y = x * x  # without tf.stop_gradient, if all paths are to count",
)
