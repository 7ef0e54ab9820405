"""What an ExplainTape costs, beside a plain tape in the same run.

    .venv/bin/python ci/bench_explain.py            print the figures
    .venv/bin/python ci/bench_explain.py --check    exit 1 as well if they exceed what the project allows

Plain and explaining rounds alternate, and the fastest of each is taken: what else the machine does makes rounds slower,
never faster.
"""

import argparse
import sys
import time

from tapelab import runtime
from tapelab.explain import ExplainTape

import tensorflow as tf

ALLOWED_PER_OPERATION = 30e-6  # seconds
ALLOWED_RATIO = 1.10  # of a small convolutional network's forward and backward pass


def alternate(work, rounds):
    """Time `work(make_tape)` for both tapes in turn; return the fewest seconds of each: (plain, explaining)."""
    times = {tf.GradientTape: [], ExplainTape: []}
    for make in times:
        work(make)  # traces and allocates
    for _ in range(rounds):
        for make, taken in times.items():
            start = time.perf_counter()
            work(make)
            taken.append(time.perf_counter() - start)
    return tuple(min(taken) for taken in times.values())


def per_operation(operations=200, rounds=200):
    """Seconds that one recorded operation takes: (plain, explaining)."""
    x = tf.constant(0.5)

    def work(make):
        with make() as tape:
            tape.watch(x)
            value = x
            for _ in range(operations):
                value = value * x

    return tuple(seconds / operations for seconds in alternate(work, rounds))


def convolutional_network(rounds=100):
    """Seconds of a small network's forward and backward pass, run eagerly: (plain, explaining)."""
    layers = [
        tf.keras.layers.Conv2D(16, 3, activation="relu"),
        tf.keras.layers.Conv2D(32, 3, activation="relu"),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
    model = tf.keras.Sequential([tf.keras.Input((28, 28, 1)), *layers])
    images = tf.random.stateless_uniform((32, 28, 28, 1), (1, 2))
    labels = tf.zeros(32, tf.int32)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def work(make):
        with make() as tape:
            loss = loss_function(labels, model(images, training=True))
        return tape.gradient(loss, model.trainable_variables)[0].numpy()

    return alternate(work, rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if the cost exceeds what the project allows")
    arguments = parser.parse_args()
    runtime.start(seed=0)
    print(runtime.report())
    plain, explaining = per_operation()
    added = explaining - plain
    print(
        f"recorded operation, µs:  plain {plain * 1e6:.1f}, explaining {explaining * 1e6:.1f}, added {added * 1e6:.1f}"
    )
    plain, explaining = convolutional_network()
    ratio = explaining / plain
    print(f"convolutional net, ms:  plain {plain * 1e3:.2f}   explaining {explaining * 1e3:.2f}   ratio {ratio:.3f}")
    if arguments.check and (added > ALLOWED_PER_OPERATION or ratio > ALLOWED_RATIO):
        sys.exit(
            f"too slow: allowed are {ALLOWED_PER_OPERATION * 1e6:.0f} µs per operation and a ratio of {ALLOWED_RATIO}"
        )


if __name__ == "__main__":
    main()
