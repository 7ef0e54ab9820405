"""The mechanisms by which a gradient's value goes bad, each with a stable code.

`VALUES` stands beside `CAUSES` and `REMARKS` of `tapelab.explain.missing.causes`: what it means, an example, and the
fix. The sentence is what `explain` says; {op} is the operation, {of} its argument as the learner wrote it, {x} the
value there.
"""

import dataclasses
import textwrap

from tapelab.explain.missing.causes import Cause


@dataclasses.dataclass(frozen=True)
class Mechanism(Cause):
    """A cause of a bad value.

    Attributes:
        sentence: what `explain` says, with {names} to fill in.
    """

    sentence: str = ""


VALUES = {}


def _mechanism(code, title, sentence, meaning, example, fix):
    example, fix = (textwrap.dedent(part).strip() for part in (example, fix))
    sentence, meaning = (" ".join(part.split()) for part in (sentence, meaning))
    VALUES[code] = Mechanism(code, title, meaning, example, fix, sentence)


# Not finite.

_mechanism(
    "unselected_branch",
    "branch that tf.where did not select",
    """The elements that tf.where did not select still get gradient 0, and {op} multiplies it by a slope that is not
    finite at {x}: that is NaN.""",
    """tf.where chooses between two values that were both computed. Backwards, the one that it did not choose gets
    gradient 0, and 0 times an infinite slope is NaN. Choose before the operation as well as after it.""",
    """
    x = tf.Variable([2.0, 0.0])
    with ExplainTape() as tape:
        y = tf.where(x > 0, tf.math.log(x), 0.0)
    """,
    """
    safe = tf.where(condition, {of}, 1.0)  # choose before the operation as well as after it
    tf.where(condition, f(safe), 0.0)
    """,
)
_mechanism(
    "masked_by_zero",
    "0 times infinity by a mask",
    "Multiplying by a mask does not remove what {op} gives at {x}: 0 times infinity is NaN.",
    """A product with a mask of zeros and ones leaves NaN and infinity as they are, forwards and backwards. Take the
    elements out before the operation that cannot take them.""",
    """
    x, mask = tf.Variable([0.5, 0.0]), tf.constant([1.0, 0.0])
    with ExplainTape() as tape:
        y = mask * tf.math.log(x)
    """,
    """
    kept = tf.boolean_mask({of}, mask)  # before the operation, instead of a product after it
    """,
)
_mechanism(
    "root_at_zero",
    "root at 0",
    "{op} is taken at {x}, where its slope is infinite.",
    """The slope of a square root at 0 is infinite, and infinity times 0 is NaN. A norm, a distance and a standard
    deviation take a root: at a zero vector, at two equal points, at equal numbers.""",
    """
    x = tf.Variable([0.0, 0.0])
    with ExplainTape() as tape:
        y = tf.norm(x)
    """,
    """
    tf.sqrt({of} + 1e-12)  # an epsilon inside the root
    """,
)
_mechanism(
    "log_of_zero",
    "logarithm of 0",
    "The logarithm is taken of {x}: it is -infinity there, and so steep that the gradient is not finite.",
    """log(0) is -infinity and its slope infinite. A probability that was computed as a softmax or a sigmoid underflows
    to 0: compute its logarithm from the logits.""",
    """
    x = tf.Variable([0.0, 200.0])
    with ExplainTape() as tape:
        y = -tf.math.log(tf.nn.softmax(x))[0]
    """,
    """
    tf.nn.log_softmax(logits)  # for a probability; a loss with from_logits=True does the same
    tf.math.log({of} + 1e-7)  # elsewhere: keep the argument away from 0
    """,
)
_mechanism(
    "zero_times_infinity",
    "0 times infinity",
    "0 is multiplied by what {op} makes infinite at {x}: that is NaN.",
    """0 times infinity is NaN, as in p log p at p = 0. Where the limit is meant, TensorFlow has operations that
    know it.""",
    """
    x = tf.Variable([0.5, 0.0])
    with ExplainTape() as tape:
        y = -tf.reduce_sum(x * tf.math.log(x))
    """,
    """
    tf.math.xlogy(p, p)  # p log p, with value and gradient 0 at 0
    """,
)
_mechanism(
    "division_by_zero",
    "division by 0",
    "{op} divides by {x}.",
    """A number divided by 0 is infinite, and so is the slope of the quotient.""",
    """
    x = tf.Variable([2.0, 0.0])
    with ExplainTape() as tape:
        y = 1.0 / x
    """,
    """
    tf.math.divide_no_nan(numerator, {of})  # 0 where the denominator is 0, in the gradient too
    """,
)
_mechanism(
    "zero_over_zero",
    "0 divided by 0",
    "{op} divides 0 by 0.",
    """0 / 0 is NaN: a mean over nothing, the angle of the origin, a ratio of two empty counts.""",
    """
    x, mask = tf.Variable([1.0, 2.0]), tf.constant([0.0, 0.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(x * mask) / tf.reduce_sum(mask)
    """,
    """
    tf.math.divide_no_nan(numerator, {of})  # for a count also: numerator / tf.maximum(count, 1.0)
    """,
)
_mechanism(
    "domain",
    "outside the domain",
    "{op} has no real value at {x}.",
    """The logarithm and the root of a negative number, a fractional power of one, and the arc cosine of something
    above 1 are not real: TensorFlow gives NaN.""",
    """
    x = tf.Variable([4.0, -0.5])
    with ExplainTape() as tape:
        y = tf.sqrt(x)
    """,
    """
    tf.nn.softplus({of})  # makes any number positive; tf.maximum, tf.clip_by_value keep it within bounds
    """,
)
_mechanism(
    "pole",
    "infinite slope at the edge",
    "{op} is taken at {x}, at the edge of where it is defined: its slope is infinite there.",
    """The value is finite and the slope is not: acos and asin at 1 and -1, atanh, lgamma at 0. Cosines of angles reach
    1 by rounding.""",
    """
    x = tf.Variable([0.5, 1.0])
    with ExplainTape() as tape:
        y = tf.acos(x)
    """,
    """
    tf.clip_by_value({of}, -1 + 1e-6, 1 - 1e-6)  # before the operation
    """,
)
_mechanism(
    "overflow",
    "overflow",
    "{op} of {x} is more than {dtype} can hold, which ends at {max}.",
    """A floating-point number has a largest value: 3.4e38 in float32, 65504 in float16. exp passes it at 89, a square
    in float16 at 256. Then come infinity and, from infinity less or over infinity, NaN.""",
    """
    x = tf.Variable([1.0, 100.0])
    with ExplainTape() as tape:
        y = tf.math.log(1.0 + tf.exp(x))
    """,
    """
    tf.nn.softplus({of})  # log(1 + exp(x)); else tf.nn.softmax, tf.sigmoid, tf.reduce_logsumexp
    """,
)
_mechanism(
    "underflow",
    "underflow",
    "{op} of numbers that are not 0 is 0: the result is less than {dtype} can hold.",
    """A product of many small numbers, or exp of a very negative one, is rounded to 0, and its logarithm is infinite or
    its gradient 0. Work with logarithms, or in a wider dtype.""",
    """
    x = tf.Variable(tf.fill([60], 1e-3))
    with ExplainTape() as tape:
        y = tf.math.log(tf.reduce_prod(x))
    """,
    """
    tf.reduce_sum(tf.math.log({of}))  # in place of the logarithm of a product
    """,
)
_mechanism(
    "inf_minus_inf",
    "infinity less infinity",
    "{op} takes infinity from infinity: that is NaN.",
    """The difference of two infinities is NaN. A mask of -inf that is added on both sides of a difference does
    this.""",
    """
    x, mask = tf.Variable([1.0, 2.0]), tf.constant([0.0, -np.inf])
    with ExplainTape() as tape:
        y = (x + mask) - (2.0 * x + mask)
    """,
    """
    mask = tf.where(kept, 0.0, -1e9)  # a large number in place of infinity; -1e4 in float16
    """,
)
_mechanism(
    "all_masked",
    "nothing left of a row",
    "Every element of a row that goes into {op} is -infinity, so there is nothing to share the probability.",
    """A softmax over a row of nothing but -inf is 0 / 0. In attention: a query with no key to attend to.""",
    """
    x, mask = tf.Variable([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[0.0, 0.0], [-np.inf, -np.inf]])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.nn.softmax(x + mask) * [1.0, 2.0])
    """,
    """
    mask = tf.where(kept, 0.0, -1e9)  # a large number in place of infinity; and leave such rows out of the loss
    """,
)
_mechanism(
    "not_positive_definite",
    "not positive definite",
    "{op} of a matrix that is not positive definite.",
    """A Cholesky factor exists for positive definite matrices only. A covariance of equal or too few rows is
    singular.""",
    """
    x = tf.Variable([[1.0, 1.0], [1.0, 1.0]])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tf.linalg.cholesky(x))))
    """,
    """
    {of} + 1e-3 * tf.eye(n)  # in place of {of}
    """,
)
_mechanism(
    "source_not_finite",
    "came in not finite",
    "{of} already held {x} when it was used here.",
    """A variable or an input was NaN or infinite before the tape opened: the data have a gap, or an earlier update blew
    the variable up.""",
    """
    x = tf.Variable([1.0, np.nan])
    with ExplainTape() as tape:
        y = tf.reduce_sum(x * x)
    """,
    """
    tf.debugging.check_numerics({of}, "{of}")  # where it is made or read in
    # for a variable: a smaller learning rate, or tf.keras.optimizers.Adam(clipnorm=1.0)
    """,
)
_mechanism(
    "custom_gradient",
    "a custom gradient returned it",
    "The custom gradient of {op} was given good values and returned bad ones.",
    """The backward function belongs to a @tf.custom_gradient or a tf.py_function: TensorFlow takes what it
    returns.""",
    """
    @tf.custom_gradient
    def root(value):
        return tf.sqrt(value + 1.0), lambda upstream: upstream / value

    x = tf.Variable([1.0, 0.0])
    with ExplainTape() as tape:
        y = root(x)
    """,
    """
    # mend the backward function: compare it with tf.test.compute_gradient
    """,
)

