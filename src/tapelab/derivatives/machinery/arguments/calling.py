"""How a derivative is called: the function's own arguments first, then the vector that it multiplies by, as a keyword.

    jvp(f)(x, tangents=v)        vjp(f)(x, cotangents=u)        hvp(loss, wrt=w)(x, y, vector=v)

A keyword, because libraries put it in different places: `jax.jvp` and `torch.func.jvp` take the tangents last,
`jax.vjp` the cotangents in a call of their own, Optax's ``hvp`` the vector before the parameters.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar

from tapelab.process.tensorflow import tf

_NEVER_BY_KEYWORD = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)

Argnums: TypeAlias = int | tuple[int, ...]

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Options(TypedDict, total=False):
    """What every transformation takes; `tapelab.derivatives` says what they mean."""

    compile: str
    unconnected: str
    check_finite: bool


class ValueOptions(Options, total=False):
    """The same, of what does not return the function's value in any case."""

    return_value: bool


_DEFAULTS = {
    "return_value": False,
    "compile": "auto",
    "unconnected": "error",
    "check_finite": False,
}


def options_by_keyword(transformation: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a transformation, whose ``**options: Unpack[…]`` are spelt out in its signature, with their defaults.

    What comes by position beside the function gets an error that names its keyword.
    """
    name, signature = transformation.__name__, inspect.signature(transformation)
    *parameters, last = signature.parameters.values()
    kinds = typing.get_type_hints(typing.get_args(last.annotation)[0])
    defaults = {option: default for option, default in _DEFAULTS.items() if option in kinds}
    own = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    parameters += [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds[option])
        for option, default in defaults.items()
    ]
    keywords = {p.name for p in parameters} - {*own}

    @functools.wraps(transformation)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if len(args) > len(own):
            raise TypeError(_misplaced(name, own, keywords, args[len(own)]))
        if unknown := kwargs.keys() - keywords - {*own}:
            raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
        for option, default in defaults.items():
            kwargs.setdefault(option, default)
        return transformation(*args, **kwargs)

    checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return checked


def _misplaced(name: str, own: Sequence[str], keywords: Collection[str], first: Any) -> str:
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


def _own_and_open(keyword: str, f: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether the function has a parameter of this name that could be meant, since no positional argument fills it."""
    signature = _signature(f.call if isinstance(f, tf.keras.layers.Layer) else f)
    parameter = signature and signature.parameters.get(keyword)
    if signature is None or not parameter or parameter.kind in _NEVER_BY_KEYWORD:
        return False
    return list(signature.parameters).index(keyword) >= len(args)


def _signature(f: Callable[..., Any], **options: Any) -> inspect.Signature | None:
    """Return the signature, None where there is none: Python does not know those of functions written in C."""
    try:
        return inspect.signature(f, **options)
    except (TypeError, ValueError):
        return None


def _plainly(signature: inspect.Signature) -> str:
    """Return a signature without annotations."""
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(inspect.Signature(parameters))
