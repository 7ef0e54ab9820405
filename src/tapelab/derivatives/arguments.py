"""What a call is given: nested arguments as flat lists and back, the sources among them, and checks of both.

A derivative is called with the function's own arguments first, then the vector that it multiplies by, as a keyword:

    jvp(f)(x, tangents=v)        vjp(f)(x, cotangents=u)        hvp(loss, wrt=w)(x, y, vector=v)

The walk that finds the tensors in nested arguments also builds a hashable description of everything around them, which
is what compiled functions are looked up by: one pass over the arguments for each call.
"""

import copy
import functools
import inspect
import math
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypedDict, TypeVar

from tapelab.derivatives.costs import checked_limit
from tapelab.derivatives.errors import NotFiniteError
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

Argnums: TypeAlias = int | tuple[int, ...]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_NUMBERS = (bool, int, float, complex)
_PLAIN = (type(None), str, bytes, *_NUMBERS)  # never a tensor: known without asking TensorFlow, which takes 10 µs
_TRACKING = ("keras", "tensorflow")  # the lists and dictionaries that they wrap, to track them, come back as plain ones

# Nested structures -------------------------------------------------------------------------------------------------


class Static:
    """A part of the arguments that is not a tensor: compiled into the function, as `tf.function` does.

    Two are equal if their values have one type and are equal; of numbers, 0.0 and -0.0 differ, and NaN equals NaN.

    Raises:
        TypeError: if the value is not hashable.
    """

    __slots__ = ("_hash", "_key", "value")

    def __init__(self, value: Any):
        self._key = _told_apart(value)
        try:
            self._hash = hash(self._key)
        except (TypeError, RecursionError):
            raise TypeError(
                f"an argument of type {type(value).__name__} is neither a tensor nor hashable; pass tensors, arrays, "
                "numbers, strings, or dictionaries, lists and tuples of them"
            ) from None
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


def _told_apart(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value), tuple(map(_told_apart, value))
    return type(value), repr(value) if isinstance(value, (float, complex)) else value


class _Template:
    """An empty container of the caller's own class; all are equal, since the class and the attributes are compared."""

    def __init__(self, container: Any):
        self.container = container

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Template)

    def __hash__(self) -> int:
        return 0


class Container(NamedTuple):
    """A list, tuple or dictionary, or an instance of a class made from one.

    Attributes:
        kind: its class.
        parts: the descriptions of what is in it; a dictionary's by sorted key.
        keys: of a dictionary, sorted.
        names: its keys in the caller's order.
        template: of a class of the caller's own, what an instance is copied from.
        attributes: what such an instance has beside its items.
    """

    kind: type
    parts: tuple
    keys: tuple = ()
    names: tuple = ()
    template: _Template | None = None
    attributes: Static | None = None


LEAF: Any = "leaf"  # told apart by identity
_NONE = Static(None)
Description = Static | Container  # or `LEAF`


def flatten(value: Any, leaves: list, *, numbers: bool = False) -> Description:
    """Append the leaves of a nested value to a list, and describe what is around them.

    Args:
        value: tensors, arrays and variables, in dictionaries, lists, tuples and named tuples.
        leaves: the list to append to; those of dictionaries by sorted key.
        numbers: whether a Python number is a leaf. Otherwise it is static: a part of the description.

    Returns:
        The description, hashable.

    Raises:
        TypeError: if something is neither a leaf nor hashable.
    """
    if value is None:
        return _NONE
    if isinstance(value, tf.Tensor):
        leaves.append(value)
        return LEAF
    kind = type(value)
    if kind is list or kind is tuple:
        return Container(kind, tuple([flatten(part, leaves, numbers=numbers) for part in value]))
    if kind in _PLAIN and not (numbers and kind in _NUMBERS):
        return Static(value)
    if isinstance(value, (dict, list, tuple)):
        if kind.__module__.partition(".")[0] in _TRACKING and not hasattr(kind, "_fields"):
            plain = next(plain for plain in (dict, list, tuple) if isinstance(value, plain))
            return flatten(plain(value), leaves, numbers=numbers)
        return _container(value, leaves, numbers)
    if isinstance(value, (np.ndarray, np.generic)) or is_variable(value) or tf.is_tensor(value):
        leaves.append(value)
        return LEAF
    if numbers and kind in _NUMBERS:
        leaves.append(value)
        return LEAF
    return Static(value)


