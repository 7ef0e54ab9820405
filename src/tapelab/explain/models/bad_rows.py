"""What is not finite in a batch as it came in, and which rows of a batch make a step not finite."""

from collections.abc import Callable, Sequence
from typing import Any

from tapelab.explain.ground.measure import NotFinite
from tapelab.explain.ground.rendering import listed
from tapelab.explain.missing.question import leaves
from tapelab.explain.models import model_step

import numpy as np
import tensorflow as tf

_MOST = 3  # where more rows do it alone, it is no matter of rows
_PARTS = ("x", "y", "sample_weight")


def not_finite_in(batch: Any) -> list[NotFinite]:
    """Return what is not finite in a batch, as `tapelab.explain.models.model_step.batch_of` returns it."""
    named = list(zip(_PARTS, batch, strict=False)) if isinstance(batch, (tuple, list)) else [("x", batch)]
    found = [leaf for part, structure in named for leaf in leaves(structure, None, part)]
    looked = [NotFinite.of(name, value) for value, _, name in found if value is not None]
    return [one for one in looked if one is not None]


def is_sound(model: tf.keras.Model, batch: Any, weights: model_step.Weights) -> bool:
    """Whether loss and gradients of a step, run eagerly with these weights, are finite. The model is left as it was."""
    with model_step.unchanged(model, weights):
        tape, parts = model_step.run(model, None, batch, scale=1.0)
        found = [(part.loss, tape.gradient(part.loss, part.variables)) for part in parts]
    return all(one is None or is_finite(one) for one in tf.nest.flatten(found, expand_composites=True))


def is_finite(value: Any) -> bool:
    """Whether a tensor, a variable or a number has neither NaN nor an infinity."""
    value = tf.convert_to_tensor(value)
    return not value.dtype.is_floating or bool(tf.reduce_all(tf.math.is_finite(value)))


def about_rows(batch: Any, in_batch: list[NotFinite], is_sound: Callable[[Any], bool]) -> tuple[list[int], list[str]]:
    """Find the rows of a batch without which a step is in order.

    Args:
        batch: as `tapelab.explain.models.model_step.batch_of` returns it.
        in_batch: as `not_finite_in` returns it.
        is_sound: says of a batch whether the step with it is in order.

    Returns:
        (rows, what to say about them): lists, of integers in order, empty where it is no matter of a few rows, and of
        texts.
    """
    said = [f"Its batch was not finite as it came in: {'; '.join(map(str, in_batch))}."] if in_batch else []
    rows = sorted({row for one in in_batch for row in one.rows})
    try:
        if not in_batch:
            rows = _alone_at_fault(batch, is_sound)
        others = np.setdiff1d(np.arange(row_count(batch)), rows)
        if not rows or not others.size or not is_sound(_selected(batch, others)):
            return [], said
    except (ValueError, TypeError, tf.errors.OpError):  # a step that takes no batch of another size
        return [], said
    some = listed(list(map(str, rows)), _MOST)
    return rows, [*said, f"Without row{'s' * (len(rows) > 1)} {some} of the batch the step is in order."]


def _alone_at_fault(batch: Any, is_sound: Callable[[Any], bool]) -> list[int]:
    """The rows each of which makes the step not finite, alone; none where they are more than a few."""
    found = []

    def search(rows: np.ndarray) -> None:
        if len(found) > _MOST or is_sound(_selected(batch, rows)):
            return
        if len(rows) == 1:
            found.append(int(rows[0]))
            return
        search(rows[: len(rows) // 2])
        search(rows[len(rows) // 2 :])

    search(np.arange(row_count(batch)))
    return found if len(found) <= _MOST else []


def row_count(batch: Any) -> int:
    """Return how many examples a batch has."""
    return int(tf.nest.flatten(batch)[0].shape[0])


def _selected(batch: Any, rows: np.ndarray | Sequence[int]) -> Any:
    """The batch with some of its rows only."""
    count = row_count(batch)

    def select(value: Any) -> Any:
        return tf.gather(value, rows) if value is not None and value.shape[:1] == [count] else value

    return tf.nest.map_structure(select, batch)