# Zero.

_mechanism(
    "dead_relu",
    "dead ReLU",
    "{op} gets nothing above 0{units}, so it is flat there and passes no gradient.",
    """A ReLU is flat below 0. A unit that is negative for every example gets no gradient and cannot recover: after too
    large a step, or with too low a bias.""",
    """
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        y = tf.nn.relu(x - 100.0)
    """,
    """
    tf.nn.leaky_relu({of})  # or He initialisation, a smaller learning rate
    """,
)
_mechanism(
    "at_kink",
    "exactly at the kink",
    "{op} gets exactly 0, where TensorFlow gives it slope 0.",
    """relu and abs have a kink at 0, and TensorFlow takes the slope there to be 0. Weights that all start at 0 put
    every unit there.""",
    """
    x = tf.Variable([0.0, 0.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.nn.relu(x)) + 1.0
    """,
    """
    {source}.assign(tf.random.normal({source}.shape, stddev=0.1))  # start away from 0
    """,
)
_mechanism(
    "saturated",
    "saturated",
    "{op} gets {x}, where it is flat.",
    """Sigmoid, tanh and softmax are flat far from 0: their slope is rounded to 0. Inputs were not scaled, weights are
    large, or the loss is computed from probabilities.""",
    """
    x = tf.Variable([300.0, -400.0])
    with ExplainTape() as tape:
        y = tf.sigmoid(x)
    """,
    """
    # scale what goes in, such as {of} / 255.0; compute a loss from the logits (from_logits=True)
    """,
)
_mechanism(
    "clipped",
    "clipped",
    "{op} cuts {x} off, and what is cut off has no gradient.",
    """Outside its bounds a clip is constant. Keras's losses for probabilities clip to [1e-7, 1 - 1e-7]: given logits
    they are flat.""",
    """
    x = tf.Variable([5.0, -7.0])
    with ExplainTape() as tape:
        y = tf.clip_by_value(x, -1.0, 1.0)
    """,
    """
    from_logits=True  # for a loss that was given logits; elsewhere: no clip on the way, or wider bounds
    """,
)
_mechanism(
    "hinge_inactive",
    "every margin is met",
    "The loss is 0 already, because {op} cuts it off there: a gradient of 0 is right.",
    """A hinge or triplet loss is 0 once every margin is met.""",
    """
    x = tf.Variable([3.0, 4.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.maximum(0.0, 1.0 - x))
    """,
    """
    # nothing: there is nothing left to learn from these examples
    """,
)
_mechanism(
    "flat_operation",
    "flat operation",
    "{op} is flat on both sides of every step, so its gradient is 0 everywhere.",
    """A sign has slope 0 wherever it has one.""",
    """
    x = tf.Variable([0.5, -2.0])
    with ExplainTape() as tape:
        y = tf.sign(x)
    """,
    """
    tf.tanh({of} / temperature)  # or straight-through: {of} + tf.stop_gradient(tf.sign({of}) - {of})
    """,
)
_mechanism(
    "multiplied_by_zero",
    "multiplied by 0",
    "{op} multiplies by a factor that is 0.",
    """A coefficient or a mask of zeros stops everything behind it.""",
    """
    x, weight = tf.Variable([0.5, -2.0]), tf.constant(0.0)
    with ExplainTape() as tape:
        y = weight * x
    """,
    """
    # look at the other factor in the line named here: should it be 0?
    """,
)
_mechanism(
    "zero_weights",
    "weights are 0",
    "The other operand of {op} was computed from variables, and all of it is 0.",
    """In a product each factor's gradient is the other factor. Where two variables that start at 0 are multiplied,
    neither ever moves.""",
    """
    x, other = tf.Variable([[1.0, 2.0]]), tf.Variable([[0.0], [0.0]])
    with ExplainTape() as tape:
        y = tf.matmul(x, other)
    """,
    """
    other = tf.Variable(tf.random.normal(shape, stddev=0.1))  # one of the two must not start at 0
    """,
)
_mechanism(
    "zero_input",
    "input is 0",
    "The other operand of {op} is all 0.",
    """The gradient of a weight is its input times what comes from behind. An input of zeros teaches it nothing: an
    empty batch of padding, a feature that was never filled in, a layer before it that is dead.""",
    """
    x, batch = tf.Variable([[1.0], [2.0]]), tf.constant([[0.0, 0.0]])
    with ExplainTape() as tape:
        y = tf.matmul(batch, x)
    """,
    """
    # look at the other operand in the line named here: should it be 0?
    """,
)
_mechanism(
    "constant_output",
    "output does not change",
    "{target} does not change with {source}: at {op} the contributions cancel.",
    """The gradient is 0 because the function is constant: a softmax over one unit is 1, its probabilities add up to 1,
    and batch normalisation of one row gives its beta.""",
    """
    x = tf.Variable([[1.0], [2.0]])
    with ExplainTape() as tape:
        y = tf.reduce_sum((tf.nn.softmax(x) - 0.5) ** 2)
    """,
    """
    tf.keras.layers.Dense(1, activation="sigmoid")  # for one unit; at least two rows for batch normalisation
    # the squares of what was normalised always add up to the same: another loss
    """,
)
_mechanism(
    "not_selected",
    "not selected",
    "{op} selected other elements, so these have no part in {target}.",
    """What tf.where, a slice or a lookup did not select has gradient 0, and that is right.""",
    """
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        y = tf.where([False, False], x, 0.0)
    """,
    """
    # nothing, if the selection is what was meant
    """,
)
_mechanism(
    "not_maximum",
    "not the largest",
    "{op} took other elements as the largest, so these have no part in {target}.",
    """A maximum passes its gradient to the winner only.""",
    """
    x, other = tf.Variable([1.0, 2.0]), tf.constant([5.0])
    with ExplainTape() as tape:
        y = tf.reduce_max(tf.concat([x, other], 0))
    """,
    """
    tf.reduce_logsumexp({of})  # a smooth maximum, if all shall learn
    """,
)
_mechanism(
    "at_minimum",
    "at a stationary point",
    "{op} has slope 0 at {x}: {target} is stationary there, and 0 is right.",
    """At a minimum, a maximum or a saddle the gradient is 0.""",
    """
    x = tf.Variable([0.0, 0.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(x**2)
    """,
    """
    # nothing, if this is the minimum; else start elsewhere
    """,
)
_mechanism(
    "other_output",
    "zero from a function",
    "{target} does not depend on {source}; another output of {op} does, and TensorFlow gives 0 in place of None.",
    """TensorFlow differentiates a tf.function as a whole: an output that does not depend on the source has gradient 0
    where the same code run eagerly has None.""",
    """
    both = tf.function(lambda a, b: (a * a, b * b))
    x, other = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        _, y = both(x, other)
    """,
    """
    # split the function, so that each output has one of its own
    """,
)
_mechanism(
    "wrong_at_zero",
    "wrong where the input is 0",
    "TensorFlow's gradient of {op} is 0 where its input holds a 0, and should not be.",
    """tf.math.cumprod computes its gradient with a division that it guards: where an element is 0 the result is 0,
    which is not the derivative.""",
    """
    x = tf.Variable([0.8, 0.0, 0.7])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.math.cumprod(x))
    """,
    """
    tf.stack([tf.reduce_prod({of}[: i + 1]) for i in range({of}.shape[0])])  # in place of tf.math.cumprod
    """,
)

