"""Exercises and predictions of the notebook "The gradient of an expectation"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import tensorflow as tf

three = Prediction(
    "gradient_of_an_expectation.three",
    remarks=(
        ([-2.19, 0.7, 1], "These are the slopes of the means. The tape has the path of one run, with its draws."),
        ([None, None, None], "Not every draw breaks the path: `tf.random.normal(mean=mu)` returns `mu` plus noise."),
        ([None, None, 1], "A sign has a registered gradient. Which slope has a staircase?"),
        ([0, 0, 1], "An index is an integer: there is no path at all from a choice back to its logits."),
    ),
    rtol=0.02,
)

drink = Prediction(
    "gradient_of_an_expectation.drink",
    options=("another mean", "same mean, same scatter", "same mean, more scatter"),
    remarks=(
        ("another mean", "Which price is the best has not changed. What is the mean of the score function alone?"),
        ("same mean, same scatter", "Each estimate is the score function times what was paid, and that is more now."),
    ),
)

ripples = Prediction(
    "gradient_of_an_expectation.ripples",
    options=("a tenth", "two thirds", "more than ten"),
    remarks=(
        ("a tenth", "Look at the slope of the ripples: what happens to it as they become shorter?"),
        ("two thirds", "The ripples' height stays what it was. Does their slope?"),
    ),
)

thousandfold = Prediction(
    "gradient_of_an_expectation.thousandfold",
    options=("about 30", "about 4", "1000"),
    remarks=(
        ("about 30", "That is the root of a thousand: right for noise. What else is in the error?"),
        ("1000", "Noise falls with the root of the number of draws, and not all of the error is noise."),
    ),
)


def _samples(random, dtype):
    """A parameter, and numbers from which a reward and a log-probability are made of it."""
    return [
        (tf.constant(random.uniform(0.5, 1.5), dtype), *(tf.constant(random.normal(size=n), dtype) for _ in range(3)))
        for n in (4, 7)
    ]


def _gradient(function, theta, slopes, offsets, draws):
    """The gradient of what `function` makes of a reward and a log-probability that both depend on `theta`."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        reward = slopes * theta**2 + offsets
        log_p = -0.5 * (draws - theta) ** 2
        value = function(reward, log_p)
    return {"the gradient": tape.gradient(value, theta) if tf.is_tensor(value) else value}


def _surrogate(reward, log_p):
    """The product's gradient has a part too many, and that is taken away again."""
    return tf.reduce_mean(reward + reward * log_p - reward * tf.stop_gradient(log_p))


surrogate = Exercise(
    title="The surrogate",
    minutes=8,
    hints=(
        "Two terms for each draw: the reward's own gradient, and the reward as a number times the gradient of `log_p`.",
        "Whatever shall count as a number goes into `tf.stop_gradient`.",
        "The mean over the draws comes last: a surrogate for all of them is a scalar.",
    ),
    checker=Function(reference=_surrogate, inputs=_samples, observe=_gradient),
)


@surrogate.starter("surrogate_of")
def _(reward, log_p):
    return ...  # a scalar


@surrogate.right
def _(reward, log_p):
    r"""The first summand brings $\nabla f$, the second $f\,\nabla \log p$. The stop keeps $\log p\,\nabla f$ out."""
    return tf.reduce_mean(reward + tf.stop_gradient(reward) * log_p)


@surrogate.mistake("no_stop")
def _(reward, log_p):
    """The product rule has two terms, and one of them is not in the formula: the log-probability times the reward's
    gradient. What has to be a number there?"""
    return tf.reduce_mean(reward + reward * log_p)


@surrogate.mistake("other_stop")
def _(reward, log_p):
    """The stop stands at the log-probability, so the score function is never formed. Which of the two factors counts
    as a number?"""
    return tf.reduce_mean(reward + reward * tf.stop_gradient(log_p))


@surrogate.mistake("means_first")
def _(reward, log_p):
    """This multiplies two means. Each draw's reward has to meet the log-probability of the same draw."""
    return tf.reduce_mean(reward) + tf.stop_gradient(tf.reduce_mean(reward)) * tf.reduce_mean(log_p)


