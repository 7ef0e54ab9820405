"""Functions whose derivatives are mostly zeros, for TensorFlow and for JAX: `xp` is either module."""

from functools import partial

STEP = 0.05


def _sum(xp, x):
    return (xp.math.reduce_sum if hasattr(xp, "math") else xp.sum)(x)


def band(xp, x):
    """Each element with its two neighbours, along a line."""
    inner = x[1:-1] * x[:-2] + xp.sin(x[2:]) * x[1:-1]
    return xp.concat([x[:1] * x[1:2], inner, x[-1:] - x[-2:-1] ** 2], axis=0)


def wide_band(xp, x):
    """Each element with its four neighbours, around a circle."""
    return xp.sin(x) * sum(xp.roll(x, shift, 0) for shift in (-2, -1, 1, 2))


def chain(xp, x):
    """A scalar: neighbours on a line meet, and their neighbours."""
    return _sum(xp, xp.cos(x[1:] - x[:-1]) * x[1:]) + _sum(xp, x[2:] * x[:-2] ** 2)


def brusselator(xp, x):
    """Two substances that react, and diffuse on a square grid whose edges meet (Prigogine and Lefever, 1968)."""
    side = round((x.shape[0] / 2) ** 0.5)
    u, v = (xp.reshape(x, (2, side, side))[row] for row in range(2))
    reaction = u * u * v

    def spread(w):
        return sum(xp.roll(w, shift, axis) for shift in (-1, 1) for axis in (0, 1)) - 4 * w

    return xp.reshape(xp.stack([1 + reaction - 4.4 * u + spread(u), 3.4 * u - reaction + spread(v)], axis=0), (-1,))


def pendulum(xp, x):
    """What an explicit step leaves of a pendulum's equations: rows of angle, speed and torque, one for each time."""
    angle, speed, torque = (xp.reshape(x, (-1, 3))[:, column] for column in range(3))
    acceleration = torque - xp.sin(angle)
    gaps = [
        angle[1:] - angle[:-1] - STEP * speed[:-1],
        speed[1:] - speed[:-1] - STEP * acceleration[:-1],
    ]
    return xp.reshape(xp.stack(gaps, axis=1), (-1,))


def cart(xp, x):
    """A scalar: a cart-pole's effort, and the squares of what a trapezoidal step leaves of its equations."""
    position, angle, velocity, speed, force = (xp.reshape(x, (-1, 5))[:, column] for column in range(5))
    sine, cosine = xp.sin(angle), xp.cos(angle)
    push = (force + 0.2 * speed**2 * sine + 2 * sine * cosine) / (1 + 0.2 * sine**2)
    turn = -(push * cosine + 9.8 * sine)
    pairs = [(position, velocity), (angle, speed), (velocity, push), (speed, turn)]
    gaps = [state[1:] - state[:-1] - STEP / 2 * (rate[1:] + rate[:-1]) for state, rate in pairs]
    return _sum(xp, force**2) + sum(_sum(xp, gap**2) for gap in gaps)


# Of which colours are counted: a name, a function, the length of its argument, and whether it is the Hessian's.
PATTERNS = [
    ("band of 3", band, 200, False),
    ("band of 5, around a circle", wide_band, 200, False),
    ("Brusselator, 16 by 16", brusselator, 512, False),
    ("pendulum, 60 steps", pendulum, 180, False),
    ("cart-pole, 40 steps, Hessian", cart, 200, True),
]


def in_framework(function, xp):
    """Return a function of x alone."""
    return partial(function, xp)
