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
# # Control and the horizon of chaos
#
# A simulation is a long chain of small steps, and a tape differentiates all of them. The chain rule multiplies one Jacobian for each step.
# **What does a gradient through a simulation buy, and how far ahead does it mean anything?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/25_control_and_the_horizon_of_chaos.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb), [15 Batch Jacobians and per-example gradients](15_batch_jacobians.ipynb) · **Minutes:** 24 to read, 4 more to go further, 28 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
steps = 120  # of the cart and the pole, 25 ms each: between 110 and 120
simulations = 3  # for the search without gradients, as a multiple of what the gradient takes: between 2 and 4
chaos_steps = 4000  # of the double pendulum, 5 ms each: between 4000 and 4400

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import plots, runtime
from tapelab.exercises.sheets import control_and_the_horizon_of_chaos as exercises
from tapelab.interactive import horizon

import matplotlib.pyplot as plt
import numpy as np
import scipy.integrate  # comes with scikit-learn
import scipy.optimize
import tensorflow as tf
from threadpoolctl import threadpool_limits  # comes with scikit-learn

runtime.start(seed)


# %%
def double_pendulum(s):
    """The rates of change of (p, q, a, b): two rods' angles from hanging, and their speeds; rods of 1 m, masses of 1 kg."""
    p, q, a, b = tf.unstack(s, axis=-1)
    g, d = 9.81, p - q
    below = 3 - tf.cos(2 * d)
    da = -3 * g * tf.sin(p) - g * tf.sin(p - 2 * q) - 2 * tf.sin(d) * (b**2 + a**2 * tf.cos(d))
    db = 2 * tf.sin(d) * (2 * a**2 + 2 * g * tf.cos(p) + b**2 * tf.cos(d))
    return tf.stack([a, b, da / below, db / below], axis=-1)


def runge_kutta(rates, s, dt):
    """One step of the classical method."""
    k1 = rates(s)
    k2 = rates(s + dt / 2 * k1)
    k3 = rates(s + dt / 2 * k2)
    k4 = rates(s + dt * k3)
    return s + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def swing(s):
    return runge_kutta(double_pendulum, s, 0.005)


@tf.function(jit_compile=True)
def trajectory(s):
    """All states from s on, the first axis being time."""
    path = tf.TensorArray(s.dtype, chaos_steps + 1).write(0, s)  # a list that a compiled loop can fill
    for i in tf.range(chaos_steps):
        s = swing(s)
        path = path.write(i + 1, s)
    return path.stack()


rng = np.random.default_rng(seed)
released = np.array([*rng.uniform(2.2, 2.8, size=2), 0.0, 0.0])  # at rest, both rods raised
double = trajectory(tf.constant(released)).numpy()
print("stored states:", double.shape, double.dtype)

# %% tags=["nbval-ignore-output"]
single = trajectory(tf.constant(released, tf.float32)).numpy()
seconds = 0.005 * np.arange(chaos_steps + 1)
gap = np.linalg.norm(double - single, axis=1)
for t in (1, 5, 10, 15, 20):
    print(f"after {t:2} s, float32 and float64 differ by {gap[200 * t]:.0e}")

# %% [markdown]
# A rod hangs from a fixed point, a second rod hangs from the first, and each has a mass at its end: a **double pendulum**. Both rods are raised and let go. The same program runs twice from the same start,
# in float32 and in float64. The printed difference is the length of the difference of the states, angles (rad) and speeds (rad/s) together. At first only the last digits differ. Later the two have nothing in common, and no line is at fault. A derivative along one of the two runs says when this happens, and how long a gradient through the simulation is of use.
#
# **You will be able to**
#
# - differentiate a simulation with respect to 120 forces in one backward pass, and write it as a product of Jacobians (section 1),
# - find forces that swing a pole up, and hold the gradient against two searches without a tape (section 2),
# - multiply the Jacobians of single steps, and read from the product how a small difference grows (section 3),
# - forecast when two precisions part, and what more digits buy (section 4),
# - say when a gradient is correct and useless (section 5), and what of a long average can be differentiated (section 7, where you go further).

# %% [markdown]
# ## 1. A gradient through 120 steps
#
# First a simulation where all goes well. A motor pushes a cart on a rail, and a pole hangs from the cart. After 3 s the pole is to stand upright, at rest, with the cart back where it was. The state is $s = (x, q, v, w)$: the cart's place, the pole's angle
# from hanging, and their speeds. There are 120 steps of 25 ms, and in each one force: 120 parameters.
# The program takes a number $u_t$ for each step and makes it a force of $15 \tanh u_t$ newtons. The derivatives are with respect to the $u_t$; for short, the text calls these numbers the forces, and the code `controls`.
# The cost adds up the squared misses of the last state, and small prices for leaving a rail that reaches one metre to each side, and for force.


# %%
def cart_and_pole(s, force):
    """The rates of change of (x, q, v, w): a cart of 1 kg, at the end of a rod of 0.5 m a mass of 0.3 kg."""
    _, q, v, w = tf.unstack(s, axis=-1)
    sin, cos = tf.sin(q), tf.cos(q)
    below = 1.0 + 0.3 * sin**2
    dv = (force + 0.3 * sin * (0.5 * w**2 + 9.81 * cos)) / below
    dw = -(force * cos + 0.3 * 0.5 * w**2 * cos * sin + 1.3 * 9.81 * sin) / (0.5 * below)
    return tf.stack([v, w, dv, dw], axis=-1)


def push(s, u):
    force = 15.0 * tf.tanh(u)  # never above 15 N
    return runge_kutta(lambda s: cart_and_pole(s, force), s, 0.025)


def simulate(controls, nudge=0.0):
    """All states; the controls' first axis is time, a second one would be a batch. The start is zero, plus a nudge."""
    s = nudge + tf.zeros([*controls.shape[1:], 4], controls.dtype)
    path = tf.TensorArray(s.dtype, controls.shape[0])
    for t in tf.range(controls.shape[0]):
        s = push(s, controls[t])
        path = path.write(t, s)
    return path.stack()


