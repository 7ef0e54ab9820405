"""The data sets: shapes, ranges, splits, and a clear word when MNIST is out of reach."""

from tapelab import data

import numpy as np
import pytest


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def test_digits_have_the_documented_shapes_and_dtypes(digits):
    assert digits.x_train.shape == (1437, 8, 8)
    assert digits.x_test.shape == (360, 8, 8)
    assert digits.y_train.shape == (1437,)
    assert digits.y_test.shape == (360,)
    assert digits.x_train.dtype == digits.x_test.dtype == np.float32
    assert digits.y_train.dtype == digits.y_test.dtype == np.int32


def test_digits_run_from_zero_to_one(digits):
    assert digits.x_train.min() == 0.0
    assert digits.x_train.max() == 1.0


def test_every_class_keeps_its_share_of_the_test_part(digits):
    assert np.bincount(digits.y_test).tolist() == [36, 36, 35, 37, 36, 37, 36, 36, 35, 36]


def test_images_keep_their_labels():
    # The mean image of a class in one split is close to that in another split, and far from the next class's.
    one, two = data.load(seed=1), data.load(seed=2)
    means = [[part.x_train[part.y_train == label].mean(axis=0) for label in range(10)] for part in (one, two)]
    for label in range(10):
        same = np.abs(means[0][label] - means[1][label]).max()
        other = np.abs(means[0][label] - means[1][(label + 1) % 10]).max()
        assert same < 0.1 < 0.2 < other


def test_the_split_follows_the_seed():
    first, again, other = data.load(seed=1), data.load(seed=1), data.load(seed=2)
    np.testing.assert_array_equal(first.x_test, again.x_test)
    assert not np.array_equal(first.x_test, other.x_test)


def test_mnist_out_of_reach_says_what_to_do(monkeypatch):
    from tapelab.runtime import tf

    def fail():
        raise Exception("URL fetch failure")  # what Keras raises

    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", fail)
    with pytest.raises(RuntimeError, match=r'could not be downloaded.*dataset = "digits"'):
        data.load("mnist")


def test_mnist_is_scaled_like_the_digits(monkeypatch):
    from tapelab.runtime import tf

    images = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    labels = np.array([7], dtype=np.uint8)
    monkeypatch.setattr(tf.keras.datasets.mnist, "load_data", lambda: ((images, labels), (images, labels)))
    loaded = data.load("mnist")
    np.testing.assert_allclose(loaded.x_test, [[[0, 1], [0.2, 0.4]]], rtol=1e-6)
    assert loaded.x_train.dtype == np.float32
    assert loaded.y_train.dtype == np.int32
    assert loaded.y_train.tolist() == [7]
