# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,alt,jupyter,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The gradient of an expectation
#
# Much of what a program computes is a mean over chance: over visitors who buy or do not, over moves of a player, over noise. **How do you differentiate a mean with respect to a parameter that decides how the dice fall?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/26_gradient_of_an_expectation.ipynb)
#
# **Prerequisites:** [06 Stop gradient](06_stop_gradient.ipynb) · **Minutes:** 25 to read, 3 more to go further, 31 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
days = 200  # of each campaign in section 4: between 150 and 300
shops = 200  # that learn side by side there: between 150 and 300

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import plots, runtime
from tapelab.exercises.sheets import gradient_of_an_expectation as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)


# %% tags=["nbval-ignore-output"]
def share(price):
    """The probability that a visitor buys: nearly all do at 4, half of them at 20, few at 36."""
    return tf.sigmoid((20.0 - price) / 4.0)


def sales(price, visitors):
    """For each visitor, 1 if they buy and 0 if not. Chance decides."""
    luck = tf.random.uniform([visitors])
    return tf.cast(luck < share(price), tf.float32)


price = tf.Variable(10.0)
path = [10.0]
for _ in range(300):
    with tf.GradientTape() as tape:
        takings = tf.reduce_mean(price * sales(price, visitors=100))
    price.assign_add(tape.gradient(takings, price))
    path.append(float(price))
for day in (0, 300):
    print(f"day {day:3}: price {path[day]:5.2f}, takings for each visitor {path[day] * share(path[day]):5.2f}")

# %% alt="Line plot. The mean takings for each visitor against the price: a hill with its top of 11.7 near a price of 15.7. Dots mark the price on the first ten days and on every tenth after. They climb the left side of the hill, cross the top, and go down the right side nearly to zero." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: over the top
grid = np.linspace(4, 40, 200, dtype=np.float32)
_, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.plot(grid, grid * share(grid), color=plots.GREY, label="mean takings")
visited = np.float32(path[:10] + path[10::10])
ax.plot(visited, visited * share(visited), "o", color=plots.BLUE, markersize=4, label="days 0 to 10, then every tenth")
ax.set(title="The tape's gradient climbs the hill, and goes on", xlabel="price", ylabel="takings for each visitor")
ax.legend()
plt.show()

# %% [markdown]
# A theatre sells tickets. Each day a hundred visitors see the price, some buy, and the price takes a step along the gradient of the day's takings. The best price is 15.7. The steps pass it and go on, until hardly anyone buys.
#
# No line fails, nothing is `None`, and each gradient is the right derivative of what the program computed: of that day's takings, with that day's buyers. But a higher price also *loses* buyers, and of that the tape knows nothing.
#
# **You will be able to**
#
# - say which of the two terms of the derivative a tape returns, and which one sampling loses (section 1),
# - get the other from the score function, also where nobody knows the function (sections 2 and 3),
# - take noise out of it with a baseline, and train with it (sections 3 and 4),
# - draw so that the tape sees through the draw, and say when that is the worse way (section 5),
# - relax a choice, and measure the bias that you buy (section 6).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert path[-1] > 35
assert path[-1] * share(path[-1]) < 0.1 * 15.7 * share(15.7)
assert np.min(np.diff(path)) >= 0  # no gradient was ever negative
np.testing.assert_allclose(15.7 * share(15.7), np.max(grid * share(grid)), rtol=1e-3)

# %% [markdown]
# ## 1. Two terms, and the tape sees one
#
# Let $x$ be what chance decides, with the probability $p_\theta(x)$, and $f_\theta(x)$ what you get. Both may depend on the parameter $\theta$. The **expectation** is the mean over all that can happen, and its derivative has two terms:
#
# $$\nabla_\theta \sum_x p_\theta(x)\, f_\theta(x) = \underbrace{\sum_x p_\theta(x)\, \nabla f_\theta(x)}_{\text{what you get changes}} + \underbrace{\sum_x f_\theta(x)\, \nabla p_\theta(x)}_{\text{how often you get it changes}}$$
#
# The program of the opening does not sum over all $x$. It draws some, and averages. The average of $\nabla f_\theta(x)$ estimates the first term. The second one is in *how* the $x$ are drawn, and there the path from $\theta$ breaks: at the comparison `luck < share(price)`, which has no slope.
#
# Below, a ticket is chosen at random from three; $x = \mu + {}$ noise is turned into a sign; and the same $x$ is averaged as it is. All three means depend on their parameter, with the slopes $-2.19$ (for the first of the three logits), $0.70$ and $1$.
#
# **Predict.** What does the tape return for the logits, for $\mu$, and for $\mu$ again?

# %%
exercises.three.guess([..., ..., ...])  # chosen ticket, sign, x itself

# %%
tickets = tf.constant([5.0, 10.0, 20.0])
logits = tf.Variable([0.5, 0.0, -0.5])
mu = tf.Variable(0.5)

with tf.GradientTape(persistent=True) as tape:
    choice = tf.random.categorical(logits[tf.newaxis], 1000)[0]
    mean_ticket = tf.reduce_mean(tf.gather(tickets, choice))
    x = tf.random.normal([1000], mean=mu)
    mean_sign = tf.reduce_mean(tf.sign(x))
    mean_x = tf.reduce_mean(x)