def residuals(controls):
    """Their squares add up to the cost: shape (4 + 2 * steps,), or with the controls' second axis."""
    path = simulate(controls)
    x, q, v, w = tf.unstack(path[-1], axis=-1)
    miss = tf.stack([x, 10**0.5 * (q - np.pi), 0.1**0.5 * v, 0.5**0.5 * w])
    beyond = tf.nn.relu(tf.abs(path[..., 0]) - 1.0)  # the rail ends one metre from the middle
    mean = controls.shape[0] ** -0.5  # squared, one over the number of steps
    return tf.concat([miss, 0.05**0.5 * mean * beyond, 0.01 * mean * tf.tanh(controls)], axis=0)


def cost(controls):
    return tf.reduce_sum(residuals(controls) ** 2, axis=0)


@tf.function(jit_compile=True)
def cost_and_gradient(controls):
    with tf.GradientTape() as tape:
        tape.watch(controls)
        value = cost(controls)
    return value, tape.gradient(value, controls)


first_guess = tf.constant(0.1 * rng.normal(size=steps))
value, g = cost_and_gradient(first_guess)
print("derivatives from one backward pass:", g.shape[0])

# %% [markdown]
# Two details matter. The loop is a `tf.range` inside a `tf.function`, so the graph holds one step and not 120 copies of it. And the force is bounded by `tanh`: a hard clip has slope zero beyond the limit, so the gradient would not move a force that got there.
#
# What did the pass compute? Write one step as $s_{t+1} = \Phi(s_t, u_t)$, with $T$ steps in all, its Jacobian with respect to the state as $A_t$ and with respect to $u_t$ as $B_t$. If the cost, or loss, $L$ looks at the last state alone, the force at step $t$ acts on it through all steps that follow:
#
# $$\frac{\partial L}{\partial u_t} = B_t^\top \, A_{t+1}^\top A_{t+2}^\top \cdots A_{T-1}^\top \, \nabla L(s_T).$$
#
# The backward pass multiplies from the right: a vector travels back through time, and each step costs one product. This vector is called the *adjoint*.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
compiled_cost = tf.function(cost, jit_compile=True)
nudges = 1e-5 * np.eye(steps)[:, [0, 60, -1]]
sides = [compiled_cost(first_guess[:, tf.newaxis] + sign * nudges).numpy() for sign in (1, -1)]
np.testing.assert_allclose((sides[0] - sides[1]) / 2e-5, g.numpy()[[0, 60, -1]], rtol=1e-4, atol=1e-7)
assert g.shape == (120,) or steps != 120
clipped_at = tf.constant([-16.0, 3.0, 16.0])
with tf.GradientTape(persistent=True) as tape:
    tape.watch(clipped_at)
    hard, soft = tf.clip_by_value(clipped_at, -15.0, 15.0), 15.0 * tf.tanh(clipped_at / 15.0)
np.testing.assert_array_equal(tape.gradient(hard, clipped_at), [0, 1, 0])
assert np.all(tape.gradient(soft, clipped_at) > 0.1)

# %% [markdown]
# ### Exercise: Backwards through time (8 min)
#
# Do the backward pass by hand, without a tape. `A` holds the Jacobian of each step with respect to the state before it, shape (steps, n, n), `B` the derivative of the state after it with respect to the force in it, shape (steps, n), and `g` is the loss's gradient at the last state, shape (n,).
# Return the derivative of the loss with respect to each force, in the order of the steps. One product of a matrix and a vector for each step is enough.


# %%
def through_time(A, B, g):
    return ...  # one derivative for each step, shape (steps,)


exercises.backwards.check(through_time)

# %% [markdown]
# ## 2. What it buys
#
# L-BFGS takes the 120 derivatives, as in [14](14_without_the_matrix.ipynb). It starts from forces near zero, under which the pole hardly moves.
#
# **Predict.** The target is a half turn to the right. What will the pole do?

# %%
exercises.way_up.guess(...)  # "go straight to the right", "swing to and fro first" or "stay hanging"

# %%
found_costs = []  # one for each simulation


def evaluate(controls):
    value, g = cost_and_gradient(tf.constant(controls))
    found_costs.append(float(value))
    return float(value), g.numpy()


options = {"maxiter": 500, "maxfun": 600}
with threadpool_limits(1):  # its vectors are short
    found = scipy.optimize.minimize(
        evaluate,
        first_guess,
        jac=True,
        method="L-BFGS-B",
        options=options,
    )
compiled_simulate = tf.function(simulate, jit_compile=True)
swung = compiled_simulate(tf.constant(found.x)).numpy()

# %% tags=["nbval-ignore-output"]
print(f"cost {found.fun:.0e} after {len(found_costs)} simulations")
print(f"upright missed by {abs(swung[-1, 1] - np.pi):.0e} rad")

# %% alt="Animation. A cart on a rail with a pole that hangs down. It moves aside, the pole swings to the right, back to the left, and up on the right, where it ends upright above the middle of the rail; a dotted trail shows the way of the pole's end." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the swing-up
figure, ax = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
ax.set(xlim=(-1.6, 1.6), ylim=(-0.75, 0.75), aspect="equal", xlabel="place (m)", yticks=[])
ax.set_title("120 forces, found by a gradient")
ax.plot([-1, 1], [-0.07, -0.07], color=plots.GREY, linewidth=1)
(cart,) = ax.plot([], [], "s", color="black", markersize=18)
(pole,) = ax.plot([], [], "o-", color=plots.RED, linewidth=3, markersize=8)
(trail,) = ax.plot([], [], ":", color=plots.BLUE, linewidth=1.5)
told = ax.text(-1.5, 0.6, "")
end_x, end_y = swung[:, 0] + 0.5 * np.sin(swung[:, 1]), -0.5 * np.cos(swung[:, 1])


def show_step(t):
    cart.set_data([swung[t, 0]], [0])
    pole.set_data([swung[t, 0], end_x[t]], [0, end_y[t]])
    trail.set_data(end_x[: t + 1], end_y[: t + 1])
    told.set_text(f"{0.025 * (t + 1):.1f} s")


