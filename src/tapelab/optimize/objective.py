"""What a minimisation lowers, with the derivatives that it takes of it, so that they can be held."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tapelab.derivatives import hessian, hvp, jacobian, jvp, pack, value_and_gradient
from tapelab.optimize.report import assign
from tapelab.optimize.standing import Standing, of_matrix, of_products, require_agreeing
from tapelab.process.tensorflow import tf

import numpy as np


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
        value_and_gradient, hessian, hvp, jacobian, jvp: the transforms, of which each is compiled when a minimisation
            first calls it. ``jacobian`` and ``jvp`` are those of the result as one vector; so are the rows of
            ``hessian``, and the vectors of ``hvp``, of the variables (see `pack`).

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

        self.jacobian = jacobian(packed, memory_limit=memory_limit, **options)
        self.jvp = jvp(packed, **options)

    def __repr__(self) -> str:
        return f"<Objective {getattr(self.f, '__name__', type(self.f).__name__)}>"


def objective_of(f: Callable | Objective, wrt: Any, compile: str, memory_limit: int | None = None) -> Objective:
    """Return the objective that a minimisation was given, or one of its function and variables.

    Raises:
        TypeError: if an objective came with what it was made with, or a function without variables.
    """
    if not isinstance(f, Objective):
        return Objective(f, wrt=wrt, compile=compile, memory_limit=memory_limit)
    given = {"wrt": wrt is not None, "compile": compile != "auto", "memory_limit": memory_limit is not None}
    for name, is_given in given.items():
        if is_given:
            raise TypeError(f"{name} is given with {f!r}, which was made with its own: Objective(f, wrt=…, {name}=…)")
    return f


def judged_by_matrix(objective: Objective, args: Sequence[Any]) -> Standing:
    """Judge the point where the variables are by the Hessian matrix."""
    matrix = objective.hessian(*args).numpy()
    vector = np.full(len(matrix), len(matrix) ** -0.5, matrix.dtype)
    _require_agreeing(objective, args, matrix @ vector, vector)
    return of_matrix(matrix)


def judged_by_products(objective: Objective, args: Sequence[Any], products: int) -> Standing:
    """Judge the point where the variables are by at most so many Hessian-vector products."""
    start, compared = pack(objective.wrt), False

    def product(vector: np.ndarray) -> np.ndarray:
        nonlocal compared
        found = objective.hvp(*args, vector=tf.constant(vector)).numpy()
        if not compared:
            _require_agreeing(objective, args, found, vector)
            compared = True
        return found

    return of_products(product, start.shape[0], start.dtype.as_numpy_dtype, products)


def _require_agreeing(objective: Objective, args: Sequence[Any], product: np.ndarray, vector: np.ndarray) -> None:
    point = pack(objective.wrt).numpy()

    def gradient(elsewhere: np.ndarray) -> np.ndarray:
        assign(objective.wrt, elsewhere)
        return pack(objective.value_and_gradient(*args)[1]).numpy()

    try:
        require_agreeing(product, vector, point, gradient)
    finally:
        assign(objective.wrt, point)
