"""What is checked before and after a derivative is computed, whatever kind it is."""

from collections.abc import Iterable, Sequence
from typing import Any

from tapelab.derivatives.machinery.arguments.structures import Description, flatten, names
from tapelab.derivatives.machinery.errors import NotFiniteError
from tapelab.derivatives.machinery.memory import checked_limit
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.private import masked
from tapelab.process.tensorflow import Tensors, tf


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


def require_one_of(choices: Iterable[str], **options: str) -> None:
    """Raise ValueError, which names the first that is none, unless all options are among the choices."""
    for name, option in options.items():
        if option not in choices:
            raise ValueError(f"{name} is {option!r}; expected one of {', '.join(map(repr, choices))}")


def require_scalar(problem: Problem) -> None:
    """Raise ValueError unless the function returns one scalar."""
    if problem.returned.shapes != [()]:
        shapes = ", ".join(
            f"{name} {shape}" for name, shape in zip(problem.returned.names, problem.returned.shapes, strict=True)
        )
        raise ValueError(
            f"{problem.name} needs a function that returns one scalar, shape (), and got {shapes}. Reduce it, for "
            "example with tf.reduce_mean; for all of its derivatives use jacobian"
        )


def require_common_batch(problem: Problem, advice: str) -> int:
    """Return the size of the first axis that sources and results share; raise ValueError without one."""
    labels = problem.source_names + problem.returned.names
    shapes = problem.source_shapes + problem.returned.shapes
    if not shapes[0] or any(shape[:1] != shapes[0][:1] for shape in shapes):
        found = ", ".join(f"{label} {shape}" for label, shape in zip(labels, shapes, strict=True))
        raise ValueError(
            f"{problem.name}: sources and results need one batch axis, first and of one size; these are {found}. "
            f"{advice}"
        )
    return shapes[0][0]


def require_alike(
    name: str,
    kind: str,
    description: Description,
    tensors: Tensors,
    wanted: Description,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[tf.DType],
    what: str,
) -> None:
    """Raise unless the tangents match the sources, or the cotangents the function's results."""
    labels = names(description, kind)
    if names(description, "") != names(wanted, ""):
        raise ValueError(
            f"{name}: {kind}= has not the structure of the {what}: it has {', '.join(labels) or 'no tensor'}; "
            f"expected {', '.join(names(wanted, kind))}"
        )
    for label, tensor, shape, dtype in zip(labels, tensors, shapes, dtypes, strict=True):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: {label} has shape {tuple(tensor.shape)}; expected that of the {what}, {shape}")
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: {label} has dtype {tensor.dtype.name}; expected {dtype.name}; use tf.cast")


def require_finite(result: Any, name: str) -> None:
    leaves: list[Any] = []
    description = flatten(result, leaves)
    for label, leaf in zip(names(description, "the result"), leaves, strict=True):
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"{name}: check_finite=True reads values, which a tf.function does not have; leave it out"
            )
        bad = int(tf.math.count_nonzero(~tf.math.is_finite(leaf)))
        if bad:
            raise NotFiniteError(
                f"{name}: {bad} of {tf.size(leaf)} elements of {label}, shape {tuple(leaf.shape)}, are NaN or "
                "infinite. Look for a division by zero, log or sqrt at 0, or an overflow: "
                "tf.debugging.enable_check_numerics() names the operation"
            )


def dense_tensor(leaf: Any, name: str) -> tf.Tensor:
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"{name}: an argument is a {type(leaf).__name__}; pass dense tensors, such as its values")
    return tf.convert_to_tensor(leaf.value if isinstance(leaf, tf.keras.Variable) else leaf)


def require_no_mask(name: str, tensors: Tensors) -> None:
    for tensor in masked(tensors):
        raise ValueError(
            f"{name}: an argument of shape {tuple(tensor.shape)} carries a Keras mask, as from "
            "Embedding(mask_zero=True). Layers in the function would not find it: pass the mask as an argument of "
            "its own, hand it to them with mask=, and pass tf.identity(x), which has none"
        )


def require_no_strategy(name: str) -> None:
    if tf.distribute.has_strategy():
        raise RuntimeError(
            f"{name}: called in the scope of a {type(tf.distribute.get_strategy()).__name__}, whose variables have a "
            "copy on each device. Derivatives are computed on one device: call it outside the strategy's scope"
        )