plots.animate(figure, show_step, [*range(0, steps, 3), steps - 1], milliseconds=75).show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
lowest, highest = swung[:, 1].min(), swung[:, 1].max()
left = int(np.argmin(swung[:, 1]))  # as far to the left as it gets
swings = lowest < -1 and swung[:left, 1].max() > 0.5 and abs(swung[-1, 1] - np.pi) < 1e-3
direct = "go straight to the right" if highest > 3 else "stay hanging"
exercises.way_up.reveal("swing to and fro first" if swings else direct)
assert swings
assert found.fun < 1e-3
assert len(found_costs) <= 650  # a line search that has begun ends
assert np.max(np.abs(swung[:, 0])) < 1.1

# %% [markdown]
# It swings to the right, to the left by more than a radian, then up on the right, and arrives upright and at rest.

# %% [markdown]
# What would you do without a tape? Search fewer numbers: a *broken line* has all 120 $u_t$ from its values at a few corners. Two rivals search for these:
#
# - The **cross-entropy method** (CEM) draws the values at 20 corners from a normal distribution, keeps the best few, fits the distribution to them, and draws again.
# - **Differences** of the residuals, whose squares add up to the cost, with Gauss–Newton's steps ([19](19_fit_and_error_bars.ipynb)).
#
# The differences run once more with all 120 forces.

# %%
costs_of_batch = tf.function(cost, jit_compile=True)
residuals_of_batch = tf.function(residuals, jit_compile=True)


def broken_lines(corners):
    """Shape (steps, corners): a line's values at all steps from its values at the corners."""
    places, at = np.linspace(0, 1, steps), np.linspace(0, 1, corners)
    return np.stack([np.interp(places, at, row) for row in np.eye(corners)], axis=1)


