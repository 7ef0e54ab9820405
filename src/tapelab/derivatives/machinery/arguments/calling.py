"""How a derivative is called: the function's own arguments first, then the vector that it multiplies by, as a keyword.

    jvp(f)(x, tangents=v)        vjp(f)(x, cotangents=u)        hvp(loss, wrt=w)(x, y, vector=v)

A keyword, because libraries put it in different places: `jax.jvp` and `torch.func.jvp` take the tangents last,
`jax.vjp` the cotangents in a call of their own, Optax's ``hvp`` the vector before the parameters.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from tapelab.process.tensorflow import tf

_NEVER_BY_KEYWORD = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def options_by_keyword(transformation: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a transformation: what comes by position beside the function gets an error that names its keyword."""
    parameters = inspect.signature(transformation).parameters.values()
    own = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    keywords = {p.name for p in parameters} - {*own}

    @functools.wraps(transformation)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if len(args) > len(own):
            raise TypeError(_misplaced(transformation.__name__, own, keywords, args[len(own)]))
        return transformation(*args, **kwargs)

    return checked


def _misplaced(name, own, keywords, first):
    """Say what to write in place of ``name(*own, first)``."""
    leaves = tf.nest.flatten(first)
    inside = ", ".join(own)
    if "wrt" in keywords and leaves and all(isinstance(leaf, (tf.Variable, tf.keras.Variable)) for leaf in leaves):
        meant = f"variables are a keyword: {name}({inside}, wrt=…)"
    elif "argnums" in keywords and leaves and all(type(leaf) is int for leaf in leaves):
        meant = f"positions of arguments are a keyword: {name}({inside}, argnums={first!r})"
    else:
        meant = f"it returns a function, which takes the arguments: {name}({inside})(…)"
    return f"{name} takes {inside} by position, and got a {type(first).__name__} beside: {meant}"


def require_call(name: str, keyword: str | None, f: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError, which says what to do, if the function cannot be called with these arguments.

    Args:
        name: of the derivative, for messages.
        keyword: the vector's name, None if there is none.
        f: the function.
        args, kwargs: the function's own arguments, without the vector.
    """
    signature = _signature(f, follow_wrapped=False)  # a decorator that says it wraps f may take other arguments
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; the function takes {_plainly(signature)}") from None
    if keyword and _own_and_open(keyword, f, args):
        raise TypeError(
            f"{name}: the function has a parameter {keyword!r} of its own, and {keyword}= is the vector here. Pass the "
            f"parameter by position, rename it, or wrap the function, as in lambda x, other: f(x, {keyword}=other)"
        )


def no_vector(name: str, keyword: str, f: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TypeError:
    """Return the error of a call without the vector, which says how to write that call."""
    signature = _signature(f)
    parameters = signature.parameters.values() if signature else ()
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    own = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in needed]
    got = [f"{len(args)} by position", *[f"{key}=" for key in kwargs]]
    return TypeError(
        f"{name} needs its vector as a keyword, after the function's own arguments: "
        f"{name}({', '.join([*own, f'{keyword}=…'])}). It got {', '.join(got)}"
    )


def _own_and_open(keyword, f, args):
    """Whether the function has a parameter of this name that could be meant, since no positional argument fills it."""
    signature = _signature(f.call if isinstance(f, tf.keras.layers.Layer) else f)
    parameter = signature and signature.parameters.get(keyword)
    if not parameter or parameter.kind in _NEVER_BY_KEYWORD:
        return False
    return list(signature.parameters).index(keyword) >= len(args)


def _signature(f, **options):
    """Return the signature, None where there is none: Python does not know those of functions written in C."""
    try:
        return inspect.signature(f, **options)
    except (TypeError, ValueError):
        return None


def _plainly(signature):
    """Return a signature without annotations."""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(parameters))
