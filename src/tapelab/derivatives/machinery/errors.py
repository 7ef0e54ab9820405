"""What this package raises and warns beyond plain ValueError and TypeError."""

import sys
import warnings
from typing import Any

from tapelab.graphs.libraries import is_library


class UnconnectedSourceError(ValueError):
    """The function's result does not depend on a source, as far as the tape can see."""


class CoupledExamplesError(ValueError):
    """An example's outputs depend on another example's inputs, so a batch Jacobian would leave that out."""


class NotFiniteError(ValueError):
    """A derivative contains NaN or infinity, and the caller asked to be told."""


class SingularMatrixError(ValueError):
    """A matrix that the function inverts, solves with or factorises is singular, and so it has no derivative there."""


class MemoryLimitError(RuntimeError):
    """The result, or the work towards it, is predicted to need more memory than allowed."""


class FallbackWarning(RuntimeWarning):
    """The fast way to compute a derivative does not handle the function; a slower one was taken."""


class OutsideWarning(RuntimeWarning):
    """The function reads what cannot be looked at again: later calls go on with what was found at the first."""


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the caller's own line, however many calls of this package and of libraries lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


class Warnings:
    """What a caller was warned of: each thing once. A copy starts anew."""

    def __init__(self, name: str):
        self._name = name
        self._told: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_told": set()}

    def once(self, thing: str, message: str, category: type[Warning] = FallbackWarning) -> None:
        """Warn with a message, which goes on after the derivative's name, unless it was warned of this already."""
        if thing not in self._told:
            self._told.add(thing)
            warn_caller(f"{self._name} {message}", category)