def _container(value: Any, leaves: list, numbers: bool) -> Container:
    kind = type(value)
    keys: tuple = ()
    names: tuple = ()
    if isinstance(value, dict):
        names = tuple(value)
        try:
            keys = tuple(sorted(names))
        except TypeError:
            keys = names
        items = [value[key] for key in keys]
    else:
        items = list(value)
    parts = tuple([flatten(item, leaves, numbers=numbers) for item in items])
    if kind is dict:
        return Container(kind, parts, keys, names)
    own = {name: part for name, part in getattr(value, "__dict__", {}).items() if not any(part is i for i in items)}
    attributes = Static(tuple(sorted(own.items()))) if own else None
    return Container(kind, parts, keys, names, _Template(copy.copy(value)), attributes)


def unflatten(description: Description, leaves: Iterator[Any]) -> Any:
    """Build the nested value that a description belongs to, taking its leaves from an iterator."""
    if description is LEAF:
        return next(leaves)
    if isinstance(description, Static):
        return description.value
    kind: Any = description.kind
    values = [next(leaves) if part is LEAF else unflatten(part, leaves) for part in description.parts]
    if kind is list:
        return values
    if kind is tuple:
        return tuple(values)
    if issubclass(kind, tuple):
        made = tuple.__new__(kind, values)
        if hasattr(made, "__dict__") and description.template:
            vars(made).update(vars(description.template.container))
        return _with_attributes(made, description, values)
    if issubclass(kind, list):
        made = copy.copy(description.template.container)  # type: ignore[union-attr]
        made[:] = values
        return _with_attributes(made, description, values)
    items = dict(zip(description.keys, values, strict=True))
    if kind is dict:
        return {name: items[name] for name in description.names}
    made = copy.copy(description.template.container)  # type: ignore[union-attr]
    for name in description.names:
        made[name] = items[name]
    return _with_attributes(made, description, values)


def _with_attributes(made: Any, description: Container, values: list[Any]) -> Any:
    """Let attributes that are items, as of dictionaries that take them by attribute too, be the new ones."""
    own = getattr(made, "__dict__", None)
    if own and description.template:
        old = description.template.container
        items = [old[key] for key in description.keys] if isinstance(old, dict) else list(old)
        new = {id(item): value for item, value in zip(items, values, strict=True)}
        own.update({name: new[id(part)] for name, part in own.items() if id(part) in new})
    return made


def names(description: Description, prefix: str) -> list[str]:
    """Name every leaf of a description by the expression that reaches it, such as ``x['w'][0]``."""
    if description is LEAF:
        return [prefix]
    if isinstance(description, Static):
        return []
    kind, parts = description.kind, description.parts
    labels = [f"[{key!r}]" for key in (description.keys if issubclass(kind, dict) else range(len(parts)))]
    if hasattr(kind, "_fields"):
        labels = [f".{field}" for field in kind._fields]
    return [name for label, part in zip(labels, parts, strict=True) for name in names(part, prefix + label)]


def is_variable(value: Any) -> bool:
    """Whether this is a variable. A Keras 3 variable wraps a tf.Variable and is not one itself."""
    return isinstance(value, (tf.Variable, tf.keras.Variable))


def dense_tensor(leaf: Any, name: str) -> tf.Tensor:
    """Return a leaf as a tensor; raise TypeError for what is not dense."""
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor, tf.experimental.ExtensionType)):
        raise TypeError(f"{name}: an argument is a {type(leaf).__name__}; pass dense tensors, such as its values")
    return tf.convert_to_tensor(leaf.value if isinstance(leaf, tf.keras.Variable) else leaf)


# Several tensors as one vector -------------------------------------------------------------------------------------


def pack(structure: Any) -> tf.Tensor:
    """Concatenate a nested structure of tensors into one vector.

    The order is that of the structure (dictionaries by sorted key), and within a tensor row by row.

    Args:
        structure: tensors, arrays or variables of one dtype, nested.

    Returns:
        A tensor of shape (n,), n the number of all elements.

    Raises:
        ValueError: if there is no tensor.
        TypeError: if the dtypes differ.
    """
    leaves: list[Any] = []
    flatten(structure, leaves, numbers=True)
    if not leaves:
        raise ValueError("there is no tensor to pack; pass at least one")
    tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
    require_one_dtype([tensor.dtype for tensor in tensors])
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)


