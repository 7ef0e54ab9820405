"""Hold an answer against what was expected, and name the way in which it differs.

Shape and dtype come first, then the values. A difference that a known slip explains (transposed, summed over an axis,
the sign, a constant factor) is named; for the rest, the first wrong entry is.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tapelab.exercises import pictures

import numpy as np
import tensorflow as tf

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


@dataclasses.dataclass(frozen=True)
class Difference:
    """One way in which an answer differs.

    Attributes:
        code: a short stable key.
        text: a sentence or two, Markdown, without the answer's name.
        picture: None, or a function that draws the answer beside what is right.
        wrong: for arrays of the expected shape, which entries are wrong (boolean, that shape); else None.
    """

    code: str
    text: str
    picture: Callable | None = None
    wrong: np.ndarray | None = None


def has_gap(answer: Any) -> bool:
    """Return whether an answer still holds the starter's `...`: itself, or anywhere in lists, tuples and dicts."""
    if isinstance(answer, dict):
        return any(has_gap(value) for value in answer.values())
    if type(answer) in (list, tuple):
        return any(has_gap(value) for value in answer)
    return answer is ...


def is_array(value: Any) -> bool:
    """Return whether a value is a tensor, a variable (TensorFlow's or Keras's) or a NumPy array."""
    return tf.is_tensor(value) or isinstance(value, (tf.Variable, tf.IndexedSlices, np.ndarray)) or _is_keras(value)


def _is_keras(value: Any) -> bool:
    return isinstance(value, tf.keras.Variable) if hasattr(tf.keras, "Variable") else False


def difference(
    answer: Any,
    expected: Any,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-6,
    axes: Sequence[str] = (),
    name: str = "",
    check_dtype: bool = True,
    tell: bool = False,
) -> Difference | None:
    """Return the first `Difference` between an answer and what is expected, or None.

    Args:
        answer: anything at all.
        expected: None, a bool, a string, a number, an array or tensor, or a list, tuple or dict of these. A tuple of
            integers (and None, for an unknown size) is a shape, for which a list or a `tf.TensorShape` will do.
        rtol, atol: tolerances for floating-point values, as in `np.isclose`.
        axes: what the axes of an expected array mean, such as ("output", "input"), to name the first wrong entry.
        name: what the part of a structure is called, such as "the gradient".
        check_dtype: whether a tensor must have the expected array's dtype. A NumPy array need not: float64 is right for
            float32.
        tell: whether a lone number that is wrong is shown beside the right one.
    """
    prefix = _prefix(name)
    options = {"rtol": rtol, "atol": atol, "axes": axes, "check_dtype": check_dtype, "tell": tell}
    if expected is None or answer is None:
        return None if answer is expected else _none(answer, expected, prefix)
    if isinstance(answer, tf.TensorShape) and isinstance(expected, (tuple, list)):
        answer = tuple(answer.as_list())
    if isinstance(expected, dict):
        return _in_dict(answer, expected, name, **options)
    if isinstance(expected, str):
        return _text(answer, expected, prefix)
    if isinstance(expected, (list, tuple)):
        if all(size is None or type(size) is int for size in expected):
            return _sizes(answer, tuple(expected), prefix)
        return _in_sequence(answer, expected, name, **options)
    if isinstance(expected, (bool, np.bool_)):
        if isinstance(answer, (bool, np.bool_)):
            return None if bool(answer) == bool(expected) else Difference("other", f"{prefix}it is not {answer}.")
        return _kind(answer, "True or False", prefix)
    return _array(answer, expected, prefix, **options)


def describe(value: Any) -> str:
    """Return in a few words what a value is, without reading its entries."""
    if value is None or isinstance(value, (bool, np.bool_)):
        return f"`{value}`"
    if is_array(value):
        return f"a tensor of shape {_shape(value)} and dtype {_dtype(value)}"
    if isinstance(value, _NUMBERS):
        return f"the number {value!r}" if not isinstance(value, int) or value.bit_length() < 200 else "a huge integer"
    if callable(value):
        return "a function"
    article = "an" if type(value).__name__[0].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _prefix(name: str) -> str:
    return f"In {name}: " if name else ""


