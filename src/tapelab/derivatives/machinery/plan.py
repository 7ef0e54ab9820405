"""What a transformation does for one signature of arguments, which mode, how compiled, how much memory."""

from dataclasses import dataclass

from tapelab.derivatives.machinery.memory import human

_COMPILED = {"xla": "compiled by XLA", "graph": "in a graph", "eager": "not compiled"}


def describe_way(way: str, compiled: str) -> str:
    """Name a way to compute a derivative, and how it is compiled, in words."""
    return f"{way}, {_COMPILED[compiled]}"


@dataclass(frozen=True)
class Plan:
    """How a derivative is computed, for one structure, shapes and dtypes of the arguments.

    Attributes:
        mode: "forward", "reverse", "reverse over reverse" for second derivatives, or "forward and reverse" for
            products with a Gauss-Newton matrix.
        passes: how many passes that takes: rows or columns of a Jacobian, rows of the largest source of a Hessian or
            all that its factors take, examples of a batch, directions of a
            Laplacian; 1 for a product with one vector.
        chunk: how many of them are made at once.
        bytes: the memory predicted for the result and the work towards it; None where nothing large is built, and a
            call takes a few times the memory of the function itself.
        way: what is computed how, in words.
        compiled: "xla", "graph" or "eager".
        given_up: a tuple of strings, the faster ways that were tried first, each with why it was given up.
        notes: a tuple of strings, what differs from plain TensorFlow.
    """

    mode: str
    passes: int = 1
    chunk: int = 1
    bytes: int | None = None
    way: str = ""
    compiled: str = ""
    given_up: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [describe_way(self.way, self.compiled)]
        if self.bytes is not None:
            lines += [f"{self.passes} passes, {self.chunk} at once, about {human(self.bytes)}"]
        return "\n".join([*lines, *[f"given up: {reason}" for reason in self.given_up], *self.notes])