@surrogate.mistake("score_alone")
def _(reward, log_p):
    """This is the second term alone. The reward depends on the parameter directly, too."""
    return tf.reduce_mean(tf.stop_gradient(reward) * log_p)


@surrogate.mistake("product_alone")
def _(reward, log_p):
    """The reward's gradient stands there with the log-probability as a factor. In the formula its factor is 1."""
    return tf.reduce_mean(reward * log_p)


@surrogate.mistake("tape_alone")
def _(reward, log_p):
    """This is the first term, which the tape has anyway. `log_p` has to come in, so that its gradient does."""
    return tf.reduce_mean(reward)


@surrogate.mistake("summed")
def _(reward, log_p):
    """This is the sum over the draws. The estimate is their mean."""
    return tf.reduce_sum(reward + tf.stop_gradient(reward) * log_p)


@surrogate.wrong("sign")
def _(reward, log_p):
    return -_surrogate(reward, log_p)


all_of_them = Exercise(
    title="The mean of all",
    minutes=6,
    hints=(
        "Write the mean of all rewards as $r_i / n$ plus the others' part, and compare with the mean of the others.",
        r"$r_i - \bar r = \frac{n-1}{n} (r_i - b_i)$, with the mean $b_i$ of the others.",
    ),
    checker=Value(
        {1: 0, 2: 0.5, 5: 0.8},
        mistakes=(
            Mistake("share_taken", "This is the share that is *lost*. What is left of the gradient?", {5: 0.2}),
            Mistake(
                "unbiased",
                "A baseline leaves the mean alone if it does not depend on the draw. This one contains its reward.",
                {2: 1, 5: 1},
            ),
            Mistake("too_long", "The own reward makes the differences smaller, not larger.", {5: 1.25}),
            Mistake("alone", "A batch of one: what is its reward less the mean of the batch?", {1: 1}),
        ),
        wrong=(("keys", {1: 0, 2: 0.5}),),
    ),
)


@all_of_them.starter()
def _():
    factors = {1: ..., 2: ..., 5: ...}

    return factors


@all_of_them.right
def _():
    r"""$r_i - \bar r = \frac{n-1}{n}(r_i - b_i)$, where $b_i$ is the mean of the others. With $b_i$ the mean of the
    estimates is exact, so with $\bar r$ it is $1 - 1/n$ times that. A learning rate can make up for the factor, except
    where a batch is a single draw: then nothing is left."""
    factors = {1: 0, 2: 0.5, 5: 0.8}

    return factors


def _visits(random, dtype):
    """Logits, choices and rewards of a day."""
    return [
        (
            tf.constant(random.normal(size=k), dtype),
            tf.constant(random.permutation(n) % k),
            tf.constant(random.uniform(1.0, 9.0, size=n), dtype),
        )
        for n, k in ((5, 3), (8, 4), (6, 7))
    ]


def _one_step(logits, choice, reward):
    """Choice by choice, from the score function's formula."""
    p, n = tf.nn.softmax(logits), len(reward)
    estimates = [
        (reward[i] - (tf.reduce_sum(reward) - reward[i]) / (n - 1))
        * (tf.one_hot(choice[i], len(logits), dtype=logits.dtype) - p)
        for i in range(n)
    ]
    return tf.add_n(estimates) / n


def _from_a_tape(logits, choice, weights):
    """The gradient of the weighted log-probabilities' sum."""
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_p = tf.gather(tf.nn.log_softmax(logits), choice)
    return tape.gradient(log_p, logits, output_gradients=weights)


def _less_the_others(reward):
    return reward - (tf.reduce_sum(reward) - reward) / (len(reward) - 1)


one_day = Exercise(
    title="One day's step",
    minutes=9,
    hints=(
        "The mean of the others is `(tf.reduce_sum(reward) - reward) / (n - 1)`, one number for each draw.",
        "`tf.gather(tf.nn.log_softmax(logits), choice)` has the log-probability of each draw.",
        "Let a tape differentiate the mean of the weighted log-probabilities, with `logits` watched.",
    ),
    checker=Function(reference=_one_step, inputs=_visits),
)


