"""What this package raises and warns beyond plain ValueError and TypeError."""


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


class SparsityError(RuntimeError):
    """A sparse matrix of derivatives does not agree with a product: the pattern leaves out an entry."""


class FallbackWarning(RuntimeWarning):
    """The fast way to compute a derivative does not handle the function; a slower one was taken."""


# How many calls lie between a warning and the line that asked for the derivative; one of them keeps AutoGraph out.
CALLER = 7
