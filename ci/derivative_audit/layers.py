"""Keras' layers and losses: what they are made with, what they take, and their weights as inputs like any other."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from cases import Case, works

L = keras.layers
# What a required parameter of a layer's constructor is given.
PARAMETERS: dict[str, Any] = {
    "activation": "tanh",
    "cropping": 1,
    "data": [0.0, 1.0],
    "dims": (2, 1),
    "equation": "abc,cd->abd",
    "factor": 0.2,
    "filters": 2,
    "function": tf.sin,
    "head_dim": 2,
    "height": 4,
    "height_factor": 0.2,
    "input_dim": 5,
    "kernel_size": 2,
    "key_dim": 2,
    "max_number": 2,
    "n": 2,
    "num_bins": 3,
    "num_heads": 2,
    "num_key_value_heads": 1,
    "num_query_heads": 2,
    "output_dim": 3,
    "output_shape": (None, 3),
    "output_size": 2,
    "pool_size": 2,
    "rate": 0.3,
    "scale": 2.0,
    "stddev": 0.1,
    "target_shape": (-1,),
    "units": 3,
    "value_range": (0, 1),
    "width": 4,
    "width_factor": 0.2,
}
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
    "Activation": lambda: L.Activation("mish"),
    "ActivityRegularization": lambda: L.ActivityRegularization(0.1, 0.1),
    "UnitNormalization": lambda: L.UnitNormalization(),
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
LEFT_OUT = {
    "Embedding": "takes whole numbers; its table is measured as tf.nn.embedding_lookup",
    "ReversibleEmbedding": "takes whole numbers; its table is measured as tf.nn.embedding_lookup",
    "CategoryEncoding": "takes whole numbers",
    "Discretization": "gives whole numbers",
    "MaxNumBoundingBoxes": "takes boxes, and drops some",
    "MixUp": "takes a dictionary of images and labels, and draws anew at each call",
    "CutMix": "takes a dictionary of images and labels, and draws anew at each call",
}


def extra(listed: list[str]) -> list[str]:
    """Layers that do something else while a model is trained."""
    found = []
    for name in listed:
        layer = getattr(L, name.removeprefix("keras.layers."), None)
        if not (inspect.isclass(layer) and issubclass(layer, L.Layer)):
            continue
        if "training" in inspect.signature(layer.call).parameters:
            found.append(f"{name} in training")
    return found


def make(name: str, dtype: str) -> Any:
    """A layer with the settings of its name, or of its constructor's parameters."""
    short = name.split(" ")[0].rpartition(".")[2]
    keras.config.set_floatx(dtype)
    keras.utils.set_random_seed(1)
    if short in SETTINGS:
        return SETTINGS[short]()
    layer = getattr(L, short)
    parameters = inspect.signature(layer).parameters
    given = {
        p: PARAMETERS[p] for p in parameters if parameters[p].default is inspect.Parameter.empty and p in PARAMETERS
    }
    if "seed" in parameters:
        given["seed"] = 1
    return layer(**given)


def candidates(name: str, dtype: str) -> Iterator[Case]:
    """A layer called with each of the shapes, its trainable weights as further inputs around what they start as."""
    training = {"training": True} if name.endswith(" in training") else {}
    for spec in SHAPES:
        layer = make(name, dtype)
        inputs = tuple(spec.split(" and "))
        xs = [tf.constant(x, dtype) for x in Case(name, tf.identity, inputs).draw(0)]
        listed = len(xs) > 1 and "query" not in inspect.signature(layer.call).parameters
        try:
            layer(xs, **training) if listed else layer(*xs, **training)
        except Exception:  # not this shape
            continue
        start = [np.asarray(v) for v in layer.trainable_variables]
        rest = [np.asarray(v) for v in layer.non_trainable_variables]
        weights = tuple(" ".join(["real", *map(str, w.shape or (".",))]) for w in start)

        count = len(xs)

        def call(*given, layer=layer, count=count, start=start, rest=rest, listed=listed):
            given = [tf.cast(x, dtype) for x in given]
            xs = given[:count]
            trainable = [w + 0.3 * v for w, v in zip(start, given[count:], strict=True)]
            # Without side effects: seeds, moving averages and power iterations start from the same state each time.
            return layer.stateless_call(trainable, rest, *([xs] if listed else xs), **training)[0]

        words = ["of its weights too"] if weights else []
        yield Case(name, call, inputs + weights, ", ".join(words + (["in float32"] if dtype == "float32" else [])))


def find(name: str, layer: type) -> tuple[Case | None, str]:
    short = name.split(" ")[0].rpartition(".")[2]
    if short in LEFT_OUT:
        return None, LEFT_OUT[short]
    reason = "no way to call it was found"
    try:
        for dtype in ("float64", "float32"):  # some kernels are there for float32 alone
            for case in candidates(name, dtype):
                try:
                    if works(case):
                        return case, ""
                except Exception as error:
                    reason = f"no way to call it was found ({type(error).__name__})"
    except Exception as error:
        reason = f"no way to make it was found ({type(error).__name__}: {str(error).splitlines()[0][:80]})"
    finally:
        keras.config.set_floatx("float64")
    return None, reason


def find_loss(name: str, loss: Callable) -> tuple[Case | None, str]:
    """A loss of labels and predictions, or of labels that are classes."""
    if not inspect.isclass(loss):
        function = loss if len(_required(loss)) == 2 else lambda y, p: loss(y, p, 0.5)
    else:
        settings = {"q": 0.5} if "Generalized" in name else {}
        function = loss(dtype="float64", **settings)
    classes = tf.constant([[0], [2], [1]])
    options = [
        Case(name, lambda y, p: function(y, p), ("unit", "unit"), "of labels and predictions"),
        Case(name, lambda p: function(classes, p), ("unit",), "of predictions; the labels are classes"),
        Case(name, lambda p: function(classes[:, 0], p), ("unit",), "of predictions; the labels are classes"),
        Case(name, lambda p: function(tf.constant([[1, 2], [2, 1]]), p), ("real 2 5 4",), "of predictions"),
    ]
    for case in options[1:] + options[:1] if "sparse" in name.lower() or "circle" in name.lower() else options:
        try:
            if works(case):
                return case, ""
        except Exception:  # the next one
            continue
    return None, "no way to call it was found"


def _required(function: Callable) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
