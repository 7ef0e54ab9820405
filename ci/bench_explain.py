"""What an ExplainTape costs, beside a plain tape in the same run, and `Watch`, beside a plain `fit`.

    .venv/bin/python ci/bench_explain.py            print the figures
    .venv/bin/python ci/bench_explain.py --check    exit 1 as well if they exceed what the project allows

Plain and explaining rounds alternate, and the fastest of each is taken: what else the machine does makes rounds slower,
never faster. Of `fit` the median step's processor time is taken, with and without `Watch` in turn.
"""

import argparse
import gc
import statistics
import sys
import time

from tapelab import runtime
from tapelab.explain import ExplainTape, Watch

import tensorflow as tf

ALLOWED_PER_OPERATION = 30e-6  # seconds
ALLOWED_RATIO = 1.10  # of a small convolutional network's forward and backward pass
ALLOWED_WATCHED = 2.0  # of a step of a network 784-256-256-10 at batch 64


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


class Clock(tf.keras.callbacks.Callback):
    """Takes the processor time after each step."""

    FIRST = 20  # the steps before it are not counted: in them the step is traced

    def on_train_begin(self, logs=None):
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        if len(self.times) == self.FIRST:
            gc.collect()  # what tracing left
        self.times.append(time.process_time())

    def a_step(self):
        """Seconds of processor time of a step."""
        return (self.times[-1] - self.times[self.FIRST]) / (len(self.times) - 1 - self.FIRST)


def watched_step(optimizer, rounds=15, steps=150):
    """Seconds of processor time that a step of `fit` takes: (plain, watched), medians of fits that alternate."""
    images = tf.random.stateless_uniform((20 * 64, 784), (1, 2))
    data = tf.data.Dataset.from_tensor_slices((images, tf.zeros(20 * 64, tf.int32))).batch(64).cache().repeat()
    taken = {False: [], True: []}
    models = {}
    for is_watched in taken:
        layers = [tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(256, "relu"), tf.keras.layers.Dense(10)]
        models[is_watched] = tf.keras.Sequential([tf.keras.Input((784,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        models[is_watched].compile(optimizer, loss, jit_compile=False)
    for _ in range(rounds):
        for is_watched, model in models.items():
            callbacks = [clock := Clock(), *([Watch(every=None)] if is_watched else [])]
            model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=callbacks)
            taken[is_watched].append(clock.a_step())
    return tuple(statistics.median(seconds) for seconds in taken.values())


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
    watched_ratios = []
    for optimizer in ("sgd", "adam"):
        plain, watched = watched_step(optimizer)
        watched_ratios.append(watched / plain)
        print(
            f"step of fit, {optimizer}, ms: plain {plain * 1e3:.2f}   watched {watched * 1e3:.2f}   "
            f"ratio {watched_ratios[-1]:.3f}"
        )
    is_slow = added > ALLOWED_PER_OPERATION or ratio > ALLOWED_RATIO or max(watched_ratios) > ALLOWED_WATCHED
    if arguments.check and is_slow:
        sys.exit(
            f"too slow: allowed are {ALLOWED_PER_OPERATION * 1e6:.0f} µs per operation, a ratio of {ALLOWED_RATIO}, "
            f"and of {ALLOWED_WATCHED} for a step of fit"
        )


if __name__ == "__main__":
    main()
