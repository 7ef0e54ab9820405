"""Measure again what decides speed: the constants of `tapelab.derivatives.costs`.

Each is given some values, and the works that it decides on are timed with each of them, by turns. What is printed is
the geometric mean over the works of the time in units of the shortest: 1.00 is the best value. A value that is there
now and is more than 5 % slower than the best is marked.

    constants.py [NAME]      those whose name contains this
"""

import itertools
import math
import statistics
import sys

from tapelab.derivatives import costs

import with_tensorflow
from worker import turn
from works import Work

ROUNDS, SECONDS = 3, 0.1
LIMITS = (0, 10**3, 10**4, 10**5, 10**6, 10**7, 10**9)
MLP, CNN = ((5, 8, 6), (16, 32, 32, 12), (784, 256, 256, 10)), ((16, 8, 16, 10), (28, 16, 32, 10))
# Values, and the works as kind, networks and batches.
QUESTIONS = {
    "XLA_ONE_PASS": (LIMITS, "gradient", MLP, (16, 128)),
    "XLA_JACOBIAN": (LIMITS, "jacobian", ((30, 30, 30), (300, 300, 300), (1000, 256, 1000)), (1,)),
    "XLA_HESSIAN": (LIMITS, "hessian", ((5, 8, 6), (8, 16, 16, 6), (16, 32, 32, 12), (24, 48, 48, 10)), (64,)),
    "XLA_LAPLACIAN": (LIMITS, "laplacian", ((5, 32, 32, 1), (10, 128, 128, 1), (50, 256, 256, 128, 1)), (64, 512)),
    "SLOW_PER_EXAMPLE": (((), ("Conv2D",)), "per_example_cnn", CNN, (64,)),
    "HESSIAN_CACHED": ((2**18, 2**20, 2**22, 2**24), "hessian", ((16, 32, 32, 12), (24, 48, 48, 10)), (64, 512)),
    "HESSIAN_ROWS": ((8, 32, 128), "hessian", ((16, 32, 32, 12), (24, 48, 48, 10)), (64, 512)),
    "CLIPPED_EXAMPLES": ((32, 128, 256, 512), "clipped", ((784, 256, 256, 10), (64, 512, 512, 10)), (256, 1024)),
}


def times(name, values, work):
    """The median time of a work with each value of a constant; the one that is there now is back afterwards."""
    now, runs, turns = getattr(costs, name), {}, {value: [] for value in values}
    try:
        for round_, value in itertools.product(range(ROUNDS + 1), values):
            setattr(costs, name, value)
            if not round_:  # the first call compiles
                runs[value] = getattr(with_tensorflow, work.kind)(work)["tapelab"]
                runs[value]()
            else:
                turns[value].append(turn(with_tensorflow, runs[value], SECONDS))
    finally:
        setattr(costs, name, now)
    return {value: statistics.median(turns[value]) for value in values}


def main():
    named = [name for name in vars(costs) if name.isupper() and (sys.argv[1:] or [""])[0] in name]
    for name in named:
        if name not in QUESTIONS:
            print(f"{name} = {getattr(costs, name)!r}: bounds a search or memory, and is not measured")
            continue
        values, kind, networks, batches = QUESTIONS[name]
        now, values = getattr(costs, name), list(dict.fromkeys([getattr(costs, name), *values]))
        found = [times(name, values, Work("", kind, sizes, size)) for sizes in networks for size in batches]
        ratios = {v: [each[v] / min(each.values()) for each in found] for v in values}
        rated = {v: math.exp(statistics.fmean(map(math.log, ratios[v]))) for v in values}
        verdict = "holds" if rated[now] <= 1.05 * min(rated.values()) else "WOULD BE ANOTHER HERE"
        print(f"{name} = {now!r}: {verdict}; " + ", ".join(f"{v!r} {rated[v]:.2f}" for v in values), flush=True)


if __name__ == "__main__":
    main()
