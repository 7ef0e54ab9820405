"""The data sets that the notebooks train on: scikit-learn's bundled digits, and MNIST through Keras."""

from typing import NamedTuple

import numpy as np

NAMES = ("digits", "mnist")


class Images(NamedTuple):
    """Images of handwritten digits with their labels, split into a training and a test part.

    Attributes:
        x_train, x_test: float32, shape (examples, height, width), values from 0 to 1.
        y_train, y_test: int32, shape (examples,), values from 0 to 9.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(name: str = "digits", *, test_fraction: float = 0.2, seed: int = 0) -> Images:
    """Load a data set of handwritten digits.

    Args:
        name: ``"digits"``, 1797 images of 8 x 8 pixels that come with scikit-learn, or ``"mnist"``, 70000 images of
            28 x 28 pixels that Keras downloads once and keeps.
        test_fraction: the part of the digits that is held back, between 0 and 1. MNIST comes with its own split.
        seed: decides which digits are held back. Every class keeps its share of both parts.

    Returns:
        An `Images`.

    Raises:
        ValueError: for another name, or a fraction that is not between 0 and 1.
        RuntimeError: if MNIST is neither stored here nor can be downloaded.
    """
    if name not in NAMES:
        raise ValueError(f"dataset is {name!r}; expected one of {', '.join(map(repr, NAMES))}")
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction!r}; expected a number between 0 and 1")
    return _digits(test_fraction, seed) if name == "digits" else _mnist()


def _digits(test_fraction: float, seed: int) -> Images:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) / 16).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype(np.int32), test_size=test_fraction, random_state=seed, stratify=labels
    )
    return Images(x_train, y_train, x_test, y_test)


def _mnist() -> Images:
    from tapelab.process.tensorflow import tf

    try:
        (x_train, y_train), (x_test, y_test) = tf.keras.datasets.mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception when a download fails
        raise RuntimeError(
            "MNIST is not stored on this machine and could not be downloaded: Keras fetches it over the network the "
            'first time. Connect once, or use dataset = "digits", which needs no network.'
        ) from error
    return Images(
        (x_train / 255).astype(np.float32),
        y_train.astype(np.int32),
        (x_test / 255).astype(np.float32),
        y_test.astype(np.int32),
    )