# Finite, and not the derivative, at points that the audit of TensorFlow's derivatives names.

_mechanism(
    "zero_coefficient",
    "first argument 0",
    """Where the first argument of {op} is 0, TensorFlow's gradient with respect to it is 0. The derivative is what it
    multiplies; differences of {target} say so too.""",
    """tf.math.xlogy, xlog1py and xdivy are 0 where x is 0, whatever y is. The gradient by x is not: it is log(y),
    log(1 + y), 1 / y. TensorFlow up to 2.21 gives 0 there.""",
    """
    x = tf.Variable([0.0, 0.5])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.math.xlogy(x, 2.0 + x))
    """,
    """
    x * tf.math.log(y)  # in place of tf.math.xlogy(x, y), where y is positive; x / y in place of tf.math.xdivy(x, y)
    """,
)
_mechanism(
    "kinks_meet",
    "kinks that meet",
    """{op} and another operation have a kink at this point, and together they have a slope there: differences of
    {target} find it, and TensorFlow's gradient adds up to another.""",
    """Code that is stable far out is often made of pieces with a kink: log(1 + exp(-|z|)) + max(z, 0) is smooth, and
    neither part is at z = 0. TensorFlow takes one side's slope of each, and the sum may be nobody's. That is so for
    tf.nn.weighted_cross_entropy_with_logits at a logit of 0, where a head starts whose weights are 0, for logaddexp
    at a tie and for keras.activations.celu at 0.""",
    """
    x = tf.Variable([0.0, 0.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.nn.weighted_cross_entropy_with_logits([1.0, 0.0], x, 2.0))
    """,
    """
    weight = 1.0 + (pos_weight - 1.0) * labels
    (1.0 - labels) * logits + weight * tf.nn.softplus(-logits)  # for weighted_cross_entropy_with_logits
    tf.reduce_logsumexp(tf.stack([a, b]), 0)  # for logaddexp(a, b)
    tf.nn.elu(x)  # for celu(x)
    """,
)
_mechanism(
    "product_with_zero",
    "derivative of a product's gradient at 0",
    """{op} holds a 0. What TensorFlow makes of it on the way back is not the derivative; differences of {target} find
    another one.""",
    """The gradient of tf.reduce_prod is made of cumulative products, and the gradient of those is wrong where an
    element is 0. So the first derivative of a product is right, and a second one is not.""",
    """
    x = tf.Variable([0.0, 1.0, 2.0])
    with ExplainTape() as tape:
        with ExplainTape() as inner:
            product = tf.reduce_prod(x)
        gradient = inner.gradient(product, x)
        y = tf.reduce_sum(gradient * [1.0, 2.0, 3.0])
    """,
    """
    functools.reduce(tf.multiply, tf.unstack(x))  # in place of tf.reduce_prod(x)
    """,
)
_mechanism(
    "equal_eigenvalues",
    "equal eigenvalues",
    """Some of the values of {op} are equal. TensorFlow leaves out of its gradient what their vectors have a part in,
    and differences of {target} find that it counts.""",
    """Where a function of a matrix does not depend on how the vectors of equal eigenvalues are turned, it has a
    derivative: a square root, a polar factor, a sum of squared eigenvalues. TensorFlow's gradient of the vectors
    divides by the difference of eigenvalues and puts 0 where that is 0: the part is lost.""",
    """
    x = tf.Variable([[1.0, 0.0], [0.0, 1.0]])
    with ExplainTape() as tape:
        values, vectors = tf.linalg.eigh(x)
        root = tf.matmul(vectors * tf.sqrt(values), vectors, transpose_b=True)
        y = tf.reduce_sum(root * [[1.0, 2.0], [2.0, 3.0]])
    """,
    """
    tf.linalg.sqrtm({of})  # functions of the matrix itself (sqrtm, expm, slogdet, inv, matmul) take equal eigenvalues
    """,
)

