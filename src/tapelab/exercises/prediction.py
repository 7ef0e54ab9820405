"""A prediction: the learner commits to a guess, then runs, then sees the result beside the guess."""

import ast
import dataclasses
from typing import Any

from tapelab.exercises import compare, deadline, feedback

import numpy as np
from IPython.display import Markdown, display

SECONDS = 5.0  # for a guess to be compared
_MOST = 40  # numbers that are shown one by one


@dataclasses.dataclass(eq=False)
class Prediction:
    """One prediction. In a notebook: `guess(...)` before the run, `reveal(result)` after it.

    Attributes:
        identifier: the sheet's name and the name in it, such as "recording_control.size_in_block".
        remarks: pairs of a guess that people make and what leads to it: (7.0, "That is the true derivative: …").
        options: for a choice, the strings to choose from.
        rtol: how near a number must come, relative to the result.
    """

    identifier: str
    remarks: tuple[tuple[Any, str], ...] = ()
    options: tuple[str, ...] = ()
    rtol: float = 0.01
    _guess: Any = dataclasses.field(default=..., init=False, repr=False)
    _was_right: bool = dataclasses.field(default=False, init=False, repr=False)

    @property
    def name(self) -> str:
        """What the prediction is called in its module."""
        return self.identifier.partition(".")[2]

    def guess(self, value: Any, *others: Any) -> None:
        """Commit to a guess: a number, a shape, None, True or False, a string, or a list of these.

        Several values are a list: `guess(8, 12)` is `guess([8, 12])`. With `...` there is no guess, and `reveal` shows
        the result alone. Words, such as "sixty", are no guess unless the prediction asks for words.
        """
        value = [value, *others] if others else value
        value = value if self.options else _unquoted(value)
        self._guess, self._was_right = ... if compare.has_gap(value) else value, False
        if self._guess is ...:
            told = "No guess yet. Put yours in place of `...`, and run this cell before you go on."
        elif _in_words(value) and not self.options and not any(_in_words(guess) for guess, _ in self.remarks):
            told, self._guess = f"A number is asked for (or a shape, or None); {_shown(value)} is in words.", ...
        elif self.options and (option := self._option(value)) is None:
            told, self._guess = feedback.choose_one(self.options), ...
        else:
            self._guess = option if self.options else value
            told = f"Your guess: {_shown(self._guess)}. Now run on."
        display(_Told(told))

    def reveal(self, result: Any) -> None:
        """Show the result beside the guess, and whether they agree; the notebook's text says why. Never raises."""
        if self._guess is ...:
            display(_Told(f"**Result:** {_shown(result)}"))
            return
        right = self._agrees(result)
        lines = [f"{'✓' if right else '✗'} **Your guess:** {_shown(self._guess)} · **Result:** {_shown(result)}"]
        if right:
            self._was_right = True
            lines.append("Your guess was right.")
        elif self._was_right:  # the cell was changed since
            lines.append("Your guess was right for the cell as it stood.")
        else:
            said = [text for guess, text in self.remarks if self._same(self._guess, guess)]
            if type(self._guess) is int and _plain(result) == (self._guess,):
                said = [f"The number is right. A shape is a tuple, also with one axis: `({self._guess},)`."]
            lines.append(said[0] if said else "Your guess was another. Read on for the reason.")
        display(_Told("\n\n".join(lines)))

    def _option(self, guess: Any) -> str | None:
        """The option that a guess means, whatever its capitals and quotes (1 for "1", None for "None"), or None."""
        said = str(guess).strip().casefold()
        return next((option for option in self.options if option.casefold() == said), None)

    def _agrees(self, result: Any) -> bool:
        return self._same(self._guess, _plain(result))

    def _same(self, guess: Any, other: Any) -> bool:
        try:
            found = deadline.run(
                lambda: compare.difference(
                    _listed(guess), _listed(other), rtol=self.rtol, atol=1e-9, check_dtype=False
                ),
                SECONDS,
            )
        except Exception:  # a guess that cannot be compared is not the result
            return False
        return found is None


class _Told(Markdown):
    """Markdown that reads as plain text where a front-end shows no Markdown."""

    def __repr__(self) -> str:
        return self.data.replace("**", "")


def _in_words(guess: Any) -> bool:
    """Whether a guess is a string, or a list or tuple with one in it."""
    return any(map(_in_words, guess)) if type(guess) in (list, tuple) else isinstance(guess, str)


def _unquoted(guess: Any) -> Any:
    """A guess without quotes that are not needed: "None" as None, "28" as 28, also inside lists and tuples."""
    if type(guess) in (list, tuple):
        return type(guess)(map(_unquoted, guess))
    try:
        return ast.literal_eval(guess) if isinstance(guess, str) else guess
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # words, or what no parser takes
        return guess


def _plain(result: Any) -> Any:
    """A result as what people guess: a shape as a tuple, a scalar tensor as a number."""
    if hasattr(result, "as_list"):
        return tuple(result.as_list())
    if compare.is_array(result) and np.ndim(result) == 0:
        return np.asarray(result).item()
    if compare.is_array(result) and np.ndim(result) == 1 and np.size(result) <= _MOST:
        return np.asarray(result).tolist()
    if type(result) is list:
        return [_plain(part) for part in result]
    return result


def _listed(value: Any) -> Any:
    """An array as nested lists, so that a guess may be either; anything else as it is."""
    return np.asarray(value).tolist() if compare.is_array(value) and np.size(value) <= 1000 else value


def _shown(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, float):
        return f"`{value:.4g}`"
    if compare.is_array(value) and np.size(value) <= _MOST:
        return f"`{np.array2string(np.asarray(value), precision=4, threshold=20)}`"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_shown(part).strip("`") for part in value)
        inner += "," if isinstance(value, tuple) and len(value) == 1 else ""
        return f"`({inner})`" if isinstance(value, tuple) else f"`[{inner}]`"
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, np.number, type(None))):
        return f"`{value}`"
    return compare.describe(value)