def unpack(vector: tf.Tensor, like: Any) -> Any:
    """Cut a vector into tensors of the shapes and the structure of another value: the inverse of `pack`.

    Args:
        vector: tensor of shape (n,).
        like: tensors, arrays or variables with n elements in all, nested.

    Returns:
        The structure of ``like`` with tensors of its shapes and of the vector's dtype.

    Raises:
        ValueError: if ``vector`` is not a vector of n elements.
    """
    leaves: list[Any] = []
    description = flatten(like, leaves, numbers=True)
    shapes = [tuple(tf.convert_to_tensor(leaf).shape) for leaf in leaves]
    vector = tf.convert_to_tensor(vector)
    sizes = [math.prod(shape) for shape in shapes]
    if vector.shape != (sum(sizes),):
        parts = ", ".join(f"{name} {shape}" for name, shape in zip(names(description, "like"), shapes, strict=True))
        raise ValueError(f"vector has shape {tuple(vector.shape)}; expected ({sum(sizes)},), for {parts}")
    return unflatten(description, iter(split(vector, shapes)))


def split(vector: tf.Tensor, shapes: Sequence[Sequence[int]]) -> list[tf.Tensor]:
    """Cut a vector into tensors of these shapes, in order."""
    parts = tf.split(vector, [math.prod(shape) for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]


def require_one_dtype(dtypes: Sequence[tf.DType]) -> None:
    """Raise TypeError if these dtypes cannot share one vector."""
    if len(set(dtypes)) > 1:
        found = ", ".join(sorted({dtype.name for dtype in dtypes}))
        raise TypeError(f"one vector has one dtype, but these are {found}; cast them to one, or use packed=False")


# Sources -----------------------------------------------------------------------------------------------------------


class Sources:
    """What to differentiate with respect to: some of the arguments, or variables that the function reads.

    Args:
        argnums: the position of an argument, negative ones from the end, or a tuple of positions; each argument may be
            nested.
        wrt: variables, nested; then every argument is data.

    Raises:
        TypeError: if ``wrt`` holds anything but variables, or ``argnums`` anything but integers.
        ValueError: if there is no source, a variable is listed twice, or ``wrt`` is a model in place of its variables.
    """

    def __init__(self, argnums: Argnums, wrt: Any):
        self.variables: list[tf.Variable] | None = None
        self.description: Any = None
        if wrt is None:
            self.positions = argnums if isinstance(argnums, tuple) else (argnums,)
            self.single = not isinstance(argnums, tuple)
            if not self.positions:
                raise ValueError("argnums is empty: there is no source; name at least one argument, such as argnums=0")
            if any(isinstance(position, bool) or not isinstance(position, int) for position in self.positions):
                raise TypeError(f"argnums is {argnums!r}; expected the position of an argument, or a tuple of them")
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
                f"{name} differentiates with respect to argument {max(self.positions, key=abs)}, but got {len(args)} "
                "positional arguments; pass the sources by position, or set argnums="
            ) from None
        rest = list(args)
        for position in self.positions:
            rest[position] = None
        if len(self.positions) > 1 and len({position % len(args) for position in self.positions}) < len(taken):
            raise ValueError(f"{name}: argnums={self.positions} names one argument twice; name each once")
        return taken[0] if self.single else taken, tuple(rest)

    def put(self, taken: Any, rest: Sequence[Any]) -> list[Any]:
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
    """Raise ValueError or TypeError unless there are sources, of floating-point numbers."""
    if not sources:
        raise ValueError(f"{name}: the sources hold no tensor; there is nothing to differentiate with respect to")
    for label, source in zip(labels, sources, strict=True):
        if isinstance(source, tf.Variable) and not source.shape.is_fully_defined():
            raise ValueError(
                f"{name}: the source {label} has shape {source.shape}; every size must be known. Make the variable "
                "without shape=, or pass its value as an argument"
            )
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


# Checks ------------------------------------------------------------------------------------------------------------


def check_chunks(memory_limit: float | None, **sizes: int | None) -> None:
    """Raise ValueError unless these are None or positive."""
    require_positive(**{name: size for name, size in sizes.items() if size is not None})
    if memory_limit is not None:
        checked_limit(memory_limit)