# Huge and tiny.

_mechanism(
    "vanishing",
    "vanishing",
    "{op} shrinks the gradient {count} times, by a factor of {factor} each: {total} together.",
    """Every layer or time step multiplies the gradient by its slope. Many slopes below 1 leave nothing.""",
    """
    x = tf.Variable([0.5])
    with ExplainTape() as tape:
        y = x
        for _ in range(14):
            y = tf.sigmoid(y)
    """,
    """
    tf.nn.relu({of})  # in place of a function that saturates; or residual connections, normalisation, LSTM, GRU
    """,
)
_mechanism(
    "cancelling",
    "contributions cancel",
    "Contributions of opposite signs nearly cancel: {made}; {total} is left.",
    """The gradient is a sum over all ways to the target. Where its terms are far larger than the sum, the target is
    almost stationary, or two terms of it say the same with opposite signs. What is left may be rounding: compare it
    with the terms times 1e-7 in float32, 1e-16 in float64.""",
    """
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = 5.0 * x - 4.9999995 * x
    """,
    """
    # nothing, if the target is at a minimum; otherwise write the difference so that the large terms are not formed
    """,
)
_mechanism(
    "exploding",
    "exploding",
    "{op} enlarges the gradient {count} times, by a factor of {factor} each: {total} together.",
    """Every layer or time step multiplies the gradient by its slope. Many slopes above 1 blow it up.""",
    """
    x = tf.Variable([[0.5, 0.1]])
    with ExplainTape() as tape:
        y = x
        for _ in range(12):
            y = tf.matmul(y, [[3.0, 1.0], [1.0, 3.0]])
    """,
    """
    tf.keras.optimizers.Adam(clipnorm=1.0)  # orthogonal or smaller initial weights, or normalisation, cure the cause
    """,
)
_mechanism(
    "steep",
    "steep",
    "{op} is steep at {x}: it enlarges the gradient {total} times.",
    """One operation has a very large slope where it is: near a pole or a root at almost 0, or a coefficient that is
    large.""",
    """
    x = tf.Variable([1e-4])
    with ExplainTape() as tape:
        y = 1.0 / x
    """,
    """
    1.0 / tf.maximum({of}, 1e-2)  # for a division; elsewhere a larger epsilon, or smaller numbers
    """,
)
_mechanism(
    "degenerate_eigenvalues",
    "equal eigenvalues",
    """{op} of a matrix with eigenvalues or singular values that are equal or almost so: their vectors turn at the
    slightest change, and a gradient that comes through them means nothing.""",
    """The gradient of an eigenvector or a singular vector divides by the difference of eigenvalues; where that is 0,
    TensorFlow leaves the part out. That of the values does not.""",
    """
    x = tf.Variable([[2.0, 0.0], [0.0, 2.000001]])
    with ExplainTape() as tape:
        _, vectors = tf.linalg.eigh(x)
        y = tf.reduce_sum(vectors * [[1.0, 2.0], [3.0, 4.0]])
    """,
    """
    tf.linalg.eigvalsh({of})  # if the values are enough; of an svd: tf.linalg.svd({of}, compute_uv=False)
    """,
)
_mechanism(
    "ill_conditioned",
    "ill-conditioned",
    "{op} of a matrix that is almost singular.",
    """The gradient of an inverse grows with the square of the inverse.""",
    """
    x = tf.Variable([[1.0, 1.0], [1.0, 1.0001]])
    with ExplainTape() as tape:
        y = tf.linalg.inv(x)[0, 0]
    """,
    """
    {of} + 1e-2 * tf.eye(n)  # in place of {of}
    """,
)