print("chosen ticket:", tape.gradient(mean_ticket, logits))
print("sign:         ", tape.gradient(mean_sign, mu).numpy())
print("x itself:     ", tape.gradient(mean_x, mu).numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
found = [tape.gradient(mean_ticket, logits), tape.gradient(mean_sign, mu), tape.gradient(mean_x, mu)]
exercises.three.reveal(found)
assert found[0] is None
assert float(found[1]) == 0.0
np.testing.assert_allclose(found[2], 1.0, rtol=1e-6)
with tf.GradientTape(persistent=True) as tape:
    exact_ticket = tf.reduce_sum(tf.nn.softmax(logits) * tickets)
    exact_sign = tf.math.erf(mu / 2**0.5)
np.testing.assert_allclose(tape.gradient(exact_ticket, logits)[0], -2.193, atol=0.01)
np.testing.assert_allclose(tape.gradient(exact_sign, mu), 0.704, atol=0.001)

# %% [markdown]
# `None`, a silent zero, and the right answer. The chosen index has no derivative, so the first path ends, and `None` says so ([03](03_when_the_gradient_is_none.ipynb)). The sign is flat on both sides of its jump, so the zero is the slope of each draw, not of the mean. The third is right, for a reason that section 5 is about.
#
# The opening's case is the fourth, and the hardest to see: a number that is neither `None` nor zero, because the *first* term is there.
#
# ## 2. The score function
#
# The second term has no $p$ in front, so it is not yet a mean over draws from $p$. One line changes that. The derivative of a logarithm is $\nabla \log p = \nabla p / p$, so $\nabla p = p\, \nabla \log p$, and
#
# $$\sum_x f(x)\, \nabla p_\theta(x) = \sum_x p_\theta(x)\; f(x)\, \nabla \log p_\theta(x).$$
#
# Now it is a mean again: draw $x$, and average $f(x)\, \nabla \log p_\theta(x)$. The factor $\nabla_\theta \log p_\theta(x)$ is called the **score function**, and the estimator by the same name; Williams (1992) called it REINFORCE. Of $f$ it needs values and no derivative.
#
# A tape computes both terms at once if you give it the right thing to differentiate, a **surrogate**:
#
# $$f_\theta(x) + \operatorname{stop}\big(f_\theta(x)\big)\, \log p_\theta(x).$$
#
# Its value means nothing. Its gradient is $\nabla f + f\, \nabla \log p$. Without `stop_gradient` there would be a third term, $\log p \cdot \nabla f$. Two things are assumed. *What* can be drawn does not depend on $\theta$, only how often. And $x$ is a given number: where the tape saw it made from $\theta$, as $\mu + {}$ noise is, stop its gradient, or the score of $\mu$ comes out as zero.


# %% tags=["nbval-ignore-output"]
def log_probability(sold, price):
    """Of what each visitor did: log(share) for those who bought, log(1 - share) for the others."""
    return tf.math.log_sigmoid((2.0 * sold - 1.0) * (20.0 - price) / 4.0)


price = tf.Variable(20.0)
with tf.GradientTape(persistent=True) as tape:
    sold = sales(price, visitors=100_000)
    takings = price * sold
    surrogate = takings + tf.stop_gradient(takings) * log_probability(sold, price)
    mean_takings, mean_surrogate = tf.reduce_mean(takings), tf.reduce_mean(surrogate)
    exact = price * share(price)
one_term, both_terms, true_slope = (tape.gradient(mean, price) for mean in (mean_takings, mean_surrogate, exact))
print(f"at a price of 20: the tape {one_term:.3f}, the surrogate {both_terms:.3f}, exact {true_slope:.3f}")

# %% [markdown]
# At 20 the tape said "up", and the mean falls there. The same 300 days once more, with the surrogate:

# %% tags=["nbval-ignore-output"]
price = tf.Variable(10.0)
for _ in range(300):
    with tf.GradientTape() as tape:
        sold = sales(price, visitors=100)
        takings = price * sold
        surrogate = tf.reduce_mean(takings + tf.stop_gradient(takings) * log_probability(sold, price))
    price.assign_add(tape.gradient(surrogate, price))
print(f"day 300: price {price.numpy():.2f}, takings for each visitor {price * share(price):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(true_slope, -0.75, rtol=1e-5)  # half buy, less 20 times the share's slope of 1/16
np.testing.assert_allclose(one_term, 0.5, atol=0.01)
np.testing.assert_allclose(both_terms, true_slope, atol=0.06)
np.testing.assert_allclose(price, 15.7, atol=0.3)
edge = tf.constant(3.0)  # x between 0 and 3: the mean of its square is edge**2 / 3, with the slope 2
even = tf.random.uniform([100_000]) * 3
with tf.GradientTape() as tape:
    tape.watch(edge)
    surrogate = tf.reduce_mean(even**2 * -tf.math.log(edge))
assert tape.gradient(surrogate, edge) < 0
check_mu, check_sigma, check_noise = tf.constant(0.5), tf.constant(1.0), tf.random.normal([100_000])
with tf.GradientTape() as tape:
    tape.watch([check_mu, check_sigma])
    check_x = check_mu + check_sigma * check_noise  # seen by the tape, and not stopped in log_p
    check_log_p = -(((check_x - check_mu) / check_sigma) ** 2) / 2 - tf.math.log(check_sigma)
    surrogate = tf.reduce_mean(tf.stop_gradient(check_x**2) * check_log_p)
of_mu, of_sigma = tape.gradient(surrogate, [check_mu, check_sigma])
np.testing.assert_allclose(of_mu, 0, atol=1e-5)
np.testing.assert_allclose(of_sigma, -1.25, atol=0.05)  # -(mu² + sigma²) / sigma

# %% [markdown]
# ### Exercise: The surrogate (8 min)
#
# `reward` and `log_p` have the shape (n,), one number for each draw, and both depend on a parameter that a tape watches. Return a scalar whose gradient is the mean of the estimates: both terms, for each draw.


# %%
def surrogate_of(reward, log_p):
    return ...  # a scalar


exercises.surrogate.check(surrogate_of)

# %% [markdown]
# ## 3. A policy, and a baseline
#
# Section 2 needed `share`, the formula by which visitors decide. A real theatre does not have it. It does know the probabilities of its *own* decisions, if it lets chance make them. So draw a price for each visitor from seven, with the probabilities $\operatorname{softmax}(\theta)$. That is a **policy**, and its score function needs no knowledge of visitors: what they pay is a number from outside.
#
# How good is one estimate? The cell makes 20 000 at $\theta = 0$, each from a single visitor with a copy of $\theta$ as a row of its own, so one backward pass returns all estimates separately.

# %% tags=["nbval-ignore-output"]
prices = tf.constant([4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0])


def visit(choice):
    """What visitors pay at the prices that were drawn for them. The theatre sees this, and not the formula."""
    price = tf.gather(prices, choice)
    return price * tf.cast(tf.random.uniform(price.shape) < share(price), tf.float32)


def draw(logits, visitors):
    """An index for each visitor of each row: the interval of the added-up probabilities that a uniform number hits."""
    bounds = tf.cumsum(tf.nn.softmax(logits), axis=1)[:, :-1]
    return tf.searchsorted(bounds, tf.random.uniform([logits.shape[0], visitors]), side="right")


rows = tf.zeros((20_000, 7))
with tf.GradientTape(persistent=True) as tape:
    tape.watch(rows)
    choice = draw(rows, 1)[:, 0]
    score = tf.gather(tf.nn.log_softmax(rows), choice, batch_dims=1)
paid = visit(choice)
estimates = tape.gradient(score, rows, output_gradients=paid)

p = tf.nn.softmax(rows[0])
means = prices * share(prices)
exact = p * (means - tf.reduce_sum(p * means))  # the derivative of the sum of p * means

print("exact:            ", np.round(exact, 2))
print("mean of estimates:", np.round(tf.reduce_mean(estimates, axis=0), 2))
print("one estimate:     ", np.round(estimates[np.argmax(paid > 0)], 2))

# %% [markdown]
# The mean is right, and a single estimate says little: it pushes one price up and the six others down, in proportion to what the visitor paid.
#
# How far the estimates scatter is one number, the **standard deviation**: the root of their mean squared distance from the exact gradient.
#
# **Predict.** Every visitor now also leaves 20 for a drink, whatever the ticket costs. What happens to the estimates?

# %%
exercises.drink.guess(...)  # "another mean", "same mean, same scatter" or "same mean, more scatter"


# %%
def scatter(estimates):
    return float(tf.sqrt(tf.reduce_mean(tf.reduce_sum((estimates - exact) ** 2, axis=1))))


with_drink = tape.gradient(score, rows, output_gradients=paid + 20.0)
less_mean = tape.gradient(score, rows, output_gradients=paid - tf.reduce_mean(paid))

# %% tags=["nbval-ignore-output"]
print("tickets and drinks, mean of estimates:", np.round(tf.reduce_mean(with_drink, axis=0), 2))
print(f"standard deviation: tickets {scatter(estimates):.1f}, tickets and drinks {scatter(with_drink):.1f},", end=" ")
print(f"tickets less their mean {scatter(less_mean):.1f}")

# %% alt="Three histograms, one below the other. Estimates of the derivative for the price of 16: with drinks they reach from minus 7 to plus 31; without drinks from minus 4 to plus 14; less the mean, from minus 7 to plus 8. All three have the same dashed line, the exact value near 0.6." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: one derivative, three scatters
_, axes = plt.subplots(3, 1, figsize=(7, 4.6), sharex=True, layout="constrained")
for ax, (name, found) in zip(
    axes,
    {"tickets and drinks": with_drink, "tickets": estimates, "tickets less their mean": less_mean}.items(),
    strict=True,
):
    ax.hist(found[:, 3], bins=np.arange(-8, 33), color=plots.BLUE)
    ax.axvline(exact[3], color=plots.RED, linestyle="--", label="exact")
    ax.set(title=name, ylabel="how often")
axes[0].legend()
axes[-1].set_xlabel("estimate of the derivative for the price of 16")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.drink.reveal("same mean, more scatter" if scatter(with_drink) > 2 * scatter(estimates) else "another mean")
assert 2.4 < scatter(with_drink) / scatter(estimates) < 3.0
assert 0.6 < scatter(less_mean) / scatter(estimates) < 0.85
for found in (estimates, with_drink, less_mean):
    error_of_mean = tf.math.reduce_std(found, axis=0) / 20_000**0.5
    assert np.all(np.abs(tf.reduce_mean(found, axis=0) - exact) < 5 * error_of_mean + 0.001)
np.testing.assert_allclose(tf.reduce_sum(exact), 0, atol=1e-5)

# %% [markdown]
# The same mean, and over twice the scatter. The score function has the mean zero:
#
# $$\sum_x p\, \nabla \log p = \sum_x \nabla p = \nabla \sum_x p = \nabla 1 = 0.$$
#
# So a constant times it adds nothing to the mean, and here noise to the estimates. Turn that round, and *subtract* a constant $b$, the **baseline**: $(f(x) - b)\, \nabla \log p$. Here the mean reward takes away some 30 % of the scatter.
#
# A baseline that does not depend on the draw from which it is subtracted keeps the mean. In a batch of independent draws that is the mean of the *other* rewards, **leave one out** (Kool, van Hoof and Welling, 2019): $b_i = \frac{1}{n-1}\sum_{j \ne i} f(x_j)$.
#
# ### Exercise: The mean of all (6 min)
#
# Someone subtracts the mean of *all* rewards of the batch instead, the own one included. The draws are independent. Then the mean of the estimates is the exact gradient times a factor. Which factor, for batches of 1, 2 and 5?

# %%
factors = {1: ..., 2: ..., 5: ...}

exercises.all_of_them.check(factors)

# %% [markdown]
# ### Exercise: One day's step (9 min)
#
# A policy has `logits`, shape (k,). One day brought `choice`, shape (n,), the index drawn for each visitor, and `reward`, shape (n,). Return the mean of the estimates with the leave-one-out baseline, shape (k,).


# %%
def direction(logits, choice, reward):
    return ...  # shape (k,)


exercises.one_day.check(direction)

# %% [markdown]
# ## 4. Two hundred theatres learn
#
# What does the scatter of section 3 cost a theatre, and what would counting bring? Two hundred theatres learn side by side: 200 days with 20 visitors each, softmax policies from $\theta = 0$, one gradient step each day. Three kinds: without a baseline; without one, and with drinks; with the leave-one-out baseline. Each kind takes the best learning rate of seven, tried on two hundred *other* theatres.


# %%
@tf.function
def campaign(rates, drink, part):
    """A row of logits for each rate; the baseline is `part` of the others' mean, 0 or 1.

    Returns the expected takings from tickets on each day, shape (days, rows), and the last logits.
    """
    theta = tf.zeros((rates.shape[0], 7))
    history = tf.TensorArray(tf.float32, days)
    for day in tf.range(days):
        tf.autograph.experimental.set_loop_options(parallel_iterations=1)  # or a later day may draw first
        with tf.GradientTape() as tape:
            tape.watch(theta)
            log_p = tf.nn.log_softmax(theta)
            choice = draw(theta, 20)
            reward = visit(choice) + drink
            others = (tf.reduce_sum(reward, axis=1, keepdims=True) - reward) / 19.0
            surrogate = tf.reduce_mean((reward - part * others) * tf.gather(log_p, choice, batch_dims=1), axis=1)
        history = history.write(day, tf.reduce_sum(tf.exp(log_p) * means, axis=1))
        theta += rates[:, tf.newaxis] * tape.gradient(surrogate, theta)
    return history.stack(), theta


candidates = np.float32([0.02, 0.05, 0.1, 0.2, 0.5, 1, 2])
kinds = {"no baseline": (0.0, 0.0), "no baseline, drinks": (20.0, 0.0), "leave one out": (0.0, 1.0)}
rates, runs, last = {}, {}, {}
for kind, numbers in kinds.items():
    drink, part = tf.constant(numbers)
    tried, _ = campaign(tf.constant(np.repeat(candidates, shops)), drink, part)
    rates[kind] = candidates[np.argmax(tf.reduce_mean(tf.reshape(tried, (days, -1, shops)), axis=(0, 2)))]
    history, theta = campaign(tf.fill([shops], rates[kind]), drink, part)
    runs[kind], last[kind] = history.numpy(), tf.nn.softmax(theta).numpy()


# %% [markdown]
# Seven prices can also be *counted*. **UCB1** (Auer and others, 2002) keeps the mean of what each price has brought and serves each visitor at the price for which that mean, plus $c \sqrt{\log t / n}$ after $n$ of $t$ visitors, is the largest. Its $c$ is tuned on other theatres, too. **Thompson sampling** (1933) has nothing to tune here. For each price it counts who bought and who did not, draws a share of buyers that fits the counts (a Beta distribution), and takes the best price under this draw.


# %% tags=["nbval-ignore-output"]
def upper_bounds(c, generator):
    """Expected takings for each visitor, averaged over each campaign, shape (shops,)."""
    cost, chance = prices.numpy(), share(prices).numpy()
    row = np.arange(shops)
    seen, total, taken = np.zeros((shops, 7)), np.zeros((shops, 7)), np.zeros(shops)
    for t in range(20 * days):
        bounds = total / np.maximum(seen, 1) + c * np.sqrt(np.log(t + 1) / np.maximum(seen, 1))
        choice = np.argmax(bounds, axis=1) if t >= 7 else np.full(shops, t)
        seen[row, choice] += 1
        total[row, choice] += cost[choice] * (generator.uniform(size=shops) < chance[choice])
        taken += means.numpy()[choice]
    return taken / (20 * days)


def thompson(generator):
    """Expected takings for each visitor, averaged over each campaign, shape (shops,)."""
    cost, chance = prices.numpy(), share(prices).numpy()
    row = np.arange(shops)
    bought, not_bought, taken = np.ones((shops, 7)), np.ones((shops, 7)), np.zeros(shops)
    for _ in range(days):
        drawn = generator.beta(bought, not_bought, size=(20, shops, 7))  # for each visitor of the day
        choice = np.argmax(cost * drawn, axis=2)
        buys = generator.uniform(size=choice.shape) < chance[choice]
        np.add.at(bought, (row, choice), buys)
        np.add.at(not_bought, (row, choice), ~buys)
        taken += np.sum(means.numpy()[choice], axis=0)
    return taken / (20 * days)


width = max((1.5, 3, 6, 9, 14), key=lambda c: upper_bounds(c, np.random.default_rng(seed + 100)).mean())
counters = {"UCB1": upper_bounds(width, np.random.default_rng(seed)), "Thompson": thompson(np.random.default_rng(seed))}

print(f"expected takings for each visitor, over the whole campaign; the best price brings {max(means.numpy()):.2f}")
for kind, history in runs.items():
    of_shop = history.mean(axis=0)
    missed = np.count_nonzero(np.argmax(last[kind], axis=1) != 3)
    print(f"{kind:20} mean {of_shop.mean():5.2f}  worst {of_shop.min():5.2f}  another price in the end: {missed}")
for name, of_shop in counters.items():
    print(f"{name:20} mean {of_shop.mean():5.2f}  worst {of_shop.min():5.2f}")

# %% alt="Line plot and strip plot. Left, mean takings for each visitor against the day: the line with leave-one-out rises fastest, the one without a baseline more slowly or to a lower end, the one with drinks lowest. All stay below the dashed line of the best price. Right, the average of each theatre's campaign as a dot, in five columns. With drinks they scatter most and reach far down; those of UCB1 and of Thompson sampling lie closest together, with few below." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two hundred theatres
_, (left, right) = plt.subplots(1, 2, figsize=(11, 3.7), layout="constrained", width_ratios=[1, 1.3])
colours = (plots.ORANGE, plots.RED, plots.BLUE, plots.GREEN, "black")
columns = {kind: history.mean(axis=0) for kind, history in runs.items()} | counters
for column, ((kind, averages), colour) in enumerate(zip(columns.items(), colours, strict=True)):
    if kind in runs:
        left.plot(
            runs[kind].mean(axis=1), ("--", ":", "-")[column], color=colour, label=f"{kind}, rate {rates[kind]:g}"
        )
    right.plot(column + np.linspace(-0.25, 0.25, shops), averages, ".", color=colour)
for ax in (left, right):
    ax.axhline(max(means.numpy()), color=plots.GREY, linestyle="--")
left.set(title="Mean of two hundred theatres", xlabel="day", ylabel="takings for each visitor", ylim=(7.5, 12))
left.legend(fontsize="small")
right.set(title="Each theatre, over the campaign", xlabel="kind", ylabel="takings for each visitor")
right.set_xticks(range(5), columns, fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
over_all = {kind: history.mean() for kind, history in runs.items()}
assert over_all["leave one out"] > over_all["no baseline"]
assert over_all["no baseline"] > over_all["no baseline, drinks"] + 0.05
assert min(of_shop.mean() for of_shop in counters.values()) > over_all["leave one out"]
of_last = {kind: np.mean(np.argmax(chances, axis=1) == 3) for kind, chances in last.items()}
assert of_last["no baseline, drinks"] < 0.65
day_40 = {kind: history[days // 5].mean() for kind, history in runs.items()}
assert day_40["leave one out"] > day_40["no baseline"] + 0.1  # sooner
if days == shops == 200:
    assert width == 6
    assert upper_bounds(3, np.random.default_rng(seed)).mean() < over_all["leave one out"]
assert np.argmax(means) == 3  # the price of 16
uneven = tf.constant([[0.5, 0.0, -0.5], [-3.0, 0.0, 3.0]])
often = tf.reduce_mean(tf.one_hot(draw(uneven, 100_000), 3), axis=1)
np.testing.assert_allclose(often, tf.nn.softmax(uneven), atol=0.01)
rewards = paid[:20].numpy()
by_others = [rewards[i] - np.delete(rewards, i).mean() for i in range(20)]
np.testing.assert_allclose(
    by_others, [rewards[i] + 20 - np.delete(rewards + 20, i).mean() for i in range(20)], atol=1e-4
)

# %% [markdown]
# The baseline brings speed: its line rises first. With drinks half of the theatres miss the best price in this run. With leave-one-out the drinks would change nothing: they drop out of every difference.
#
# **Counting beats these policies here, by a little, once UCB1 is tuned.** With half of its best $c$ it brings less than the policy with the baseline (the check). So what is the gradient for? Counting needs visits to each of the seven prices. Besides the rewards, the policy's step needs `log_p` alone, and a network can compute that: $\theta$ is then its weights.
#
# ### Exercise: The best baseline (8 min)
#
# *This one needs an idea that the text does not spell out.*
#
# A coin falls heads with the probability $p = 0.75$, and $p = \operatorname{sigmoid}(\theta)$ with $\theta = \ln 3$. Heads pays 5, tails pays 3. The score function is $1 - p$ for heads and $-p$ for tails. What is the variance of one estimate without a baseline, and with the mean reward as baseline? Which baseline makes the variance the least?

# %%
answer = {"variance without": ..., "variance with the mean": ..., "best baseline": ...}

exercises.best_baseline.check(answer)

# %% [markdown]
# ## 5. Draw so that the tape sees it
#
# So far the tape saw nothing of the draw, and the score function brought back the second term. In section 1 the mean of $x = \mu + {}$ noise was right without it: the noise does not depend on $\mu$, and the first term is all there is. To write $x$ as a function of the parameter and of noise that has none is called **reparameterisation** (Kingma and Welling; Rezende, Mohamed and Wierstra, both 2014): $x = \mu + \sigma \varepsilon$.
# The price is a derivative of $f$.
#
# Which of the two scatters less? Try both on a price that scatters around a centre $\mu$, with $\sigma = 2$. Let the takings be a smooth hill with ripples:
#
# $$f(x) = x\,(1 - x/40) + \cos(2\pi x / P).$$
#
# The score function of this Gaussian is $(x - \mu)/\sigma^2 = \varepsilon / \sigma$. The mean of $f$ is known, so each error can be measured: the hill gives $\mu - (\mu^2 + \sigma^2)/40$, and the cosine $e^{-(2\pi\sigma/P)^2/2} \cos(2\pi\mu/P)$.
#
# Every way may spend 60 evaluations of $f$ on one estimate, and makes 4000 such estimates, at $\mu = 17$:
#
# - **the score function**, with 60 draws: alone, with the leave-one-out baseline, or *mirrored*, where each $\varepsilon$ serves again as $-\varepsilon$;
# - **reparameterisation**, alone or mirrored, with 20 draws: a gradient of $f$ counts as three evaluations, one for the value and two for the backward pass;
# - **central differences**, with 30 draws, each shifted to both sides;
# - **a grid**, which needs no chance: 60 equally spaced $\varepsilon$ from $-6$ to 6, weighted with their density.
#
# Last, the cell repeats two of the ways where $x$ has $d$ entries, and $f$ is the sum of the hill over them, with the shortest ripples.


# %%
def rippled(x, period):
    return x * (1 - x / 40) + tf.cos(2 * np.pi * x / period)


def reparameterised(centre, noise, period):
    return tf.reduce_mean(rippled(centre + 2 * noise, period), axis=1)


def by_score(centre, noise, period, baseline=False):
    x = tf.stop_gradient(centre + 2 * noise)  # where it was drawn; from here on a given number
    log_p = -(((x - centre) / 2) ** 2) / 2  # up to a constant
    reward = rippled(x, period)
    n = noise.shape[1]
    others = (tf.reduce_sum(reward, axis=1, keepdims=True) - reward) / (n - 1) if baseline else 0.0
    return tf.reduce_mean((reward - others) * log_p, axis=1)


def by_score_and_baseline(centre, noise, period):
    return by_score(centre, noise, period, baseline=True)


def differences(noise, period, h):
    """Central differences with step h, both sides with the same noise."""
    x = 17.0 + 2 * noise
    return tf.reduce_mean(rippled(x + h, period) - rippled(x - h, period), axis=1).numpy() / (2 * h)


def by_grid(period):
    """The mean of f times the score function, as a weighted sum over 60 points."""
    noise = np.linspace(-6, 6, 60)
    weights = np.exp(-(noise**2) / 2)
    return np.sum(weights * rippled(17 + 2 * noise, period) * noise / 2) / np.sum(weights)


def normal(n):
    return tf.random.normal([4000, n], dtype=tf.float64)


def mirrored(half):
    """Antithetic pairs: each draw, and the same on the other side."""
    return tf.concat([half, -half], axis=1)


def exact_slope(period):
    w = 2 * np.pi / period
    return 1 - 17 / 20 - w * np.sin(17 * w) * np.exp(-((2 * w) ** 2) / 2)


ways = {  # for 60 evaluations each
    "score function": (by_score, lambda: normal(60)),
    "score, baseline": (by_score_and_baseline, lambda: normal(60)),
    "score, mirrored": (by_score, lambda: mirrored(normal(30))),
    "reparameterised": (reparameterised, lambda: normal(20)),
    "reparam., mirrored": (reparameterised, lambda: mirrored(normal(10))),
}

# %% [markdown]
# **Predict.** With a long ripple, $P = 40$, reparameterisation has about two thirds of the error of the score function with a baseline. What is that ratio for a short one, $P = 1.25$?

# %%
exercises.ripples.guess(...)  # "a tenth", "two thirds" or "more than ten"

# %%
periods = (40, 20, 10, 5, 2.5, 1.25)
errors = {name: [] for name in (*ways, "differences")}
for period in periods:
    for name, (surrogate_for, make_noise) in ways.items():
        centre = tf.fill([4000, 1], tf.constant(17.0, tf.float64))
        with tf.GradientTape() as tape:
            tape.watch(centre)
            value = surrogate_for(centre, make_noise(), period)
        found = tape.gradient(value, centre).numpy()
        errors[name].append(np.sqrt(np.mean((found - exact_slope(period)) ** 2)))
    tried = [differences(normal(30), period, h) - exact_slope(period) for h in (0.1, 0.3, 1, 2, 4)]
    errors["differences"].append(min(np.sqrt(np.mean(found**2)) for found in tried))
grid_errors = [abs(by_grid(period) - exact_slope(period)) for period in periods]

dimensions = (1, 4, 16, 64, 256, 1024)


def error_in(d, score, period=1.25):
    """Error of an entry of the gradient, where f is the sum of rippled hills over d entries of x: 60 evaluations."""
    centre = tf.fill([max(100, 4000 // d), 1, d], 17.0)
    with tf.GradientTape() as tape:
        tape.watch(centre)
        x = centre + 2 * tf.random.normal([centre.shape[0], 60 if score else 20, d])
        if score:
            x = tf.stop_gradient(x)
            log_p = -tf.reduce_sum(((x - centre) / 2) ** 2, axis=2) / 2
        value = tf.reduce_sum(rippled(x, period), axis=2)
        if score:
            value = (value - (tf.reduce_sum(value, axis=1, keepdims=True) - value) / 59.0) * log_p
        value = tf.reduce_mean(value, axis=1)
    return float(tf.sqrt(tf.reduce_mean((tape.gradient(value, centre) - exact_slope(period)) ** 2)))


by_dimension = {score: [error_in(d, score) for d in dimensions] for score in (True, False)}

# %% tags=["nbval-ignore-output"]
print("root mean square error; period", *(f"{period:7}" for period in periods))
for name, found in errors.items():
    print(f"{name:30}", *(f"{error:7.3f}" for error in found))
print(f"{'grid of 60':30}", *(f"{error:7.0e}" for error in grid_errors))
print("period 1.25; dimensions       ", *(f"{d:7}" for d in dimensions))
for score, found in by_dimension.items():
    print(f"{'score, baseline' if score else 'reparameterised':30}", *(f"{error:7.3f}" for error in found))

# %% alt="Two line plots. Left, error of one estimate against the ripple's period, both axes logarithmic, the period falling to the right. The score function without baseline is a flat line far above the others on the left. With a baseline or with mirrored pairs it is lower by about a factor of ten, and flat from a period of 20 on. The reparameterised lines begin below these, the mirrored one lowest of all, and rise to the highest on the right. Central differences with the best step stay low everywhere. Right, the error against the number of dimensions at the shortest period: reparameterised it is a level line; with the score function and a baseline it rises from far below and crosses that line at 256 dimensions." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: who is best where
_, (ax, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained", sharey=True)
looks = (
    (plots.GREY, "x-"),
    (plots.BLUE, "o-"),
    (plots.BLUE, "o--"),
    (plots.ORANGE, "s-"),
    (plots.ORANGE, "s--"),
    (plots.GREEN, "^:"),
)
for (name, found), (colour, marks) in zip(errors.items(), looks, strict=True):
    ax.loglog(periods, found, marks, color=colour, label=name)
ax.invert_xaxis()
ax.set_xticks(periods, [f"{period:g}" for period in periods], minor=False)
ax.minorticks_off()
ax.set(
    title="One dimension, equal cost",
    xlabel="period of the ripples",
    ylabel="root mean square error",
)
ax.legend(fontsize="small")
for (score, found), colour, marks in zip(by_dimension.items(), (plots.BLUE, plots.ORANGE), ("o-", "s-"), strict=True):
    right.loglog(dimensions, found, marks, color=colour, label="score, baseline" if score else "reparameterised")
right.set_xticks(dimensions, dimensions)
right.minorticks_off()
right.set(title="Period 1.25, equal cost", xlabel="dimensions")
right.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
plain, based, paired, through, through_paired, stepped = (np.array(found) for found in errors.values())
ratio = through / based
exercises.ripples.reveal("more than ten" if ratio[-1] > 10 else "two thirds")
assert 0.5 < ratio[0] < 0.85
assert ratio[-1] > 10
assert np.all(plain[:-1] > 1.1 * np.max([based, paired, through, through_paired, stepped], axis=0)[:-1])
assert np.all(plain > 5 * based)
assert np.all(stepped[3:] < np.min([based, paired, through, through_paired], axis=0)[3:])
assert max(grid_errors) < 1e-8
of_score, of_slope = (np.array(found) for found in by_dimension.values())
np.testing.assert_allclose(of_score[1:] / of_score[1], np.sqrt(np.array(dimensions[1:]) / 4), rtol=0.15)
np.testing.assert_allclose(of_slope, of_slope.mean(), rtol=0.1)
assert of_slope[3] > 1.5 * of_score[3]
assert of_score[-1] > 1.5 * of_slope[-1]

# %% [markdown]
# More than ten: about 14. The derivative of the ripples is $-\tfrac{2\pi}{P} \sin(2\pi x/P)$: it grows without bound as $P$ falls, while the ripples' *value* never leaves $\pm 1$. Their mean over the noise, and so the exact gradient, hardly notices the short ones. Reparameterisation averages slopes, the score function values. Which of the two scatters less depends on $f$. Here, in one dimension:
#
# - with the longest ripples reparameterisation is better than these three scores, at this $\mu$;
# - with the short ones values are better;
# - without a baseline or pairs, the score function is the worst of them except for the shortest ripple;
# - the steps of the differences are the best of five by the true error, which favours them;
# - the grid's error is below $10^{-8}$, too low for the figure: over *one* number a mean is an integral.
#
# **A shared reward turns the ranking round.** Now the last two rows, and the right panel: $d$ dimensions. An entry's score multiplies the whole sum, as if no more were known: its error grows like $\sqrt d$. A slope knows what its own entry did, and its error stays. At 256 dimensions they are level; at 1024 the derivative is better.
#
# The limit of rough is a jump. The sign of section 1 was reparameterised, too: the jump, where all the change is, has no derivative. **Reparameterisation needs a function without jumps.**
#
# ## 6. Relax a choice, and pay with a bias
#
# A choice has such a jump. It can be drawn from $\operatorname{softmax}(\theta)$ as noise and an argmax: add to each logit a number $g$ of the Gumbel distribution, $-\log(-\log u)$ with a uniform $u$, and take the largest. As in section 5, the noise does not depend on the parameter; but the argmax jumps. Replace it by a softmax:
#
# $$y = \operatorname{softmax}\big((\theta + g)/\tau\big).$$
#
# This is **Gumbel-softmax** (Jang and others 2017; Maddison and others 2017). The tape sees through it. For a small temperature $\tau$ it is nearly a choice, for a large one a mixture of all. What the tape returns averages to the gradient of *another* mean, that of $f(y)$: a **bias** against the one that was meant.
#
# If $f$ makes no sense for mixtures, but has a slope at each choice, use the choice on the way forward and the softmax on the way back: the **straight-through** estimator of [06](06_stop_gradient.ipynb) (Bengio and others, 2013). Here it runs twice: with $y$, and with the probabilities $p$, which have no noise in them.
#
# The problem: eight dials, each set to 1, 2 or 5 by chance, and the squared miss of their sum from 16. Its mean is known: $(m - 16)^2 + v$, with the mean $m$ and the variance $v$ of the sum.

# %%
dial = tf.constant([1.0, 2.0, 5.0], tf.float64)
theta = tf.constant(0.5 * np.random.default_rng(seed).normal(size=(8, 3)))


def miss(z):
    """Of settings as one-hot rows, or of mixtures of settings: shape (..., 8, 3)."""
    return (tf.reduce_sum(z * dial, axis=(-2, -1)) - 16.0) ** 2


with tf.GradientTape() as tape:
    tape.watch(theta)
    p = tf.nn.softmax(theta)
    mean = tf.reduce_sum(p * dial, axis=1)
    variance = tf.reduce_sum(p * dial**2, axis=1) - mean**2
    mean_miss = (tf.reduce_sum(mean) - 16.0) ** 2 + tf.reduce_sum(variance)
exact = tape.gradient(mean_miss, theta)

copies = tf.repeat(theta[tf.newaxis], 120_000, axis=0)
gumbel = -tf.math.log(-tf.math.log(tf.random.uniform(copies.shape, dtype=tf.float64, minval=1e-12)))
hard = tf.one_hot(tf.argmax(copies + gumbel, axis=-1), 3, dtype=tf.float64)


def leave_one_out(copies, f):
    """The score function, in batches of 12 draws."""
    reward = tf.reshape(f(hard), (-1, 12))
    others = (tf.reduce_sum(reward, axis=1, keepdims=True) - reward) / 11.0
    log_p = tf.reduce_sum(hard * tf.nn.log_softmax(copies), axis=(1, 2))
    return tf.reshape(reward - others, (-1,)) * log_p


def softened(copies, temperature):
    return tf.nn.softmax((copies + gumbel) / temperature)


def straight_through(soft, f):
    return f(hard + soft - tf.stop_gradient(soft))


temperatures = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
entrants = {"score function": [leave_one_out]}
entrants["Gumbel-softmax"] = [lambda copies, f, t=t: f(softened(copies, t)) for t in temperatures]
entrants["straight through y"] = [lambda copies, f, t=t: straight_through(softened(copies, t), f) for t in temperatures]
entrants["straight through p"] = [lambda copies, f: straight_through(tf.nn.softmax(copies), f)]
entrants["mean put in"] = [lambda copies, f: f(tf.nn.softmax(copies))]  # nothing is drawn

# %% [markdown]
# The last of the five entrants draws nothing: it puts the mean in, $p$ for the choice.
#
# Again one unit is an evaluation, and a gradient of `miss` counts as three. From 120 000 gradients come the bias and the variance (the score function has no bias: section 2), and with them the error of an average:
#
# $$\text{error}^2 = \text{bias}^2 + \frac{\text{variance}}{\text{number of draws}}.$$
#
# For each cost, the temperature is the best of six by the true error, which favours it.
#
# **Predict.** An average for 12 000 units has a thousand times as many draws as one for 12. By which factor is its error smaller, for the straight-through estimator with $p$?

# %%
exercises.thousandfold.guess(...)  # "about 30", "about 4" or "1000"

# %%
budgets = np.array([12, 40, 120, 400, 1200, 4000, 12_000])


def bias_and_variance(found, batch, exact):
    """Squared bias and the variance of one draw, each added up over all entries of the gradient."""
    batches = tf.reduce_mean(tf.reshape(found, (-1, batch, 8, 3)), axis=1)
    variance = batch * tf.reduce_sum(tf.math.reduce_variance(batches, axis=0))
    seen = tf.reduce_sum((tf.reduce_mean(found, axis=0) - exact) ** 2)
    return max(0.0, float(seen - variance / len(found))), float(variance)  # without the luck of 120 000 draws


def race(f, exact):
    """Error for each cost, bias, standard deviation of a draw, and the best temperatures for the first and last cost."""
    table, biases, spreads, chosen = {}, {}, {}, {}
    for name, versions in entrants.items():
        cost, batch = (1, 12) if name == "score function" else (3, 1)
        curves = []
        for version in versions:
            with tf.GradientTape() as tape:
                tape.watch(copies)
                value = version(copies, f)
            measured, variance = bias_and_variance(tape.gradient(value, copies), batch, exact)
            bias = 0.0 if name == "score function" else measured
            curves.append(np.sqrt(bias + variance * cost / budgets))
            biases.setdefault(name, []).append(np.sqrt(measured))
            spreads.setdefault(name, []).append(np.sqrt(variance))
        table[name] = np.min(curves, axis=0)
        chosen[name] = [temperatures[np.argmin(curves, axis=0)[end]] for end in (0, -1)]
    return table, biases, spreads, chosen


table, biases, spreads, chosen = race(miss, exact)

# %% tags=["nbval-ignore-output"]
print(f"length of the exact gradient: {tf.norm(exact):.1f}")
print("error for a cost of ", *(f"{n:8}" for n in budgets[::3]), " (the temperature: the best of six for each cost)")
for name, found in table.items():
    print(f"{name:20}", *(f"{error:8.2f}" for error in found[::3]))
print("bias of Gumbel-softmax at temperatures", temperatures, *(f"{bias:.1f}" for bias in biases["Gumbel-softmax"]))
print("its best temperature for the smallest and the largest cost:", chosen["Gumbel-softmax"])

# %% alt="Line plot. Error against cost, both axes logarithmic. The score function's line is the highest on the left, falls straight, and is the lowest on the right. Three others begin lower by more than half, fall more slowly, and the straight-through line with p is flat at the right, on the level line of the mean put in, which is the lowest on the left and the highest on the right." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the bias stays
_, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
looks = ((plots.BLUE, "o-"), (plots.ORANGE, "s-"), (plots.GREEN, "^-"), (plots.RED, "v--"), (plots.GREY, "-"))
for (name, found), (colour, marks) in zip(table.items(), looks, strict=True):
    ax.loglog(budgets, found, marks, color=colour, label=name)
ax.set(
    title="Cheap and biased first, unbiased in the end",
    xlabel="cost of the average (evaluations)",
    ylabel="error of the gradient",
)
ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
ax.minorticks_off()
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
unbiased, gs, straight_y, straight_p, mean_put_in = (np.array(found) for found in table.values())
fall = straight_p[0] / straight_p[-1]
exercises.thousandfold.reveal("about 4" if fall < 8 else "about 30")
assert fall < 8
assert biases["score function"][0] < 2.5 * spreads["score function"][0] / 120_000**0.5  # the luck of the draws
assert biases["straight through p"][0] > 10 * spreads["straight through p"][0] / 120_000**0.5
for biased in (gs, straight_y, straight_p):
    assert biased[0] < 0.5 * unbiased[0]
    assert biased[-1] > 1.1 * unbiased[-1]
for name in ("Gumbel-softmax", "straight through y"):
    assert np.all(np.diff(biases[name][1:]) > 0)  # the two lowest temperatures are within the luck of the draws
    assert np.all(np.diff(spreads[name]) < 0)
luck = spreads["straight through p"][0] / 120_000**0.5
np.testing.assert_allclose(biases["straight through p"][0], biases["mean put in"][0], atol=3 * luck)  # its mean
np.testing.assert_allclose(mean_put_in, mean_put_in[0], rtol=1e-9)  # for every cost
check_rest = (tf.reduce_sum(hard * dial, axis=(1, 2)) - tf.reduce_sum(mean)) ** 2  # miss less its tangent at p: MuProp
check_joined = tf.math.reduce_variance(check_rest[:, tf.newaxis, tf.newaxis] * (hard - p), axis=0)
assert 1.4 < unbiased[-1] / np.sqrt(tf.reduce_sum(check_joined) / budgets[-1]) < 2.2
assert np.all(mean_put_in[:3] < np.min([unbiased, gs, straight_y, straight_p], axis=0)[:3])
assert mean_put_in[-1] > 1.5 * np.min([unbiased, gs, straight_y], axis=0)[-1]
assert chosen["Gumbel-softmax"][0] > 4 * chosen["Gumbel-softmax"][1]
of_sum = np.array([1.0])  # the sum's distribution, built dial by dial: index is the sum
for chances in p.numpy():
    of_sum = np.convolve(of_sum, [0, chances[0], chances[1], 0, 0, chances[2]])
np.testing.assert_allclose(of_sum @ (np.arange(41) - 16.0) ** 2, mean_miss, rtol=1e-12)

# %% [markdown]
# About 4, where noise alone would give $\sqrt{1000} \approx 32$, as it does for the score function. Averaging takes away variance, and not bias. Here a lower temperature has less bias and more variance, but for the two lowest, whose bias is within the luck of the draws.
#
# So *which is best?* has no answer without *for how many draws?* Read the table at its ends. For 12 units an answer of zero, whose error is the gradient's length, beats the score function here; the biased draws beat zero; and the mean put in beats these, at 3.2. For the largest cost the score function has the least error of the five.
#
# The 3.2 is also the bias of straight-through with $p$: `miss` is a square, so its slope is a straight line, and the slope at the mean is the mean of the slopes. (For section 1's ticket it has no bias: that price is linear in the choice.)
#
# One rival has no noise: $3^8 = 6561$ settings can be summed (section 8), for about half of the largest cost here.

# %% [markdown]
# ## 7. Going further: another objective, another order
#
# Section 6's race, with the same draws, for the fourth power of the miss and for a bump, $e^{-(\text{sum} - 16)^2 / 8}$, whose mean is to be climbed:

# %% tags=["nbval-ignore-output"]
settings = np.stack(np.meshgrid(*[np.arange(3)] * 8), axis=-1).reshape(-1, 8)
all_settings = tf.one_hot(settings, 3, dtype=tf.float64)


def exact_gradient(f):
    """By a sum over all settings."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        log_p = tf.reduce_sum(all_settings * tf.nn.log_softmax(theta), axis=(1, 2))
        mean = tf.reduce_sum(tf.exp(log_p) * f(all_settings))
    return tape.gradient(mean, theta)


objectives = {"square": miss, "fourth power": lambda z: miss(z) ** 2, "bump": lambda z: tf.exp(-miss(z) / 8)}
shares = {}  # errors as parts of the exact gradient's length
for objective, f in objectives.items():
    wanted = exact_gradient(f)
    shares[objective] = {name: found / np.linalg.norm(wanted) for name, found in race(f, wanted)[0].items()}
print("error as a part of the gradient's length, for 12 and 12 000 evaluations")
print(f"{'':20}", *(f"{objective:>16}" for objective in objectives))
for name in entrants:
    print(f"{name:20}", *(f"{found[name][0]:8.2f} {found[name][-1]:7.2f}" for found in shares.values()))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(exact_gradient(miss), exact, rtol=0, atol=1e-9)
for found in shares.values():
    assert found["Gumbel-softmax"][0] < 0.5 * found["score function"][0]
    assert found["score function"][-1] < 1.3 * min(each[-1] for each in found.values())
assert shares["square"]["mean put in"][0] < 0.5 * shares["square"]["straight through p"][0]
assert shares["fourth power"]["mean put in"][0] > 0.85 * shares["fourth power"]["Gumbel-softmax"][0]
assert shares["bump"]["straight through p"][0] > 0.75 * shares["bump"]["score function"][0]
assert shares["square"]["straight through p"][0] < 0.5 * shares["square"]["score function"][0]

# %% [markdown]
# For 12 000 evaluations, in this run, the score function is first of the five, or level with the first, with all three objectives. For 12, zero, whose error is 1, beats it, and Gumbel-softmax beats zero. What is best there depends on $f$: the mean put in is first for the square and misses 0.74 of the gradient for the fourth power.
#
# The two ends can be joined without a bias. Take the tangent of $f$ at $p$ for a baseline, and add the mean put in, which is that tangent's own gradient: **MuProp** (Gu and others, 2016). For the square the score function's error becomes smaller by more than a quarter in the check of section 6.

# %% [markdown]
# <details><summary>Appendix: sections 4 to 6 over ten seeds</summary>
#
# The minimum, the median and the maximum with the seeds 0 to 9. Within each part the ways cost the same. In section 6 the seed also draws another $\theta$.
#
# | Way | How it is tuned | Result: minimum, median, maximum |
# |---|---|---|
# | **Section 4**: 4000 visitors a theatre | | *takings for each visitor; more is better* |
# | UCB1 | $c$, the best of five on 200 other theatres | 11.48, 11.49, 11.52 |
# | Thompson sampling | nothing to tune | 11.46, 11.47, 11.49 |
# | leave one out | rate, the best of seven on 200 other theatres | 11.36, 11.38, 11.42 |
# | no baseline | the same | 11.07, 11.13, 11.18 |
# | no baseline, drinks | the same | 10.55, 10.61, 10.67 |
# | **Section 5**: 60 evaluations, $P = 40$ and $P = 1.25$ | | *error of one estimate; less is better* |
# | score function | nothing to tune | 0.554, 0.561, 0.578; 0.608, 0.613, 0.624 |
# | score, baseline | nothing to tune | 0.019, 0.020, 0.021; 0.056, 0.057, 0.058 |
# | score, mirrored | nothing to tune | 0.022, 0.022, 0.023; 0.054, 0.054, 0.055 |
# | reparameterised | nothing to tune | 0.013, 0.013, 0.013; 0.770, 0.796, 0.813 |
# | reparam., mirrored | nothing to tune | 0.001, 0.001, 0.002; 0.637, 0.660, 0.673 |
# | differences | step, the best of five by the true error | 0.010, 0.011, 0.011; 0.035, 0.036, 0.036 |
# | grid of 60 | nothing to tune | below $10^{-8}$; below $10^{-8}$ |
# | **Section 6**: 12 and 12 000 evaluations | | *error of the average; less is better* |
# | score function | nothing to tune | 30.0, 41.6, 46.1; 0.95, 1.31, 1.46 |
# | Gumbel-softmax | temperature, the best of six by the true error | 8.5, 13.9, 16.6; 1.29, 1.67, 2.03 |
# | straight through $y$ | the same | 12.6, 16.2, 18.3; 1.33, 1.66, 1.94 |
# | straight through $p$ | nothing to tune | 10.6, 13.2, 14.1; 2.88, 3.34, 3.92 |
# | mean put in, `miss(p)` | nothing to tune | 2.72, 3.31, 3.91; the same |
#
# </details>

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_spread = {  # the table: minimum and maximum with seeds 0 to 9
    "UCB1": (11.48, 11.52),
    "Thompson": (11.46, 11.49),
    "leave one out": (11.36, 11.42),
    "no baseline": (11.07, 11.18),
    "no baseline, drinks": (10.55, 10.67),
    ("score function", 0): (0.554, 0.578),
    ("score function", -1): (0.608, 0.624),
    ("score, baseline", 0): (0.019, 0.021),
    ("score, baseline", -1): (0.056, 0.058),
    ("score, mirrored", 0): (0.022, 0.023),
    ("score, mirrored", -1): (0.054, 0.055),
    ("reparameterised", 0): (0.013, 0.013),
    ("reparameterised", -1): (0.770, 0.813),
    ("reparam., mirrored", 0): (0.001, 0.002),
    ("reparam., mirrored", -1): (0.637, 0.673),
    ("differences", 0): (0.010, 0.011),
    ("differences", -1): (0.035, 0.036),
    ("dials", "score function", 0): (30.0, 46.1),
    ("dials", "score function", -1): (0.95, 1.46),
    ("dials", "Gumbel-softmax", 0): (8.5, 16.6),
    ("dials", "Gumbel-softmax", -1): (1.29, 2.03),
    ("dials", "straight through y", 0): (12.6, 18.3),
    ("dials", "straight through y", -1): (1.33, 1.94),
    ("dials", "straight through p", 0): (10.6, 14.1),
    ("dials", "straight through p", -1): (2.88, 3.92),
    ("dials", "mean put in", 0): (2.72, 3.91),
    ("dials", "mean put in", -1): (2.72, 3.91),
}
check_seen = over_all | {name: of_shop.mean() for name, of_shop in counters.items()}
check_seen |= {(name, end): errors[name][end] for name in errors for end in (0, -1)}
check_seen |= {("dials", name, end): table[name][end] for name in table for end in (0, -1)}
assert check_seen.keys() == check_spread.keys()
if days == shops == 200:
    for check_name, (check_least, check_most) in check_spread.items():
        check_slack = 0.005 if isinstance(check_name, str) else 0.07  # takings, and errors: other draws scatter by less
        assert check_seen[check_name] > (1 - check_slack) * check_least - 0.0005, check_name
        assert check_seen[check_name] < (1 + check_slack) * check_most + 0.0005, check_name

# %% [markdown]
# ## 8. Check it independently
#
# The page's answers without its formulas and without a tape: the best price from a fine grid; the Gaussian mean as an integral, summed on a grid; the dials as a sum over all settings.

# %%
fine = np.linspace(10, 20, 100_001)
print("best price:", round(float(fine[np.argmax(fine / (1 + np.exp((fine - 20) / 4)))]), 2))


def mean_by_grid(centre, period):
    x = np.linspace(centre - 16, centre + 16, 20_001)
    density = np.exp(-(((x - centre) / 2) ** 2) / 2)
    return np.sum(density * (x * (1 - x / 40) + np.cos(2 * np.pi * x / period))) / np.sum(density)


def slope_by_grid(period, h=1e-4):
    return (mean_by_grid(17 + h, period) - mean_by_grid(17 - h, period)) / (2 * h)


for period in (20, 5):
    print(f"period {period:2}: closed form {exact_slope(period):.4f}, grid {slope_by_grid(period):.4f}")

misses = (np.array([1, 2, 5])[settings].sum(axis=1) - 16.0) ** 2


def mean_by_sum(logits):
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.sum(np.prod(p[np.arange(8), settings], axis=1) * misses)


nudges = 1e-5 * np.eye(24).reshape(24, 8, 3)
by_sum = [(mean_by_sum(theta.numpy() + nudge) - mean_by_sum(theta.numpy() - nudge)) / 2e-5 for nudge in nudges]
print(len(settings), "settings; the first derivative:", f"tape {exact[0, 0]:.3f}, sum {by_sum[0]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(fine[np.argmax(fine / (1 + np.exp((fine - 20) / 4)))], 15.71, atol=0.01)
np.testing.assert_allclose([slope_by_grid(P) for P in periods], [exact_slope(P) for P in periods], rtol=0, atol=1e-6)
np.testing.assert_allclose(by_sum, exact.numpy().ravel(), rtol=0, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - The derivative of an expectation has two terms: what you get changes, and how often you get it. A tape sees the first; drawing lost the second, as `None`, as a zero, or as a number of the wrong sign (section 1).
# - $f\, \nabla \log p$ has the second term as its mean, and needs no derivative of $f$; the surrogate $f + \operatorname{stop}(f) \log p$ gives both (sections 2 and 3).
# - The score function has the mean zero, so a baseline that does not depend on the draw changes the scatter and not the mean (sections 3 and 4).
# - $x = \mu + \sigma\varepsilon$ lets the tape see through the draw. In one dimension it was the better way for long ripples, the worse for short ones; with a whole sum as reward the score function's error grew, its own did not. Across a jump it misses the change (section 5).
# - For the dials Gumbel-softmax and straight-through traded variance for a bias that no averaging takes away (section 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a parameter enters directly *and* through a draw that the tape cannot follow | a gradient that looks healthy, and a term of it is missing | the surrogate; compare with a difference of long averages |
# | `reward * log_p` without `stop_gradient` | a third term, if the reward or its baseline depends on the parameter | stop both |
# | `log_p` of an `x` that the tape saw made, as $\mu + {}$ noise | for $\mu$ a score of zero; for $\sigma$ a wrong one: for the mean of $x^2$ negative, in place of $2\sigma$ | `tf.stop_gradient(x)` in the whole surrogate |
# | the own reward in the baseline | with independent draws, in the mean, estimates $1 - 1/n$ times as long as they should be; for $n = 1$ zero | leave one out |
# | what can be drawn depends on the parameter, as a uniform number between 0 and $\theta$ does | a wrong number: for the mean of $x^2$, $-\theta/3$ in place of $2\theta/3$ | reparameterise: $\theta u$ with a uniform $u$ between 0 and 1 |
#
# **Further reading**
#
# - R. J. Williams (1992), ["Simple statistical gradient-following algorithms for connectionist reinforcement learning"](https://doi.org/10.1007/BF00992696).
# - D. P. Kingma, M. Welling (2014), ["Auto-encoding variational Bayes"](https://arxiv.org/abs/1312.6114); D. J. Rezende, S. Mohamed, D. Wierstra (2014), ["Stochastic backpropagation and approximate inference in deep generative models"](https://arxiv.org/abs/1401.4082).
# - W. Kool, H. van Hoof, M. Welling (2019), ["Buy 4 REINFORCE samples, get a baseline for free!"](https://openreview.net/forum?id=r1lgTGL5DE): leave one out.
# - E. Jang, S. Gu, B. Poole (2017), ["Categorical reparameterization with Gumbel-softmax"](https://arxiv.org/abs/1611.01144); C. J. Maddison, A. Mnih, Y. W. Teh (2017), ["The Concrete distribution"](https://arxiv.org/abs/1611.00712).
# - Y. Bengio, N. Léonard, A. Courville (2013), ["Estimating or propagating gradients through stochastic neurons for conditional computation"](https://arxiv.org/abs/1308.3432).
# - P. Auer, N. Cesa-Bianchi, P. Fischer (2002), ["Finite-time analysis of the multiarmed bandit problem"](https://doi.org/10.1023/A:1013689704352); W. R. Thompson (1933), ["On the likelihood that one unknown probability exceeds another in view of the evidence of two samples"](https://doi.org/10.1093/biomet/25.3-4.285).
# - S. Mohamed, M. Rosca, M. Figurnov, A. Mnih (2020), ["Monte Carlo gradient estimation in machine learning"](https://arxiv.org/abs/1906.10652), a survey.
#
# **Read next:** [25 Control and the horizon of chaos](25_control_and_the_horizon_of_chaos.ipynb), where a gradient is right and useless;
# [27 A generative model from a trace](27_generative_model_from_a_trace.ipynb) has another mean whose gradient is estimated by chance.
