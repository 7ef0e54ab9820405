"""The figure of a sign-gradient attack: what it computes, and that every control moves it."""

from tapelab.interactive import attack

import numpy as np
import pytest

CLASSES, SIDE = 3, 4


def linear_model(seed=0):
    """Weights, shape (pixels, classes), and a function from images to logits."""
    weights = np.random.default_rng(seed).normal(size=(SIDE * SIDE, CLASSES)).astype(np.float32)
    return weights, lambda images: np.reshape(images, (-1, SIDE * SIDE)) @ weights


def problem(seed=0, examples=60):
    """Images that the linear model labels correctly, their labels, and the signs of the cross-entropy's gradient."""
    weights, model = linear_model(seed)
    images = np.random.default_rng(seed + 1).uniform(size=(examples, SIDE, SIDE)).astype(np.float32)
    labels = np.argmax(model(images), axis=1)
    errors = attack.probabilities(model(images)) - np.eye(CLASSES)[labels]
    return model, images, labels, np.sign(errors @ weights.T).reshape(images.shape)


@pytest.fixture
def shown():
    model, images, labels, signs = problem()
    other = linear_model(seed=5)[1]
    return attack.figure({"plain": model, "other": other}, images, labels, {"plain": signs, "other": -signs}, shown=4)


def test_attacked_moves_every_pixel_by_the_strength_and_stays_in_the_range():
    images = np.array([[[0.5, 0.95], [0.05, 0.5]]], np.float32)
    signs = np.array([[[1, 1], [-1, 0]]], np.float32)
    changed = attack.attacked(images, signs, 0.1)
    np.testing.assert_allclose(changed, [[[0.6, 1.0], [0.0, 0.5]]], rtol=1e-6)
    assert changed.dtype == np.float32
    np.testing.assert_array_equal(attack.attacked(images, signs, 0.0), images)


def test_attacked_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match=r"images has shape \(2, 4, 4\), signs has \(4, 4\)"):
        attack.attacked(np.zeros((2, 4, 4)), np.zeros((4, 4)), 0.1)
    for strength in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            attack.attacked(np.zeros((4, 4)), np.zeros((4, 4)), strength)


def test_probabilities_are_the_softmax():
    np.testing.assert_allclose(attack.probabilities([[0.0, np.log(3.0)]]), [[0.25, 0.75]], rtol=1e-12)
    np.testing.assert_allclose(attack.probabilities([[1000.0, 1000.0]]), [[0.5, 0.5]], rtol=1e-12)


def test_accuracies_count_the_right_answers():
    images = np.stack([np.full((1, 1), value) for value in (0.2, 0.4, 0.6, 0.8)])

    def model(images):  # class 1 where the pixel is above one half
        return np.stack([0.5 - images[:, 0, 0], images[:, 0, 0] - 0.5], axis=1)

    labels, signs = np.array([0, 0, 1, 1]), np.array([1, 1, -1, -1]).reshape(4, 1, 1)
    np.testing.assert_array_equal(attack.accuracies(model, images, labels, signs, [0.0, 0.2, 0.4]), [1.0, 0.5, 0.0])


def test_the_attack_costs_accuracy_and_random_signs_cost_less():
    model, images, labels, signs = problem()
    strengths = [0.0, 0.1, 0.2, 0.3]
    kept = attack.accuracies(model, images, labels, signs, strengths)
    noise = np.random.default_rng(9).choice([-1.0, 1.0], size=signs.shape)
    assert kept[0] == 1.0
    assert np.all(np.diff(kept) <= 0)
    assert kept[-1] < attack.accuracies(model, images, labels, noise, strengths)[-1]


def test_every_end_is_drawn_with_titles_and_labels(shown):
    for values in shown.ends():
        axes = shown.still(**values).axes
        assert len(axes) == 4
        assert all(ax.get_title() for ax in axes)
        assert all(ax.get_xlabel() for ax in axes)
        assert f"{values['strength']:.2f}" in axes[2].get_title()
        assert axes[0].get_title().startswith(values["model"])


def test_the_picture_shows_the_chosen_image_and_its_change(shown):
    model, images, labels, signs = problem()
    curve, before, after, answer = shown.still(image=2, strength=0.2).axes
    np.testing.assert_array_equal(before.images[0].get_array(), images[2])
    np.testing.assert_allclose(after.images[0].get_array(), np.clip(images[2] + 0.2 * signs[2], 0, 1), rtol=1e-6)
    expected = attack.probabilities(model(attack.attacked(images[2:3], signs[2:3], 0.2)))[0]
    np.testing.assert_allclose([bar.get_width() for bar in answer.patches], expected, rtol=1e-6)
    (now,) = attack.accuracies(model, images, labels, signs, [0.2])
    assert now < 1.0
    assert curve.get_title() == f"plain: {now:.0%} right"


def test_the_legend_covers_no_curve(shown):
    still = shown.still()
    still.draw_without_rendering()
    curve = still.axes[0]
    legend = curve.get_legend().get_window_extent()
    assert legend.y1 < curve.xaxis.label.get_window_extent().y0, "below the axis and its label"
    assert legend.y0 >= 0
    assert legend.x0 >= 0


def test_moving_a_control_asks_for_no_curve_anew():
    model, images, labels, signs = problem()
    passes = []

    def counted(images):
        passes.append(len(images))
        return model(images)

    shown = attack.figure({"plain": counted}, images, labels, {"plain": signs})
    passes.clear()
    shown.still(strength=0.17)
    assert passes == [len(images), 2]  # the accuracy at this strength, and the image before and after


def test_figure_refuses_models_without_signs_and_too_many():
    model, images, labels, signs = problem()
    with pytest.raises(ValueError, match="models is for a; signs is for b"):
        attack.figure({"a": model}, images, labels, {"b": signs})
    with pytest.raises(ValueError, match="0 entries; expected 1 to 4"):
        attack.figure({}, images, labels, {})
