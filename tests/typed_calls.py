"""Calls as a user writes them, for mypy: it accepts those above, and refuses each of the last ones."""

from tapelab.derivatives import Plan, fvp, ggnvp, hessian, hvp, jacobian, jvp, value_and_gradient
from tapelab.optimize import Report, levenberg_marquardt, newton


def square(x: float) -> float:
    return x**2


def accepted(w: object, v: object) -> Plan:
    value, gradient = value_and_gradient(square, check_finite=True)(1.0)
    _, pushed = jvp(square, argnums=(0,))(1.0, tangents=(value,))
    hvp(square, wrt=w, return_value=True)(1.0, vector=v)
    ggnvp(square, square, wrt=w, packed=True)(gradient, vector=pushed)
    fvp(square, "categorical", wrt=w, reduction="sum")(1.0, vector=v)
    report: Report = newton(square, 1.0, wrt=w)
    print(report, levenberg_marquardt(square, wrt=w).parameters)
    return hessian(square, chunk_size=3).plan(1.0)


def refused(w: object) -> None:
    hessian(square, w)  # type: ignore[call-arg]
    hessian(square, wrt=w, packed="yes")  # type: ignore[arg-type]
    jacobian(square, batch_chunk_size=3)  # type: ignore[call-arg]
    ggnvp(square, square)  # type: ignore[call-arg]
