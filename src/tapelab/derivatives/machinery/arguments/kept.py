"""Whether a function leaves the sources as they are, so that examples that go one by one have the same weights."""

from collections.abc import Sequence

from tapelab.process.tensorflow import Tensors, tf

_ADVICE = (
    "evaluated for one example after the other, it would give each example other weights. Change the variable outside "
    "the function, or leave it out of wrt"
)


def refusal(name: str = "", where: str = "") -> ValueError:
    """Return the error for a function whose graph shows that it changes a variable of wrt."""
    return ValueError(f"{name}the function changes a variable of wrt{where}: {_ADVICE}")


def changed(before: Tensors, sources: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """Return whether sources differ from copies of them, a boolean."""
    return tf.reduce_any([_differs(old, new) for old, new in zip(before, sources, strict=True)])


def _differs(old: tf.Tensor, new: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Whether two tensors differ anywhere; NaN is NaN."""
    return tf.reduce_any((old != new) & ~(tf.math.is_nan(old) & tf.math.is_nan(new)))


def require_kept(name: str, found: tf.Tensor) -> None:
    """Raise ValueError if the sources were `changed`."""
    error = refusal(f"{name}: ")
    if not tf.executing_eagerly():
        tf.debugging.assert_equal(found, False, str(error))
    elif found:
        raise error