def cross_entropy(budget):
    """The lowest cost after each simulation, and the best controls."""
    lines, mean, spread, costs = broken_lines(20), np.zeros(20), np.ones(20), []
    best = mean
    for generation in range(budget // 32):
        drawn = mean + spread * rng.normal(size=(32, 20))
        if generation:
            drawn[0] = best  # the best one is not forgotten
        costs.append(costs_of_batch(tf.constant(lines @ drawn.T)).numpy())
        elite = drawn[np.argsort(costs[-1])[:3]]
        best, mean, spread = elite[0], elite.mean(axis=0), np.maximum(elite.std(axis=0), 0.05)
    return np.minimum.accumulate(np.concatenate(costs)), lines @ best


def by_differences(corners, budget):
    """The simulations so far and the lowest cost after each step of Gauss–Newton."""
    lines, passed = broken_lines(corners), []
    nudges = 1e-6 * np.eye(corners, corners + 1, 1)  # none, and each corner alone

    def jacobian(c):
        r = residuals_of_batch(tf.constant(lines @ (c[:, np.newaxis] + nudges))).numpy()
        passed.append(np.sum(r[:, 0] ** 2))
        return (r[:, 1:] - r[:, :1]) / 1e-6

    def here(c):
        return residuals_of_batch(tf.constant(lines @ c[:, np.newaxis])).numpy()[:, 0]

    start = 0.1 * np.random.default_rng(seed).normal(size=corners)
    with threadpool_limits(1):
        scipy.optimize.least_squares(here, start, jacobian, max_nfev=max(2, budget // (corners + 2)))
    return (corners + 2) * np.arange(1, len(passed) + 1), np.minimum.accumulate(passed)


# %% [markdown]
# A gradient costs a few simulations ([16](16_what_derivatives_cost.ipynb)), so each rival may make three times as many as L-BFGS.
#
# **Predict.** How many times as large as L-BFGS's will CEM's cost be in the end?

# %%
exercises.search.guess(...)  # "about the same", "about ten times" or "more than a hundred times"

# %% tags=["nbval-ignore-output"]
budget = simulations * len(found_costs)
searched, searched_controls = cross_entropy(budget)
few, many = by_differences(12, budget), by_differences(steps, budget)
print(f"L-BFGS, {len(found_costs)} simulations with gradients:  {found.fun:.1g}")
print(f"CEM, {len(searched)} simulations:                  {searched[-1]:.1g}")
print(f"differences of 12 corners, {few[0][-1]}:         {few[1][-1]:.1g}")
print(f"differences of {steps} forces, {many[0][-1]}:         {many[1][-1]:.1g}")

# %% alt="Line plot. The lowest cost so far against the number of simulations, both axes logarithmic, a simulation with its gradient drawn as three. All lines end near the same number. The search without gradients and the differences of 120 forces stay far above; L-BFGS and the differences of twelve corners end far below, near a hundred-thousandth." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: cost against simulations
_, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.loglog(1 + np.arange(len(searched)), searched, "--", color=plots.ORANGE, label="CEM")
ax.loglog(*few, ".-", color=plots.GREEN, label="differences, 12 corners")
ax.loglog(*many, "^-", color=plots.GREY, label=f"differences, {steps} forces")
ax.loglog(
    simulations * (1 + np.arange(len(found_costs))),
    np.minimum.accumulate(found_costs),
    color=plots.BLUE,
    label=f"tape, {steps} forces",
)
ax.set(
    title="All forces for the price of few",
    xlabel=f"simulations (one with a gradient counts as {simulations})",
    ylabel="lowest cost so far",
)
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ratio = searched[-1] / found.fun
exercises.search.reveal(
    "more than a hundred times" if ratio > 100 else "about ten times" if ratio > 3 else "about the same"
)
assert ratio > 700
assert 1e-5 < found.fun < 1.5e-4
assert 0.05 < searched[-1] < 6
assert budget - 32 < len(searched) <= budget
assert few[0][-1] <= budget
assert many[1][-1] > 100 * few[1][-1]
np.testing.assert_allclose(
    costs_of_batch(tf.stack([first_guess, tf.constant(found.x)], axis=1)), [found_costs[0], found.fun], rtol=1e-3
)

# %% [markdown]
# In this run CEM's cost is more than a thousand times L-BFGS's, and differences of *twelve* corners do as well as the tape. Differences of all the forces do not: each Jacobian takes 121 simulations, where a gradient counts as three, and few of them fit.
#
# So the tape buys no better minimum here. It buys *all* derivatives in one pass.
#
# <details><summary>Appendix: with other seeds</summary>
#
# | | tuned | simulations | cost in the end, lowest, median and highest |
# |---|---|---|---|
# | L-BFGS | no | 179, 360, 601, with gradients | 2e-5, 4e-5, 1.4e-4 (twenty seeds) |
# | CEM | best of forty | three times as many | 0.1, 0.5, 3 (ten seeds) |
# | CMA-ES, which learns a covariance | best of six | three times as many | 0.003, 0.2, 3 (ten seeds) |
# | differences, 12 corners | corners, best of four | three times as many | 1e-5, 1e-5, 4e-3 (nine seeds) |
# | differences, 120 forces | no | three times as many | 2, 7 (two seeds) |
#
# </details>

# %% [markdown]
# ## 3. The product of the Jacobians
#
# Back to the double pendulum, whose step is `swing`. Nudge the start by a small $\delta_0$. One step later the nudge is $\delta_1 = A_0\,\delta_0$, with the Jacobian $A_0$ of the first step; then $\delta_2 = A_1 A_0\,\delta_0$, and so on. Take three steps, and the Jacobian of each:


# %% tags=["nbval-ignore-output"]
def jacobian_of(function, s):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(s)
        result = function(s)
    return result, tape.jacobian(result, s, experimental_use_pfor=False)  # four rows: a loop will do


s, product = tf.constant(released), tf.eye(4, dtype=tf.float64)
for _ in range(3):
    s, A = jacobian_of(swing, s)
    product = A @ product  # the later step on the left

_, at_once = jacobian_of(lambda s: swing(swing(swing(s))), tf.constant(released))
print("shape:", product.shape)
print(f"largest difference to the Jacobian of three steps at once: {np.max(np.abs(product - at_once)):.0e}")

# %% [markdown]
# That is the chain rule. For 4000 steps the states are stored in `double`: a *batch* of 4000 examples ([15](15_batch_jacobians.ipynb)), and one call gives all Jacobians.


# %%
def jacobians_of(step, states, *given):
    """The Jacobian of the step at each state, shape (n, 4, 4)."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(states)
        after = step(states, *given)
    return tape.batch_jacobian(after, states, experimental_use_pfor=False)


A = jacobians_of(swing, tf.constant(double[:-1]))
print("Jacobians:", A.shape)


def products(A):
    """A[0], A[1] A[0], A[2] A[1] A[0] and so on; the identity stands first. In the precision of A."""
    found = [np.eye(A.shape[1], dtype=A.dtype.as_numpy_dtype)]
    for step in A.numpy():
        found.append(step @ found[-1])
    return np.stack(found)


J = products(A)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(product, at_once, rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(J[3], at_once, rtol=1e-10, atol=1e-12)
assert J.shape == (chaos_steps + 1, 4, 4)
for t in (7, 2000):  # one state alone
    np.testing.assert_allclose(jacobian_of(swing, tf.constant(double[t]))[1], A[t], rtol=1e-10, atol=1e-13)

# %% [markdown]
# The **norm** of a product, $\lVert J_t \rVert$ with $J_t = A_{t-1} \cdots A_0$, is its largest singular value: how much the worst small nudge of the start has grown after $t$ steps (radians and radians per second counted alike).
#
# **Predict.** Each step takes 5 ms, and its Jacobian is close to the identity. How large is the norm after 20 s?

# %%
exercises.norm_20.guess(...)  # "about 10", "about 1000" or "more than a million"

# %% tags=["nbval-ignore-output"]
growth = np.linalg.norm(J, ord=2, axis=(1, 2))
for t in (1, 5, 10, 20):
    print(f"after {t:2} s: {growth[200 * t]:.0e}")
print(f"rate of growth: {np.log(growth[-1]) / seconds[-1]:.1f} per second")
one_by_one = np.sum(np.log10(np.linalg.norm(A, ord=2, axis=(1, 2))))
print(f"product of the 4000 norms: 1e{one_by_one:.0f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.norm_20.reveal(
    "more than a million" if growth[-1] > 1e6 else "about 1000" if growth[-1] > 100 else "about 10"
)
assert growth[-1] > 1e9
assert one_by_one > 100
assert np.linalg.norm(A[0] - np.eye(4), 2) < 0.2

# %% [markdown]
# Billions, and more. The norm grows roughly as $e^{\lambda t}$ here, with $t$ in seconds: a nudge that stays small is multiplied by the same factor in every second, on average. The limit $\lambda = \lim_{t\to\infty} \tfrac1t \ln\lVert J_t\rVert$ is called the (largest) **Lyapunov exponent**, and a system where it is positive, and whose motion stays bounded without settling to rest or to a cycle, is **chaotic**.
#
# The norm of the product is not the product of the norms. That is a bound, above $10^{100}$ here: as if every step stretched the direction that the step before stretched most.

# %% [markdown]
# ## 4. The horizon
#
# float32 stores a number to about one part in $10^7$: neighbours are at most $\varepsilon = 1.2 \cdot 10^{-7}$ apart, relative to their size. So the float32 run starts off by about that. If a difference of $\varepsilon$ grows as the norm of the product does, it reaches 1 when
# $\varepsilon\,\lVert J_t \rVert = 1$, that is after about $t^*$ seconds:
#
# $$t^* \approx \frac{\ln(1/\varepsilon)}{\lambda}.$$
#
# Here $\lambda$ is a mean over the whole run, and the growth is uneven. So the code below looks for the first time at which $\varepsilon\,\lVert J_t \rVert$ exceeds 1. This is a forecast from the float64 run alone.

# %% tags=["nbval-ignore-output"]
epsilon = np.finfo(np.float32).eps
expected = seconds[np.argmax(epsilon * growth > 1)]
parted = seconds[np.argmax(gap > 1)]
print(f"forecast: {expected:.1f} s")
print(f"parted:   {parted:.1f} s")

# %% [markdown]
# In this run the product of the Jacobians, taken along one of the two, says to within a second when they part.
#
# The right panel shows both pendulums. Move the time; move the difference at the start, and see how little the horizon moves.

# %% alt="Line plot and diagram. Left, on a logarithmic axis against time, the distance between the float32 and the float64 run: it climbs unevenly from a ten-millionth to above one and levels off. A dashed line, a ten-millionth times the norm of the product of Jacobians, climbs along with it. Right, two double pendulums at the time when the distance reaches one, no longer in one place."
horizon.figure(seconds, growth, double, single).show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert np.max(epsilon * growth) > 1
assert np.max(gap) > 1
assert 0.7 < expected / parted < 1.5
assert np.max(gap[: int(0.4 * parted / 0.005)]) < 0.1
assert gap[200] < 1e-4
together = slice(100, int(parted / 0.005))
assert np.corrcoef(np.log(gap[together]), np.log(growth[together]))[0, 1] > 0.8

# %% [markdown]
# The logarithm in the formula says what a better measurement buys.
#
# **Predict.** Two runs start $10^{-6}$ apart and part after some time. Two others start $10^{-9}$ apart: a thousand times closer. How much later do they part?

# %%
exercises.closer.guess(...)  # "a thousand times as late", "about ten times as late" or "less than three times as late"

# %% tags=["nbval-ignore-output"]
nudged = released + np.array([[0.0], [1e-6], [1e-9]]) * np.array([1.0, 0.0, 0.0, 0.0])
runs = trajectory(tf.constant(nudged)).numpy()
apart = np.linalg.norm(runs[:, 1:] - runs[:, :1], axis=2)
parting = [seconds[np.argmax(one > 1)] for one in apart.T]
print(f"1e-6 apart: they part after {parting[0]:.1f} s")
print(f"1e-9 apart: they part after {parting[1]:.1f} s")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
factor = parting[1] / parting[0]
exercises.closer.reveal(
    "less than three times as late"
    if factor < 3
    else "about ten times as late"
    if factor < 30
    else "a thousand times as late"
)
assert apart.max(axis=0).min() > 1  # both do part
assert 1 < factor < 3
assert 2 < np.log(np.finfo(np.float64).eps) / np.log(epsilon) < 2.5
assert -np.log(np.finfo(np.float64).eps) / (np.log(growth[-1]) / seconds[-1]) < 50

# %% [markdown]
# Three digits more bought a few seconds: the formula has $\ln(1000)/\lambda$, however many digits there were before. float64 has a little more than twice the digits of float32, and so, by the formula, a little more than twice the horizon: less than a minute here.

# %% [markdown]
# ### Exercise: Each step rounds (8 min)
#
# The forecast let only the start be rounded. Let `r[t]` be the error that step $t$ adds to its result, shape (steps, n), and `A[t]` its Jacobian, shape (steps, n, n). The start is exact. Return the error after each step, to first order: shape (steps, n).


# %%
def errors(A, r):
    return ...  # the error after each step, shape (steps, n)


exercises.rounding.check(errors)

# %% [markdown]
# ## 5. Correct and useless
#
# The state after 20 s has a derivative with respect to the start: the last product. The tape computes it without any approximation but rounding, in float32 as well.
#
# **Predict.** How many digits of the float32 Jacobian over 20 s are those of the float64 one?

# %%
exercises.digits.guess(...)  # "about seven", "about three" or "none"

# %% tags=["nbval-ignore-output"]
J_single = products(jacobians_of(swing, tf.constant(single[:-1])))
disagreement = np.linalg.norm(J_single - J, axis=(1, 2)) / np.linalg.norm(J, axis=(1, 2))
for t in (1, 5, 10, 20):
    print(f"after {t:2} s the two Jacobians differ by {disagreement[200 * t]:.0e} of their size")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
last_second = disagreement[-200:].max()
exercises.digits.reveal("none" if last_second > 0.3 else "about three" if last_second > 1e-5 else "about seven")
assert last_second > 0.3
assert disagreement[200] < 1e-3

# %% [markdown]
# None. Each of the two is, up to rounding, the derivative of a run; but these are two different runs. Past the horizon, "the gradient" is that of a path which rounding has chosen.
#
# Would more digits help? Take float64, and the height of the lower mass, $-\cos p - \cos q$, after 2 s and after 20 s, as the start of the upper angle varies by up to a tenth of a radian. The dashed line is the tangent: the chain rule, with the first column of the product.

# %%
shifts = np.linspace(-0.1, 0.1, 201)
varied = released + shifts[:, np.newaxis] * np.array([1.0, 0.0, 0.0, 0.0])
angles = trajectory(tf.constant(varied)).numpy()[..., :2]
heights = -np.cos(angles).sum(axis=-1)  # (time, start)


def slope(t):
    """The derivative of the height at step t with respect to the first angle at the start."""
    return np.sin(double[t, :2]) @ J[t, :2, 0]


# %% alt="Two line plots. Two panels, the height of the lower mass against a shift of the starting angle by up to a tenth of a radian. After 2 s it is a smooth curve with its tangent along it. After 20 s it jumps up and down between the lowest and the highest place from one point to the next, and the tangent is a vertical line." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what the gradient describes
_, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained", sharey=True)
for ax, t, title in zip(
    axes, (400, 4000), ("After 2 s: a slope to follow", "After 20 s: correct, and useless"), strict=True
):
    ax.plot(shifts, heights[t], ".-", color=plots.BLUE, linewidth=0.7, markersize=3, label="201 simulations")
    ax.plot(
        shifts,
        heights[t, 100] + slope(t) * shifts,
        "--",
        color=plots.RED,
        label=f"tangent, slope {slope(t):.1g}",
    )
    ax.set(title=title, xlabel="shift of the start (rad)", ylim=(-2.2, 2.9), xticks=[-0.1, -0.05, 0, 0.05, 0.1])
    ax.legend(loc="upper right", fontsize="small")
axes[0].set_ylabel("height of the lower mass (m)")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
nearest = (heights[400, 101] - heights[400, 99]) / (shifts[101] - shifts[99])
np.testing.assert_allclose(slope(400), nearest, rtol=0.02, atol=0.05)
bends = np.count_nonzero(np.diff(np.sign(np.diff(heights[4000]))))
assert bends > 60
assert np.count_nonzero(np.diff(np.sign(np.diff(heights[400])))) <= 4
assert abs(slope(4000)) > 1e3

# %% [markdown]
# On the left the tangent holds for a hundredth of a radian. On the right the slope is right too, but for a step too short to be of use.
#
# And the swing-up? Was its gradient of use because 3 s are short? Give the motor 12 s, and search from near zero again. Beside it stand sixteen paths of 12 s with nearly full force, left or right by chance in each step. What is the largest nudge of the pole's first angle for which the tangent misses the change at the end by at most half? The double pendulum's first angle is nudged, too.


# %% tags=["nbval-ignore-output"]
nudges = np.append(0.0, np.geomspace(1e-14, 1, 200))


def reach(ends, column):
    """The largest nudge for which the tangent holds; `ends` are the states at the end, one for each nudge."""
    tangent = nudges[:, np.newaxis] * column
    miss = np.linalg.norm(ends - ends[0] - tangent, axis=1)
    return nudges[miss <= np.linalg.norm(tangent, axis=1) / 2].max()


bundle = trajectory(tf.constant(released + nudges[:, np.newaxis] * np.eye(4)[0])).numpy()
of_pendulum = [(growth[t], reach(bundle[t], J[t, :, 0])) for t in range(200, chaos_steps + 1, 200)]


def along(controls):
    """The largest norm of the product on the way, its norm at the end, the reach of the tangent, and the angle."""
    controls = tf.constant(controls)
    path = compiled_simulate(controls).numpy()
    before = np.concatenate([np.zeros((1, 4)), path[:-1]])
    J = products(jacobians_of(push, tf.constant(before), controls))
    same = tf.repeat(controls[:, tf.newaxis], len(nudges), axis=1)
    ends = compiled_simulate(same, tf.constant(nudges[:, np.newaxis] * np.eye(4)[1]))[-1].numpy()
    norms = np.linalg.norm(J, ord=2, axis=(1, 2))
    return norms.max(), norms[-1], reach(ends, J[-1, :, 1]), path[-1, 1]


first_longer = 0.1 * np.random.default_rng(seed + 1).normal(size=4 * steps)
with threadpool_limits(1):
    longer = scipy.optimize.minimize(
        evaluate, first_longer, jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxfun": 200}
    )
controlled = np.array([along(found.x), along(longer.x)])
by_chance = np.array([along(u) for u in np.random.default_rng(seed).choice([-2.0, 2.0], (16, 4 * steps))])
for count, (norm, _, _, angle) in zip((steps, 4 * steps), controlled, strict=True):
    print(f"found, {0.025 * count:2.0f} s: upright missed by {abs(angle - np.pi):.0e} rad, norm at most {norm:.0f}")
print(f"by chance, 12 s: the norm ends between {by_chance[:, 1].min():.0e} and {by_chance[:, 1].max():.0e}")

# %% alt="Scatter plot. The largest nudge for which the tangent holds against the norm of the product, both axes logarithmic. The points fall from a tenth of a radian at a norm of ten to a hundred-billionth at a norm of a hundred billion, along the dashed line of one over the norm. The double pendulum's points cover the whole line. The two found swing-ups lie at its upper left end, and the paths by chance, all of 12 s, are spread over several powers of ten." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: how far a tangent holds
_, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.loglog(*np.transpose(of_pendulum), "o", color=plots.BLUE, label="double pendulum, 1 s to 20 s")
ax.loglog(*by_chance[:, 1:3].T, "s", color=plots.ORANGE, label="cart, forces by chance, 12 s")
ax.loglog(*controlled[:, 1:3].T, "*", color=plots.RED, markersize=14, label="cart, forces found, 3 s and 12 s")
line = np.array([10.0, growth.max()])
ax.loglog(line, 1 / line, "--", color=plots.GREY, label="1/norm")
ax.set(
    title="The norm says how far a tangent holds",
    xlabel="norm of the product",
    ylabel="largest nudge it holds for (rad)",
)
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert all(controlled[:, 0] < 1e4)
assert all(np.abs(controlled[:, 3] - np.pi) < 0.1)
all_paths = np.concatenate([of_pendulum, by_chance[:, 1:3], controlled[:, 1:3]])
assert np.all(np.abs(np.log10(all_paths.prod(axis=1))) < 2.5)
assert np.corrcoef(np.log(all_paths.T))[0, 1] < -0.9
assert 1 < np.median(all_paths.prod(axis=1)) < 30
assert by_chance[:, 1].max() > 100 * by_chance[:, 1].min()

# %% [markdown]
# Wherever a point lies, its tangent holds for about $1/\lVert J \rVert$ or some ten times that. The paths by chance take 12 s each, and their norms lie powers of ten apart. Along the found ones the norm stays below a few hundred, over 12 s as over 3 s, and L-BFGS swings the pole up both times. That a search arrives it does not promise. **Look at the norm along the path, not at the number of seconds.**
#
# Past the horizon, people look less far ahead: plan a few seconds, carry out the first of them, plan again (**model predictive control**); or they cut the path into short pieces and let the optimiser join them (**multiple shooting**); or
# they do without derivatives, add noise and average the values ([26](26_gradient_of_an_expectation.ipynb), sections 2 and 5).

# %% [markdown]
# ## 6. Going further: all exponents
#
# The norm of a product is its largest singular value, and shows its largest stretch. There are three more, and some of these directions shrink. The logarithm of each singular value, per second, gives four exponents, and the product of the singular values is the factor by which a small volume grows.
# With neither friction nor motor, volume in phase space is kept (*Liouville's theorem*; it counts momenta where the state here has speeds, which matters less and less over a long time). So the four exponents should add up to nearly zero:

# %% tags=["nbval-ignore-output"]
naive = np.log(np.linalg.svd(J[-1], compute_uv=False)) / seconds[-1]
print("exponents from the product:", *(f"{value:.2f}" for value in naive), "sum:", f"{naive.sum():.2f}")

# %% [markdown]
# The smallest one is wrong, and the sum with it. Here the smallest singular value is below $10^{-16}$ times the largest, and lost in the rounding of the large entries.
#
# The cure is to carry vectors in place of the product. For the largest exponent one is enough: make its length 1 in every step, and add up the logarithms of its lengths. It first has to turn to the direction that grows most, and ends a little below the norm:

# %% tags=["nbval-ignore-output"]
v, total = np.array([1.0, 0.0, 0.0, 0.0]), 0.0
for step in A.numpy():
    v = step @ v
    length = np.linalg.norm(v)
    v, total = v / length, total + np.log(length)
print(f"largest exponent: {total / seconds[-1]:.2f}; from the norm: {np.log(growth[-1]) / seconds[-1]:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(total / seconds[-1], np.log(growth[-1]) / seconds[-1], atol=0.4)
basis, logs = np.eye(4), np.zeros(4)
for step in A.numpy():
    basis, upper = np.linalg.qr(step @ basis)
    logs += np.log(np.abs(np.diag(upper)))
all_four = logs / seconds[-1]
np.testing.assert_allclose(total / seconds[-1], all_four[0], rtol=1e-6)  # one vector, and the first of four
assert abs(all_four.sum()) < 0.2
assert naive[-1] > all_four[-1] + 0.2  # too large

# %% [markdown]
# ### Exercise: All exponents (12 min)
#
# `A` holds the Jacobians of steps of `dt` seconds, shape (steps, n, n). Carry n vectors, starting with the unit vectors, and make them orthonormal after each step: take from each one its parts along those before it, and then make its length 1. Return the n exponents, in the vectors' order: the logarithms of the lengths before they were made 1, added up and divided by the whole time.


# %%
def exponents(A, dt):
    return ...  # one for each axis of the state, shape (n,), from n vectors that start as the unit vectors


exercises.exponents.check(exponents)

# %% [markdown]
# ## 7. Going further: the derivative of an average
#
# The average over a long run may have a moderate derivative, and a backward pass does not return it. Here it is on the system that Lea, Allen and Haine (2000) took: Lorenz's three equations (1963), whose $z$ has a mean near 23.5 at the parameter $\rho = 28$. The target is the mean of $z$ over a time $T$, and its derivative with respect to $\rho$.
# Five hundred runs start at random, and settle for a time of 30 before the mean begins. For each of them there is the tape's derivative, and a difference: the same start with $\rho + 1$ and with $\rho - 1$.


# %%
def lorenz(s, rho):
    x, y, z = tf.unstack(s, axis=-1)
    return tf.stack([10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z], axis=-1)


@tf.function(jit_compile=True)
def mean_z(s, rho, count):
    """Of each run over `count` steps, and the states at the end."""
    total = tf.zeros_like(rho)
    for _ in tf.range(count):
        s = runge_kutta(lambda s: lorenz(s, rho), s, 0.01)
        total += s[:, 2]
    return total / tf.cast(count, total.dtype), s


@tf.function(jit_compile=True)
def slope_of_mean(s, rho, count):
    with tf.GradientTape() as tape:
        tape.watch(rho)
        average, _ = mean_z(s, rho, count)
    return tape.gradient(average, rho)  # each run has its own rho, so this is one derivative for each


def difference_of_means(s, h, count):
    higher, lower = (mean_z(s, rho + change, tf.constant(count))[0] for change in (h, -h))  # compiled for any count
    return ((higher - lower) / (2 * h)).numpy()


rho = tf.fill([500], tf.constant(28.0, tf.float64))
_, settled = mean_z(tf.constant(np.array([0.0, 0.0, 25.0]) + rng.normal(size=(500, 3))), rho, tf.constant(3000))
times = (1, 5, 20)
by_tape = [slope_of_mean(settled, rho, 100 * T).numpy() for T in times]
by_difference = [difference_of_means(settled, 1.0, 100 * T) for T in times]

# %% tags=["nbval-ignore-output"]
print(" T   tape: median size, mean of 500, standard error   difference: median size, mean of 500, standard error")
for T, *both in zip(times, by_tape, by_difference, strict=True):
    print(f"{T:2}", *(f"{np.median(np.abs(d)):18.2g} {d.mean():12.2g} {d.std() / 500**0.5:15.1g}     " for d in both))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
errors_of_mean = np.array([[d.std() / 500**0.5 for d in both] for both in (by_tape, by_difference)])
assert np.median(np.abs(by_tape[-1])) > 1e3 * np.median(np.abs(by_tape[0]))
assert errors_of_mean[0, -1] > 100
assert np.all(errors_of_mean[1] < 0.1)
assert errors_of_mean[1, -1] < 0.5 * errors_of_mean[1, 0]
assert abs(by_difference[-1].mean() - 1) < 0.05
assert abs(mean_z(settled, rho, tf.constant(2000))[0].numpy().mean() - 23.5) < 0.2
small = difference_of_means(settled, 1e-6, 100)
np.testing.assert_allclose(np.median(np.abs(small / by_tape[0] - 1)), 0, atol=1e-4)

# %% [markdown]
# Each number of the tape is right, for its run and its $T$; at $T = 20$ their mean over 500 runs says nothing. The differences become *better* with $T$: the mean of $z$ rises by about 1 for each unit of $\rho$.
#
# So for this long average a difference with a step that is not small is the better derivative, at two runs for *each* parameter. (Its step is a bias: what you get is the mean slope between 27 and 29.) With many parameters, shadowing methods are for that (Wang, Hu and Blonigan).

# %% [markdown]
# ## 8. Check it independently
#
# Where the double pendulum rests, the Jacobian of its motion is known in closed form. Upright, both rods on top, a nudge grows at a rate of up to $\sqrt{(2 + \sqrt 2)\,g}$ per second; hanging, it oscillates at $\sqrt{(2 \pm \sqrt 2)\,g}$.
# So the eigenvalues of a step's Jacobian at rest are known: $e^{\mu \Delta t}$ for a growth at the rate $\mu$, and $e^{\pm i \omega \Delta t}$ for an oscillation at $\omega$. For the moving pendulum, SciPy integrates the same equations, written anew, with another method and adaptive steps; central differences of *its* result, over 2 s, check the product.

# %% tags=["nbval-ignore-output"]
upright = jacobian_of(swing, tf.constant([np.pi, np.pi, 0.0, 0.0], tf.float64))[1].numpy()
hanging = jacobian_of(swing, tf.zeros(4, tf.float64))[1].numpy()
fastest = np.log(np.abs(np.linalg.eigvals(upright)).max()) / 0.005
frequencies = np.unique(np.abs(np.angle(np.linalg.eigvals(hanging))).round(9)) / 0.005
print(f"upright: {fastest:.5f}, in closed form {np.sqrt((2 + 2**0.5) * 9.81):.5f}")
print(f"hanging: {frequencies[0]:.5f}, {frequencies[-1]:.5f}")


def rates(_, s):
    """The same motion from its mass matrix and forces."""
    (p, q), (a, b) = s[:2], s[2:]
    mass = np.array([[2.0, np.cos(p - q)], [np.cos(p - q), 1.0]])
    force = np.array([-(b**2) * np.sin(p - q) - 2 * 9.81 * np.sin(p), a**2 * np.sin(p - q) - 9.81 * np.sin(q)])
    return np.concatenate([s[2:], np.linalg.solve(mass, force)])


def reference(s, end):
    return scipy.integrate.solve_ivp(rates, (0.0, end), s, method="DOP853", rtol=1e-11, atol=1e-11).y[:, -1]


h = 1e-5
columns = [(reference(released + h * e, 2.0) - reference(released - h * e, 2.0)) / (2 * h) for e in np.eye(4)]
difference = np.linalg.norm(np.transpose(columns) - J[400]) / np.linalg.norm(J[400])
print(f"product over 2 s against differences: {difference:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(fastest, np.sqrt((2 + 2**0.5) * 9.81), rtol=1e-5)
np.testing.assert_allclose(frequencies[[0, -1]], np.sqrt((2 + np.array([-1, 1]) * 2**0.5) * 9.81), rtol=1e-5)
np.testing.assert_allclose(reference(released, 2.0), double[400], rtol=1e-4, atol=1e-4)
assert difference < 1e-3

# %% [markdown]
# ## Recap
#
# - A gradient through a simulation is one backward pass, here for 120 forces; it multiplies the transposed Jacobians of the steps (section 1).
# - With such a gradient L-BFGS finds a swing-up. With three times the simulations the cross-entropy method ended over a thousand times higher, differences of twelve numbers as low, and differences of all 120 higher (section 2).
# - $J_t = A_{t-1} \cdots A_0$ says how a nudge of the start has grown. Its norm grows as $e^{\lambda t}$ in a chaotic system, on average; it is not the product of the norms (section 3).
# - The runs in float32 and float64 parted at about $\varepsilon \lVert J_t \rVert = 1$. Three digits more bought a few seconds (section 4).
# - Past the horizon the gradient was correct and useless: another precision gave another one. The tangent held for about $1/\lVert J \rVert$ or some ten times that. The tape's derivative of a long average exploded in Lorenz's system; a difference with a step that is not small found a moderate one (sections 5 and 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | Python's `range` in a `tf.function` | a graph with a copy of every step | `tf.range` |
# | a force that is clipped | a gradient of exactly zero beyond the limit | bound it by `tanh`, and start near zero |
# | norms multiplied instead of matrices | growth of $10^{100}$ | the norm of the product |
# | the product in the wrong order | a number that no finite difference confirms | the later step on the left |
# | a gradient past the horizon | a huge, exact number; steps that lead nowhere | look at $\lVert J \rVert$ first; look less far ahead |
# | a gradient of a long average in chaos | a huge number, and an average that changes moderately | differences of long averages; for many parameters, shadowing |
# | small singular values of a long product | without friction, exponents that do not add up to zero | orthonormalise in every step |
#
# **Further reading**
#
# - L. Metz, C. D. Freeman, S. S. Schoenholz, T. Kachman (2021), ["Gradients are not all you need"](https://arxiv.org/abs/2111.05803).
# - H. J. T. Suh, M. Simchowitz, K. Zhang, R. Tedrake (2022), ["Do differentiable simulators give better policy gradients?"](https://arxiv.org/abs/2202.00817).
# - E. N. Lorenz (1963), ["Deterministic nonperiodic flow"](https://doi.org/10.1175/1520-0469%281963%29020%3C0130:DNF%3E2.0.CO;2).
# - G. Benettin, L. Galgani, A. Giorgilli, J.-M. Strelcyn (1980), ["Lyapunov characteristic exponents for smooth dynamical systems and for Hamiltonian systems; a method for computing all of them"](https://doi.org/10.1007/BF02128236).
# - S. H. Strogatz (1994), ["Nonlinear Dynamics and Chaos"](https://doi.org/10.1201/9780429492563).
# - D. J. Lea, M. R. Allen, T. W. N. Haine (2000), ["Sensitivity analysis of the climate of a chaotic system"](https://doi.org/10.1034/j.1600-0870.2000.01137.x); Q. Wang, R. Hu, P. Blonigan (2014), ["Least squares shadowing sensitivity analysis of chaotic limit cycle oscillations"](https://arxiv.org/abs/1204.0159).
# - R. Y. Rubinstein (1999), ["The cross-entropy method for combinatorial and continuous optimization"](https://doi.org/10.1023/A:1010091220143).
# - J. T. Betts (2010), ["Practical Methods for Optimal Control and Estimation Using Nonlinear Programming"](https://doi.org/10.1137/1.9780898718577), second edition: multiple shooting.
#
# **Read next:** [27 A generative model from a trace](27_generative_model_from_a_trace.ipynb) needs the trace of a Jacobian, and no matrix;
# [16 What derivatives cost](16_what_derivatives_cost.ipynb) counts what a backward pass through many steps keeps in memory.