@one_day.starter("direction")
def _(logits, choice, reward):
    return ...  # shape (k,)


@one_day.right
def _(logits, choice, reward):
    """The weights come from rewards and contain no parameter, so they need no `stop_gradient` here. The tape does the
    score function: a one-hot row less the probabilities, for each draw."""
    others = (tf.reduce_sum(reward) - reward) / (len(reward) - 1)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        log_p = tf.gather(tf.nn.log_softmax(logits), choice)
        surrogate = tf.reduce_mean((reward - others) * log_p)
    return tape.gradient(surrogate, logits)


@one_day.mistake("no_baseline")
def _(logits, choice, reward):
    """The rewards come in as they are. From each, subtract the mean of the others."""
    return _from_a_tape(logits, choice, reward) / len(reward)


@one_day.mistake("mean_of_all")
def _(logits, choice, reward):
    """The own reward is in the baseline: the result is too short by a factor that the exercise before has found."""
    return _from_a_tape(logits, choice, reward - tf.reduce_mean(reward)) / len(reward)


@one_day.mistake("summed")
def _(logits, choice, reward):
    """This is the sum over the draws. A step takes their mean."""
    return _from_a_tape(logits, choice, _less_the_others(reward))


@one_day.mistake("probabilities")
def _(logits, choice, reward):
    """This differentiates the probability of each choice. The score function is the gradient of its *logarithm*."""
    with tf.GradientTape() as tape:
        tape.watch(logits)
        chosen = tf.gather(tf.nn.softmax(logits), choice)
    return tape.gradient(chosen, logits, output_gradients=_less_the_others(reward) / len(reward))


@one_day.wrong("sign")
def _(logits, choice, reward):
    return -_one_step(logits, choice, reward)


best_baseline = Exercise(
    title="The best baseline",
    minutes=8,
    beyond=True,
    hints=(
        "An estimate takes two values: $(5 - b)(1 - p)$ for heads and $-(3 - b)p$ for tails.",
        "Two values with the probabilities $p$ and $1 - p$ have the variance $p(1 - p)$ times their squared distance.",
        "The distance is $(5 - b)(1 - p) + (3 - b)p$. For which $b$ is it zero?",
    ),
    checker=Value(
        {"variance without": 2.296875, "variance with the mean": 0.1875, "best baseline": 3.5},
        mistakes=(
            Mistake(
                "mean_is_best",
                "The mean reward is what many take. Here another constant does better. Where is the variance zero?",
                {"best baseline": 4.5},
            ),
            Mistake(
                "no_probabilities",
                "These are squared distances of the two values. The variance has the factor $p(1 - p)$, too.",
                {"variance without": 12.25},
            ),
            Mistake(
                "second_moment",
                "This is the mean of the squares. The mean itself, squared, has to be subtracted.",
                {"variance without": 2.4375},
            ),
            Mistake(
                "rewards_alone",
                "This is the variance of the *rewards*. An estimate is a reward times the score function.",
                {"variance without": 0.75},
            ),
        ),
        wrong=(("keys", {"best baseline": 3.5}),),
        rtol=0.01,
    ),
)


@best_baseline.starter()
def _():
    answer = {"variance without": ..., "variance with the mean": ..., "best baseline": ...}

    return answer


@best_baseline.right
def _():
    r"""The two values of an estimate are $(5-b)(1-p)$ and $-(3-b)p$. Their distance is $5(1-p) + 3p - b = 3.5 - b$, and
    the variance is $p(1-p)(3.5-b)^2$: 2.297 for $b = 0$, 0.1875 for the mean 4.5, and zero for 3.5. The best baseline
    weights a reward by the square of its score function: the rare result counts more."""
    answer = {"variance without": 2.296875, "variance with the mean": 0.1875, "best baseline": 3.5}

    return answer
