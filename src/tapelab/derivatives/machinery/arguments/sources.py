"""What to differentiate with respect to: arguments or variables."""

from collections.abc import Iterable, Sequence
from typing import Any

from tapelab.derivatives.machinery.arguments.structures import flatten, names
from tapelab.process.tensorflow import tf


class Sources:
    """What to differentiate with respect to: some of the arguments, or variables that the function reads.

    Args:
        argnums: the position of an argument, or a tuple of positions; each argument may be nested.
        wrt: variables, nested; then every argument is data.

    Raises:
        TypeError: if ``wrt`` holds anything but variables, or ``argnums`` anything but integers.
        ValueError: if there is no source, a variable is listed twice, or ``wrt`` is a model in place of its variables.
    """

    def __init__(self, argnums: int | tuple[int, ...], wrt: Any):
        self.variables: list[tf.Variable] | None = None
        if wrt is None:
            self.positions = argnums if isinstance(argnums, tuple) else (argnums,)
            self.single = not isinstance(argnums, tuple)
            if not self.positions:
                raise ValueError("argnums is empty: there is no source; name at least one argument, such as argnums=0")
            for position in self.positions:
                if isinstance(position, bool) or not isinstance(position, int) or position < 0:
                    raise TypeError(f"argnums is {argnums!r}; expected a position from 0, or a tuple of positions")
            return
        if argnums != 0:
            raise ValueError(f"wrt and argnums={argnums!r} are both given; the sources are variables or arguments")
        if hasattr(wrt, "trainable_variables"):
            raise ValueError(_of_owner(wrt))
        leaves: list[Any] = []
        self.description = flatten(wrt, leaves, numbers=True)
        self.names: list[str] = []
        self.variables = []
        for name, leaf in zip(names(self.description, "wrt"), leaves, strict=True):
            variable = leaf.value if isinstance(leaf, tf.keras.Variable) else leaf
            if not isinstance(variable, tf.Variable):
                raise TypeError(
                    f"{name} is a {type(leaf).__name__}; expected a variable. To differentiate with respect to a "
                    "tensor, make it an argument of the function and name it with argnums="
                )
            label = getattr(leaf, "path", variable.name)
            if any(variable is other for other in self.variables):
                raise ValueError(f"{name}, the variable {label!r}, is listed twice in wrt; list each variable once")
            self.variables.append(variable)
            self.names.append(f"{name} ({label!r})")
        if not self.variables:
            raise ValueError(
                f"wrt is {wrt!r}: there is no source. A Keras model has variables once it is built: call it on a batch "
                "first, then pass model.trainable_variables"
            )

    def take(self, args: Sequence[Any], name: str) -> tuple[Any, tuple[Any, ...]]:
        """Split positional arguments into the sources and the rest, which has None in their places."""
        try:
            taken = tuple([args[position] for position in self.positions])
        except IndexError:
            raise TypeError(
                f"{name} differentiates with respect to argument {max(self.positions)}, but got {len(args)} "
                "positional arguments; pass the sources by position, or set argnums="
            ) from None
        rest = list(args)
        for position in self.positions:
            rest[position] = None
        return taken[0] if self.single else taken, tuple(rest)

    def put(self, taken: Any, rest: Iterable[Any]) -> list[Any]:
        """Undo `take`."""
        args = list(rest)
        for position, arg in zip(self.positions, (taken,) if self.single else taken, strict=True):
            args[position] = arg
        return args


def _of_owner(owner: Any) -> str:
    """What to say where a model, a layer or a module was passed in place of its variables."""
    name = getattr(owner, "name", None) or type(owner).__name__
    if owner.trainable_variables:
        return f"wrt is the {type(owner).__name__} {name!r}; expected its variables: wrt=model.trainable_variables"
    return (
        f"wrt is the {type(owner).__name__} {name!r}, which has no variables. A Keras model has them once it is built: "
        "call it on a batch first, then pass wrt=model.trainable_variables"
    )


def require_differentiable(name: str, labels: Sequence[str], sources: Sequence[tf.Tensor | tf.Variable]) -> None:
    """Raise ValueError or TypeError unless there are sources, of known shapes and of floating-point numbers.

    Args:
        name: of the derivative and the function, for messages.
        labels: of the sources.
    """
    if not sources:
        raise ValueError(f"{name}: the sources hold no tensor; there is nothing to differentiate with respect to")
    for label, source in zip(labels, sources, strict=True):
        if not source.shape.is_fully_defined():
            raise ValueError(
                f"{name}: the source {label} has shape {source.shape}; every size must be known. Make the variable "
                "without shape=, or pass its value as an argument"
            )
    for label, source in zip(labels, sources, strict=True):
        if source.dtype.is_complex:
            raise TypeError(
                f"{name}: the source {label} has dtype {source.dtype.name}; derivatives are by real numbers. Pass the "
                "real and the imaginary part as two arguments, and use tf.complex inside the function"
            )
        if not source.dtype.is_floating:
            raise TypeError(
                f"{name}: the source {label} has dtype {source.dtype.name}; a derivative needs floating-point numbers. "
                "Pass 3.0 instead of 3, or tf.cast(…, tf.float32)"
            )
