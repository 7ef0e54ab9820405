"""Keras' layers and losses: what they are made with, what they take, and their weights as inputs like any other."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from cases import TABLE, Case, first_that_works, tuples

L = keras.layers
# What a required parameter of a layer's constructor is given.
PARAMETERS = {name: tuples(value) for name, value in TABLE["layer_parameters"].items()}
PARAMETERS |= {"function": tf.sin, "output_shape": (None, 3), "activation": "mish"}
SETTINGS: dict[str, Callable] = {
    "Bidirectional": lambda: L.Bidirectional(L.LSTM(2)),
    "TimeDistributed": lambda: L.TimeDistributed(L.Dense(2)),
    "SpectralNormalization": lambda: L.SpectralNormalization(L.Dense(3)),
    "RNN": lambda: L.RNN(L.SimpleRNNCell(3)),
    "StackedRNNCells": lambda: L.RNN(L.StackedRNNCells([L.GRUCell(2), L.LSTMCell(2)])),
    "GRUCell": lambda: L.RNN(L.GRUCell(3)),
    "LSTMCell": lambda: L.RNN(L.LSTMCell(3)),
    "SimpleRNNCell": lambda: L.RNN(L.SimpleRNNCell(3)),
    "GroupNormalization": lambda: L.GroupNormalization(2),
    "Normalization": lambda: L.Normalization(mean=0.3, variance=2.0),
    "Dot": lambda: L.Dot(axes=1),
    "ActivityRegularization": lambda: L.ActivityRegularization(0.1, 0.1),
    "Resizing": lambda: L.Resizing(4, 7),
    "MelSpectrogram": lambda: L.MelSpectrogram(fft_length=16, sequence_stride=8, num_mel_bins=4, sampling_rate=100),
    "STFTSpectrogram": lambda: L.STFTSpectrogram(frame_length=8, frame_step=4, fft_length=8),
    "RandomPosterization": lambda: L.RandomPosterization(4, seed=1),
    "RandomErasing": lambda: L.RandomErasing(value_range=(0, 1), seed=1),
}
# Tried in this order; "and" joins several inputs of one call.
SHAPES = (
    "real 2 4", "real 2 6 4", "real 1 6 6 2", "unit 1 6 6 3", "real 1 4 4 4 2", "real 2 3 4 4 2", "real 1 2 4 4 4 2",
    "real 2 4 and real 2 4", "real 2 3 4 and real 2 3 4", "real 2 3 4 and real 2 3 4 and real 2 3 4", "real 2 64",
)  # fmt: skip


def in_training(name: str) -> bool:
    """Whether a name is that of a layer which may do something else while a model is trained."""
    layer = getattr(L, name.removeprefix("keras.layers."), None)
    return (
        inspect.isclass(layer) and issubclass(layer, L.Layer) and "training" in inspect.signature(layer.call).parameters
    )


def make(name: str, dtype: str) -> Any:
    """A layer with the settings of its name, or of its constructor's parameters."""
    short = name.split(" ")[0].rpartition(".")[2]
    keras.config.set_floatx(dtype)
    keras.utils.set_random_seed(1)
    if short in SETTINGS:
        return SETTINGS[short]()
    parameters = inspect.signature(getattr(L, short)).parameters
    given = {p: PARAMETERS[p] for p, what in parameters.items() if what.default is what.empty and p in PARAMETERS}
    return getattr(L, short)(**given, **({"seed": 1} if "seed" in parameters else {}))


def candidates(name: str) -> Iterator[Case]:
    """A layer called with each of the shapes, its trainable weights as further inputs around what they start as.

    In float64 first, then in float32: some kernels are there for float32 alone.
    """
    training = {"training": True} if name.endswith(" in training") else {}
    for dtype, spec in ((dtype, spec) for dtype in ("float64", "float32") for spec in SHAPES):
        layer, inputs = make(name, dtype), tuple(spec.split(" and "))
        xs = [tf.constant(x, dtype) for x in Case(name, tf.identity, inputs).draw(0)]
        listed, count = len(xs) > 1 and "query" not in inspect.signature(layer.call).parameters, len(xs)
        try:
            layer(xs, **training) if listed else layer(*xs, **training)
        except Exception:  # not this shape
            continue
        start, rest = ([np.asarray(v) for v in vs] for vs in (layer.trainable_variables, layer.non_trainable_variables))
        weights = tuple(" ".join(["real", *map(str, w.shape or (".",))]) for w in start)

        def call(*given, layer=layer, count=count, start=start, rest=rest, listed=listed, dtype=dtype):
            given = [tf.cast(x, dtype) for x in given]
            trainable = [w + 0.3 * v for w, v in zip(start, given[count:], strict=True)]
            # Without side effects: seeds, moving averages and power iterations start from the same state each time.
            xs = [given[:count]] if listed else given[:count]
            return layer.stateless_call(trainable, rest, *xs, **training)[0]

        words = ["of its weights too"] * bool(weights) + ["in float32"] * (dtype == "float32")
        yield Case(name, call, inputs + weights, ", ".join(words))


def find(name: str) -> tuple[Case | None, str]:
    """A layer's case, or the reason why there is none."""
    try:
        return first_that_works(candidates(name))
    finally:
        keras.config.set_floatx("float64")


def find_loss(name: str, loss: Callable) -> tuple[Case | None, str]:
    """A loss of labels and predictions, or of labels that are classes."""
    if inspect.isclass(loss):
        function = loss(dtype="float64", **({"q": 0.5} if "Generalized" in name else {}))
    else:
        count = sum(p.default is p.empty for p in inspect.signature(loss).parameters.values())
        function = loss if count == 2 else lambda y, p: loss(y, p, 0.5)
    classes = tf.constant([[0], [2], [1]])
    options = [
        Case(name, lambda y, p: function(y, p), ("unit", "unit"), "of labels and predictions"),
        Case(name, lambda p: function(classes, p), ("unit",), "of predictions; the labels are classes"),
        Case(name, lambda p: function(classes[:, 0], p), ("unit",), "of predictions; the labels are classes"),
        Case(name, lambda p: function(tf.constant([[1, 2], [2, 1]]), p), ("real 2 5 4",), "of predictions"),
    ]
    late = "sparse" in name.lower() or "circle" in name.lower()  # of numbers only where nothing else works
    return first_that_works(iter(options[1:] + options[:1] if late else options))