# Finite, and wrong all the same.

_mechanism(
    "softmax_twice",
    "softmax twice",
    "{op} takes logits and was given probabilities: the softmax is taken twice.",
    """A loss that has its own softmax was given the output of another. It trains, slowly, towards a flat optimum.""",
    """
    x = tf.Variable([[1.0, 3.0, -1.0]])
    with ExplainTape() as tape:
        y = tf.nn.softmax_cross_entropy_with_logits([[0.0, 1.0, 0.0]], tf.nn.softmax(x))
    """,
    """
    # no softmax before this loss; or, of a Keras loss, from_logits=False
    """,
)
_mechanism(
    "broadcast_loss",
    "column against row",
    "{op} was given shapes {shapes} and made {made} of them: every prediction is compared with every label.",
    """(n, 1) and (n,) broadcast to (n, n). The loss is finite and means nothing.""",
    """
    x, labels = tf.Variable([[1.0], [2.0], [3.0]]), tf.constant([1.0, 2.0, 4.0])
    with ExplainTape() as tape:
        y = tf.reduce_mean((x - labels) ** 2)
    """,
    """
    labels[:, None]  # in place of labels: shape (n, 1)
    """,
)
_mechanism(
    "symmetric_units",
    "units are copies",
    "All columns of {source} are equal and so are those of its gradient: the units stay copies of each other.",
    """Units that start equal get equal gradients and stay equal: one unit's worth of a layer. Initialise at random.""",
    """
    x, batch = tf.Variable(tf.fill([2, 3], 0.1)), tf.constant([[1.0, 2.0], [0.5, 1.0]])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.tanh(batch @ x))
    """,
    """
    {source}.assign(tf.random.normal({source}.shape, stddev=0.1))  # start with different columns
    """,
)
_mechanism(
    "unexplained",
    "could not be explained",
    "No mechanism fits what the values show.",
    """What is wrong was measured; why could not be told: running the backward pass again gave another result than the
    tape did, or no known mechanism fits.""",
    """
    # random numbers inside a loop of a tf.function, which are others each time
    """,
    """
    # make the program smaller: explain(tape, target, intermediate result)
    """,
)