def _none(answer: Any, expected: Any, prefix: str) -> Difference:
    if answer is None:
        shape = type(expected) is tuple and all(size is None or type(size) is int for size in expected)
        what = "a shape" if shape else describe(expected) if is_array(expected) else "a value"
        return Difference("none", f"{prefix}you gave `None`, and there is {what}.")
    return Difference("not_none", f"{prefix}you gave {describe(answer)}; there is none here, so it should be `None`.")


def _kind(answer: Any, expected: str, prefix: str) -> Difference:
    if callable(answer) and not is_array(answer):
        return Difference("function", f"{prefix}you gave the function itself. Call it, and give what it returns.")
    return Difference("type", f"{prefix}you gave {describe(answer)}; expected {expected}.")


def _text(answer: Any, expected: str, prefix: str) -> Difference | None:
    if not isinstance(answer, str):
        return _kind(answer, 'a string in quotes, such as "tanh"', prefix)
    if answer.strip().casefold() == expected.casefold():
        return None
    shown = answer if len(answer) <= 40 else answer[:40] + " …"
    return Difference("other", f'{prefix}it is not "{shown}".')


def _sizes(answer: Any, expected: tuple[int | None, ...], prefix: str) -> Difference | None:
    if type(answer) is int and len(expected) == 1:
        return Difference("not_a_tuple", f"{prefix}a shape is a tuple, also with one axis: `({answer},)`.")
    if type(answer) not in (tuple, list):
        if is_array(answer):
            return Difference("tensor", f"{prefix}you gave {describe(answer)}; expected a tuple of integers.")
        return _kind(answer, "a tuple of integers", prefix)
    answer = tuple(answer)
    if not all(size is None or (isinstance(size, (int, np.integer)) and not isinstance(size, bool)) for size in answer):
        return Difference("type", f"{prefix}expected a tuple of integers.")
    if answer == expected:
        return None
    shown = answer if len(answer) <= 8 else "(…)"
    if len(answer) != len(expected):
        fewer = "few" if len(answer) < len(expected) else "many"
        return Difference("rank", f"{prefix}{shown} has too {fewer} entries: {len(answer)}. Count again.")
    if sorted(map(str, answer)) == sorted(map(str, expected)):
        return Difference("order", f"{prefix}{shown} has the right entries in another order. Which come first?")
    return Difference("sizes", f"{prefix}{shown} has the right number of entries; not all of them are right.")


def _in_sequence(answer: Any, expected: Sequence[Any], name: str, **options: Any) -> Difference | None:
    if not isinstance(answer, (list, tuple)):
        return _kind(answer, f"{len(expected)} values, as a list or tuple", _prefix(name))
    if len(answer) != len(expected):
        return Difference("length", f"{_prefix(name)}you gave {len(answer)} values; expected {len(expected)}.")
    parts = [
        (f"value {place + 1} of {len(expected)}", *pair)
        for place, pair in enumerate(zip(answer, expected, strict=True))
    ]
    return _in_parts(parts, name, **options)


def _in_dict(answer: Any, expected: dict[Any, Any], name: str, **options: Any) -> Difference | None:
    if not isinstance(answer, dict):
        return _kind(answer, f"a dict with the keys {', '.join(map(repr, expected))}", _prefix(name))
    missing = [key for key in expected if key not in answer]
    if missing:
        return Difference("keys", f"{_prefix(name)}the key {missing[0]!r} is missing.")
    return _in_parts([(key, answer[key], other) for key, other in expected.items()], name, **options)


def _in_parts(parts: Iterable[tuple[Any, Any, Any]], name: str, **options: Any) -> Difference | None:
    for label, answer, expected in parts:
        found = difference(answer, expected, name=f"{name}, {label}" if name else label, **options)
        if found:
            return found
    return None


def _shape(value: Any) -> tuple[int | None, ...]:
    return tuple(value.shape)


