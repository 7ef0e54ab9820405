"""What a minimisation lowers, with the derivatives that it takes of it, so that they can be held."""

import functools
from collections.abc import Callable
from typing import Any

from tapelab.derivatives import hessian, hvp, jacobian, pack, value_and_gradient
from tapelab.optimize.report import assign
from tapelab.process.tensorflow import tf


class Objective:
    """A function and its variables, with the derivatives of it that were compiled.

    Pass one in place of a function, and the minimisations that follow compile nothing again::

        objective = Objective(loss, wrt=model.trainable_variables)
        for x, y in batches:
            newton(objective, x, y, iterations=2)

    Keep the objective to keep what it compiled. It is traced anew when what f reads from outside has changed; a warning
    at the first call names what it cannot see.

    Args:
        f: returns a scalar; for `levenberg_marquardt` the residuals. Reads the variables.
        wrt: the variables to change, nested, all of one dtype.
        compile: "auto", "xla", "graph" or "eager", for all derivatives. "graph" starts sooner, and may be slower later.
        memory_limit: bytes, for the Hessian or the Jacobian, as for `hessian` and `jacobian`.

    Attributes:
        f, wrt: as given.
        value_and_gradient, hessian, hvp, jacobian: the transforms, of which each is compiled when a minimisation first
            calls it. ``jacobian`` returns the result as one vector, too, and its derivatives; the rows of ``hessian``
            and the vectors of ``hvp`` are those of the variables as one vector (see `pack`).

    Raises:
        TypeError: if f is not callable, or ``wrt`` holds anything but variables.
        ValueError: if there is no variable, one is listed twice, or for an unknown ``compile``.
    """

    def __init__(self, f: Callable, *, wrt: Any, compile: str = "auto", memory_limit: int | None = None) -> None:
        if wrt is None:
            raise TypeError("wrt is None; expected the variables to change, such as wrt=model.trainable_variables")
        # A list that is changed later is not what the transforms differentiate with respect to.
        self.f, self.wrt = f, tf.nest.map_structure(lambda variable: variable, wrt)
        options = {"wrt": wrt, "compile": compile}
        self.value_and_gradient = value_and_gradient(f, **options)
        self.hessian = hessian(f, packed=True, memory_limit=memory_limit, **options)
        self.hvp = hvp(f, packed=True, **options)

        @functools.wraps(f, updated=())
        def packed(*args: Any) -> tf.Tensor:
            return pack(f(*args))

        self.jacobian = jacobian(packed, memory_limit=memory_limit, return_value=True, **options)

    def at(self, point: Any, args: tuple[Any, ...]) -> tuple[float, tf.Tensor]:
        """Give the variables the values of a packed vector; return the value and the packed gradient there."""
        assign(self.wrt, point)
        value, gradient = self.value_and_gradient(*args)
        return float(value), pack(gradient)


def objective_of(f: Callable | Objective, wrt: Any) -> Objective:
    """Return the objective that a minimisation was given, or one of its function and variables.

    Raises:
        TypeError: if an objective came with variables, or a function without.
    """
    if not isinstance(f, Objective):
        return Objective(f, wrt=wrt)
    if wrt is not None:
        raise TypeError("wrt is given with an Objective, which was made with its own")
    return f