def require_positive(**numbers: Any) -> None:
    """Raise ValueError, which names the first that is none, unless all are positive whole numbers."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} is {number!r}; expected a positive whole number")


def require_one_of(choices: Collection[str], **options: str) -> None:
    """Raise ValueError, which names the first that is none, unless all options are among the choices."""
    for name, option in options.items():
        if option not in choices:
            raise ValueError(f"{name} is {option!r}; expected one of {', '.join(map(repr, choices))}")


def require_alike(name: str, kind: str, given: Description, tensors: Tensors, wanted: "Wanted") -> None:
    """Raise unless the tangents match the sources, or the cotangents the function's results."""
    labels = names(given, kind)
    if names(given, "") != names(wanted.description, ""):
        raise ValueError(
            f"{name}: {kind}= has not the structure of the {wanted.what}: it has {', '.join(labels) or 'no tensor'}; "
            f"expected {', '.join(names(wanted.description, kind))}"
        )
    for label, tensor, shape, dtype in zip(labels, tensors, wanted.shapes, wanted.dtypes, strict=True):
        if not tensor.shape.is_compatible_with(shape):
            expected = tuple(shape) if shape.is_fully_defined() else shape
            raise ValueError(
                f"{name}: {label} has shape {tuple(tensor.shape)}; expected that of the {wanted.what}, {expected}"
            )
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: {label} has dtype {tensor.dtype.name}; expected {dtype.name}; use tf.cast")


class Wanted(NamedTuple):
    """What a vector has to match, and what that is, in words."""

    description: Description
    shapes: Sequence[tf.TensorShape]
    dtypes: Sequence[tf.DType]
    what: str


def require_finite(result: Any, name: str) -> None:
    """Raise NotFiniteError if there is NaN or infinity in nested tensors."""
    leaves: list[Any] = []
    description = flatten(result, leaves)
    if leaves and not tf.executing_eagerly():
        raise RuntimeError(f"{name}: check_finite=True reads values, which a tf.function does not have; leave it out")
    for label, leaf in zip(names(description, "the result"), leaves, strict=True):
        if bad := int(tf.math.count_nonzero(~tf.math.is_finite(leaf))):
            raise NotFiniteError(
                f"{name}: {bad} of {tf.size(leaf)} elements of {label}, shape {tuple(leaf.shape)}, are NaN or "
                "infinite. Look for a division by zero, log or sqrt at 0, or an overflow: "
                "tf.debugging.enable_check_numerics() names the operation"
            )


# How a transformation and its function are called ------------------------------------------------------------------


class Options(TypedDict, total=False):
    """What every transformation takes; `tapelab.derivatives` says what they mean."""

    compile: str
    unconnected: str
    check_finite: bool


class ValueOptions(Options, total=False):
    """The same, of what does not return the function's value in any case."""

    return_value: bool


_DEFAULTS = {"return_value": False, "compile": "auto", "unconnected": "error", "check_finite": False}


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
            more = ". return_value=True gives the function's value beside" if "has_aux" in unknown else ""
            raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}{more}")
        return transformation(*args, **(defaults | kwargs))  # type: ignore[arg-type]

    checked.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return checked


def _misplaced(name: str, own: Sequence[str], keywords: Collection[str], first: Any) -> str:
    """Say what to write in place of ``name(*own, first)``."""
    leaves, inside = tf.nest.flatten(first), ", ".join(own)
    if "wrt" in keywords and leaves and all(map(is_variable, leaves)):
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
            plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
            raise TypeError(f"{name}: {error}; the function takes {inspect.Signature(plain)}") from None
    own = _signature(f.call if isinstance(f, tf.keras.layers.Layer) else f)
    parameter = own.parameters.get(keyword) if own and keyword else None
    if (
        own is None
        or parameter is None
        or parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ):
        return
    if list(own.parameters).index(parameter.name) >= len(args):  # no positional argument fills it
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


def _signature(f: Callable[..., Any], **options: Any) -> inspect.Signature | None:
    """Return the signature, None where there is none: Python does not know those of functions written in C."""
    try:
        return inspect.signature(f, **options)
    except (TypeError, ValueError):
        return None
