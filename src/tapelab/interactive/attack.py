"""A sign-gradient attack on a classifier: its strength, the accuracy that is left, and what one image looks like.

The gradients come from the caller, once. Moving a control takes forward passes only.
"""

import functools
from collections.abc import Callable

from tapelab import plots
from tapelab.interactive.figure import Choice, Figure, Slider

import matplotlib.figure
import numpy as np

Model = Callable[[np.ndarray], np.ndarray]  # from images to logits
STRONGEST = 0.3  # part of a pixel's range
STEP = 0.02
_LINES = ((plots.RED, "o-"), (plots.BLUE, "s--"), (plots.GREEN, "^:"), (plots.ORANGE, "v-."))


def attacked(images: np.ndarray, signs: np.ndarray, strength: float) -> np.ndarray:
    """Move every pixel by `strength` in the direction of its sign, and cut to the range of an image.

    Args:
        images: shape (..., height, width), floating-point, values from 0 to 1.
        signs: the same shape, the signs of the loss's gradient with respect to the images: -1, 0 or 1.
        strength: part of a pixel's range, at least 0.

    Returns:
        An array of the images' shape and dtype, values from 0 to 1.

    Raises:
        ValueError: if the shapes differ, or `strength` is negative.
    """
    images, signs = np.asarray(images), np.asarray(signs)
    if images.shape != signs.shape:
        raise ValueError(f"images has shape {images.shape}, signs has {signs.shape}; expected one shape for both")
    if not strength >= 0:
        raise ValueError(f"strength is {strength!r}; expected a number that is at least 0")
    return np.clip(images + images.dtype.type(strength) * signs, 0, 1).astype(images.dtype)


def accuracies(
    model: Model, images: np.ndarray, labels: np.ndarray, signs: np.ndarray, strengths: np.ndarray
) -> np.ndarray:
    """Return the fraction of images that a model labels correctly under attacks of several strengths.

    Args:
        model: a function from images, shape (batch, height, width), to logits, shape (batch, classes).
        images, signs: shape (batch, height, width), as in `attacked`.
        labels: shape (batch,), integers.
        strengths: the strengths to try, shape (strengths,).

    Returns:
        float64, shape (strengths,), values from 0 to 1.
    """
    labels = np.asarray(labels)
    answers = (np.argmax(model(attacked(images, signs, strength)), axis=-1) for strength in strengths)
    return np.array([np.mean(answer == labels) for answer in answers])


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of logits over the last axis, as float64."""
    logits = np.asarray(logits, np.float64)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def draw(
    figure: matplotlib.figure.Figure,
    *,
    models: dict[str, Model],
    images: np.ndarray,
    labels: np.ndarray,
    signs: dict[str, np.ndarray],
    curves: dict[str, tuple[np.ndarray, np.ndarray]],
    model: str,
    strength: float,
    image: int,
) -> None:
    """Draw the curves of accuracy with the present strength, one image before and after, and the model's answer.

    Args:
        figure: a Matplotlib figure, empty.
        models: a dict from a name to a function from images to logits.
        images, labels: as in `accuracies`.
        signs: a dict from a model's name to the signs for its attack, each of the images' shape.
        curves: a dict from a model's name to a pair of strengths and accuracies.
        model: the name of the model that is attacked.
        strength: part of a pixel's range.
        image: which image is shown.
    """
    curve, before, after, answer = figure.subplots(1, 4, width_ratios=[1.7, 1, 1, 1.3])
    for (name, (strengths, kept)), (colour, style) in zip(curves.items(), _LINES, strict=False):
        width = 2.0 if name == model else 0.9
        curve.plot(strengths, kept, style, color=colour, linewidth=width, markersize=3, label=name)
    (now,) = accuracies(models[model], images, labels, signs[model], [strength])
    curve.axvline(strength, color=plots.GREY, linewidth=0.8)
    curve.plot(strength, now, "o", color="black", markersize=8)
    curve.set(
        title=f"{model}: {now:.0%} right",
        xlabel="attack strength",
        ylabel="accuracy (fraction right)",
        ylim=(-0.03, 1.03),
    )
    curve.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2))  # below: the curves go anywhere

    index = int(image)
    chosen = np.asarray(images)[index]
    changed = attacked(chosen, np.asarray(signs[model])[index], strength)
    both = probabilities(models[model](np.stack([chosen, changed])))
    for ax, pixels, likely, title in (
        (before, chosen, both[0], "test image"),
        (after, changed, both[1], f"attacked, {strength:.2f}"),
    ):
        ax.imshow(pixels, cmap="gray", vmin=0, vmax=1)
        ax.set(title=title, xlabel=f"answer: {likely.argmax()}", xticks=[], yticks=[])

    classes = np.arange(both.shape[1])
    label = int(labels[index])
    colours = [plots.BLUE if one == label else plots.ORANGE for one in classes]
    answer.barh(classes, both[1], color=colours)
    answer.set(title=f"attacked ({label} is right)", xlabel="probability", ylabel="class", xlim=(0, 1), yticks=classes)
    answer.invert_yaxis()


def figure(
    models: dict[str, Model],
    images: np.ndarray,
    labels: np.ndarray,
    signs: dict[str, np.ndarray],
    *,
    shown: int = 10,
    strongest: float = STRONGEST,
) -> Figure:
    """Return a figure with controls for the attack's strength, the model and the image.

    Args:
        models: a dict from a name to a function from images to logits. One to four.
        images: shape (batch, height, width), floating-point, values from 0 to 1. The first ones can be shown, so put
            interesting ones there.
        labels: shape (batch,), integers.
        signs: a dict from each model's name to the signs of its loss's gradient, each of the images' shape.
        shown: how many images one can choose from.
        strongest: the end of the slider of strengths.

    Raises:
        ValueError: if there are no models or more than four, or `signs` is not for the same models.
    """
    if not 1 <= len(models) <= len(_LINES):
        raise ValueError(f"models has {len(models)} entries; expected 1 to {len(_LINES)}")
    if set(models) != set(signs):
        raise ValueError(f"models is for {', '.join(models)}; signs is for {', '.join(signs)}; expected the same names")
    strengths = np.arange(0, strongest + STEP / 2, STEP)
    curves = {name: (strengths, accuracies(models[name], images, labels, signs[name], strengths)) for name in models}
    return Figure(
        functools.partial(draw, models=models, images=images, labels=labels, signs=signs, curves=curves),
        {
            "strength": Slider(0.0, strongest, 0.1, 0.01, "attack strength"),
            "model": Choice(tuple(models), "model"),
            "image": Slider(0, min(shown, len(labels)) - 1, 0, 1, "image"),
        },
        size=(10.0, 3.9),
    )