def _dtype(value: Any) -> str:
    return tf.as_dtype(value.dtype).name


def _read(value: Any) -> np.ndarray:
    """An array or number as NumPy: the reading of a lazily made or hostile object may raise anything."""
    if isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _array(
    answer: Any,
    expected: Any,
    prefix: str,
    *,
    rtol: float,
    atol: float,
    axes: Sequence[str],
    check_dtype: bool,
    tell: bool,
) -> Difference | None:
    if not is_array(answer):
        if isinstance(answer, (list, tuple)) or not isinstance(answer, _NUMBERS):
            return _kind(answer, describe(expected) if is_array(expected) else "a number", prefix)
        try:
            answer, check_dtype = np.asarray(float(answer.real) if not isinstance(answer, complex) else answer), False
        except OverflowError:
            return Difference("values", f"{prefix}that number is too large.")
    check_dtype = check_dtype and is_array(expected) and not isinstance(answer, np.ndarray)
    right = _read(expected)
    shape = _shape(answer)
    if None in shape or (tf.is_tensor(answer) and tf.is_symbolic_tensor(answer)):
        return Difference("symbolic", f"{prefix}you gave a symbolic tensor, of a graph: it has no values to look at.")
    if _dtype(answer) in ("string", "variant", "resource"):
        return Difference("type", f"{prefix}the dtype is {_dtype(answer)}; expected numbers.")
    if shape != right.shape:
        return _wrong_shape(answer, right, prefix, axes)
    if check_dtype and _dtype(answer) != _dtype(expected):
        fix = "Take the dtype from the input: a tensor made without one, or with one written down, has its own."
        text = f"{prefix}the dtype is {_dtype(answer)}; expected {_dtype(expected)}. {fix}"
        return Difference("dtype", text)
    mine = _read(answer)
    wrong = ~np.isclose(mine, right, rtol=rtol, atol=atol, equal_nan=True)
    return _wrong_values(mine, right, wrong, prefix, axes, tell) if wrong.any() else None


def _wrong_shape(answer: Any, right: np.ndarray, prefix: str, axes: Sequence[str]) -> Difference:
    shape = _shape(answer)
    generic = f"{prefix}the shape is {shape}; expected {right.shape}."
    if math.prod(shape) > 4 * max(right.size, 256):  # no slip that is known below makes it larger
        return Difference("shape", generic)
    mine = _read(answer)
    code, text = _shape_slip(mine, right, axes) or ("shape", "")
    return Difference(code, f"{generic} {text}".strip(), picture=pictures.beside(mine, right, axes))


def _shape_slip(mine: np.ndarray, right: np.ndarray, axes: Sequence[str]) -> tuple[str, str] | None:
    """The known slip that explains an array of another shape, as (code, text), or None."""

    def equals(candidate: np.ndarray) -> bool:
        return candidate.shape == mine.shape and np.allclose(mine, candidate, rtol=1e-3, atol=1e-5, equal_nan=True)

    if right.ndim >= 2 and equals(right.T):
        return "transpose", "This is the transpose."
    for first, second in itertools.combinations(range(right.ndim), 2):
        if equals(np.swapaxes(right, first, second)):
            which = f"{_axis(first, axes)} and {_axis(second, axes)}"
            return "axes_swapped", f"The values are right, with {which} exchanged."
    if equals(np.squeeze(right)) or (mine.size == right.size and np.array_equal(np.squeeze(mine), np.squeeze(right))):
        return "extra_axis", "An axis of size 1 is missing or too many."
    for axis in range(right.ndim):
        total = right.sum(axis=axis)
        if equals(total) or equals(np.expand_dims(total, axis)):
            gradient = " That is what `gradient` gives." if _means(axis, axes) == "output" else ""
            return "summed", f"These are sums over {_axis(axis, axes)}.{gradient}"
        if right.shape[axis] and equals(right.mean(axis=axis)):
            return "averaged", f"These are means over {_axis(axis, axes)}."
    if right.ndim > 1 and equals(right.sum(axis=tuple(range(right.ndim - 1)))):
        return "summed", "These are sums over all axes but the last."
    if mine.ndim == 0 and right.size and equals(right.sum()):
        return "summed_to_scalar", "This is the sum of all entries."
    if mine.ndim == 0 and right.size and equals(right.mean()):
        return "averaged_to_scalar", "This is the mean of all entries."
    if mine.size == right.size and equals(right.reshape(mine.shape)):
        return "reshaped", "The values are right, in another arrangement."
    if right.ndim == 2 and mine.ndim == 1 and equals(np.diagonal(right)):
        return "diagonal", "This is the diagonal only."
    return None


def _wrong_values(
    mine: np.ndarray, right: np.ndarray, wrong: np.ndarray, prefix: str, axes: Sequence[str], tell: bool
) -> Difference:
    close = {"rtol": 1e-3, "atol": 1e-6, "equal_nan": True}
    first = _first_wrong(mine, right, wrong, axes, tell)
    everywhere = ", everywhere" if right.ndim else ""

    def found(code: str, text: str) -> Difference:
        if prefix:
            text = text[0].lower() + text[1:]
        return Difference(code, prefix + text, wrong=wrong, picture=pictures.beside(mine, right, axes, wrong))

    if mine.dtype.kind in "fc" and np.any(~np.isfinite(mine) & np.isfinite(right)):
        return found("not_finite", f"there is a NaN or an infinity. {first}")
    if right.ndim == 2 and mine.shape[0] == mine.shape[1] and np.allclose(mine, right.T, **close):
        return found("transpose", f"this is the transpose. {first}")
    if np.allclose(mine, -right, **close):
        return found("sign", f"the sign is the opposite{everywhere}.")
    if not mine.any():
        return found("zeros", f"it is zero{everywhere}.")
    nonzero = right != 0
    if nonzero.any() and np.allclose(mine[~nonzero], 0, atol=1e-6):
        ratios = mine[nonzero] / right[nonzero]
        # A lone number has a ratio whatever it is; there, a factor is worth naming only where it is a plain one.
        plain = ratios.size > 1 or any(np.isclose(ratios[0], other, rtol=1e-5) for other in (2, 0.5, -2, -0.5))
        if plain and np.allclose(ratios, ratios.flat[0], rtol=1e-3):
            return found("factor", f"it is {_number(ratios.flat[0])} times what it should be{everywhere}.")
    if np.any(right < 0) and np.allclose(mine, np.abs(right), **close):
        return found("absolute", "these are the absolute values: the signs are lost.")
    if mine.size > 1 and np.all(mine == mine.flat[0]) and not np.all(right == right.flat[0]):
        return found("constant", f"all entries are equal, to {_number(mine.flat[0])}. {first}")
    return found("values", first)


def _first_wrong(mine: np.ndarray, right: np.ndarray, wrong: np.ndarray, axes: Sequence[str], tell: bool) -> str:
    place = tuple(int(index[0]) for index in np.nonzero(wrong)) if right.ndim else ()
    share = f" ({int(wrong.sum())} of {wrong.size} entries are wrong.)" if wrong.size > 1 else ""
    if not place:
        return f"You have {_number(mine)}{f', not {_number(right)}' if tell else ''}."
    named = ", ".join(f"{_means(axis, axes) or ''} {index}".strip() for axis, index in enumerate(place))
    return f"The first wrong entry is [{named}]: you have {_number(mine[place])}, not {_number(right[place])}.{share}"


def _means(axis: int, axes: Sequence[str]) -> str | None:
    return axes[axis] if axis < len(axes) else None


def _axis(axis: int, axes: Sequence[str]) -> str:
    return f"axis {axis}" + (f" ({_plural(_means(axis, axes))})" if _means(axis, axes) else "")


def _plural(word: str) -> str:
    if word.endswith("y"):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "ch")) else "s")


def _number(value: complex | np.generic) -> str:
    return f"{complex(value):.4g}" if np.iscomplexobj(value) else f"{float(value):.4g}"
