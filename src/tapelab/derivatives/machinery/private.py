"""The TensorFlow symbols that are not public API, each with what happens when a release no longer has it."""

import contextlib
import functools
import importlib
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType, ModuleType
from typing import Any

from tapelab import process
from tapelab.process.tensorflow import tf


def with_autograph(f: Callable) -> Callable:
    """Return f with Python control flow on tensors converted to graph operations, as `tf.function` does it.

    `tf.function(f)` is no substitute: a call of it hides which outputs are unconnected. Without
    ``tf.__internal__.autograph`` the function itself is returned, and one that branches on a tensor runs eagerly.

    It is converted whatever the caller's own code is: around it, a transform has switched AutoGraph off.
    """
    try:
        autograph = tf.__internal__.autograph
        current = autograph.control_status_ctx()
        enabled = type(current)(type(current.status).ENABLED)
        return autograph.tf_convert(f, enabled)
    except (AttributeError, TypeError):
        return f


def unconverted(kind: type) -> type:
    """Mark the methods of a class as what AutoGraph calls as it is, and return the class.

    `tf.autograph.experimental.do_not_convert` switches AutoGraph off for all that a method calls, too, which takes
    1 µs. Without its mark ``autograph_info__``, that is what the methods become.
    """
    for name, method in list(vars(kind).items()):
        if name == "__call__" or not name.startswith("_"):
            wrapped = tf.autograph.experimental.do_not_convert(method)
            if hasattr(wrapped, "autograph_info__"):
                kind.autograph_info__ = method.autograph_info__ = wrapped.autograph_info__
            else:
                setattr(kind, name, wrapped)
    return kind


def derivatives_wanted(tensors: Sequence[tf.Tensor]) -> int:
    """Return how far the open tapes may differentiate what is computed from tensors: 0, 1, or 2 for higher orders.

    With a tape open it is at least 1: the tape may watch what the function reads besides the tensors. Without
    ``could_possibly_record`` and ``PossibleTapeGradientTypes`` it is 0, and what a tape cannot record fails.
    """
    try:
        from tensorflow.python.eager import record
        from tensorflow.python.ops import gradients_util

        if not record.could_possibly_record():
            return 0
        return max(1, int(gradients_util.PossibleTapeGradientTypes(list(tensors))))
    except (ImportError, AttributeError):
        return 0


def recording() -> bool:
    """Return whether a tape or accumulator is open that could record a call; True without ``could_possibly_record``."""
    try:
        return _could_record()()
    except (ImportError, AttributeError):
        return True


@functools.cache
def _could_record():
    from tensorflow.python.eager import record

    return record.could_possibly_record


@functools.cache
def gradient_registry() -> Any:
    """Return the registry in which TensorFlow looks up gradients by ``lookup``, by the type of an operation.

    Without ``gradient_registry`` it is None, and operations whose gradients we replace are refused.
    """
    try:
        from tensorflow.python.framework import ops

        ops.gradient_registry.lookup("Mul")
        return ops.gradient_registry
    except (ImportError, AttributeError, LookupError):
        return None


@functools.cache
def classes_with_backward_functions() -> tuple[type, type] | None:
    """Return the classes that keep a concrete function's backward functions, for tapes and for graphs.

    None without ``_call_flat``, ``_delayed_rewrite_functions`` or what else of theirs
    `tapelab.derivatives.wrong.replaced_gradients` uses. Then operations whose gradients we replace are refused.
    """
    concrete = tf.function(lambda x: x).get_concrete_function(tf.TensorSpec([], tf.float32))
    delayed = getattr(concrete, "_delayed_rewrite_functions", None)
    kind = next((kind for kind in type(concrete).__mro__ if "_call_flat" in vars(kind)), None)
    needed = ("_first_order_tape_functions", "_higher_order_tape_functions", "_select_forward_and_backward_functions")
    rewriting = ("_cached_function_pairs", "_rewrite_forward_and_call_backward", "forward_backward")
    if kind is None or not all(hasattr(concrete, name) for name in needed):
        return None
    return (kind, type(delayed)) if all(hasattr(delayed, name) for name in rewriting) else None


@functools.cache
def forward_mode_cache() -> tuple[ModuleType, Any] | None:
    """Return the module whose ``call_function`` traces an accumulator's products with tangents, and their cache.

    None without ``tracing_compilation`` and ``_jvp_function_cache``. Then operations whose gradients we replace are
    refused.
    """
    try:
        from tensorflow.python.eager import forwardprop
        from tensorflow.python.eager.polymorphic_function import tracing_compilation

        return (tracing_compilation, forwardprop._jvp_function_cache) if tracing_compilation.call_function else None
    except (ImportError, AttributeError):
        return None


def direct_call(concrete: tf.types.experimental.ConcreteFunction) -> Callable[[Sequence[tf.Tensor]], Any]:
    """Return a function that calls a concrete function with a list of tensors, in the order of its inputs.

    ``ConcreteFunction._call_flat`` skips binding the arguments to a signature, which is about half of what calling a
    small function costs. Without it the public call is used.
    """
    if not hasattr(concrete, "_call_flat"):
        return lambda tensors: concrete(*tensors)
    captured = concrete.captured_inputs
    return lambda tensors: concrete._call_flat(tensors, captured)  # looked up each time: it may be replaced


def keras_state() -> dict[str, Any] | None:
    """Return what Keras keeps for this thread: the scopes that are open, the layer that is being called, settings.

    Without ``GLOBAL_STATE_TRACKER``, or where what is looked for has another name there, None.
    """
    module = _keras_global_state()
    return None if module is None else vars(module.GLOBAL_STATE_TRACKER)  # another one after clear_session()


@functools.cache
def _keras_global_state():
    try:
        from keras.src.backend.common import global_state

        names = []

        class Layer(tf.keras.layers.Layer):
            def call(self, x, training=None):
                names.extend(vars(global_state.GLOBAL_STATE_TRACKER))
                return x

        def look():
            with tf.keras.StatelessScope():
                Layer(name="layer", dtype="mixed_bfloat16")(tf.zeros(1), training=True)

        thread = threading.Thread(target=look)  # which has no scopes of its own yet
        thread.start()
        thread.join()
    except (ImportError, AttributeError):
        return None
    return global_state if {"autocast_scope", "current_call_ctx", "stateless_scope"} <= set(names) else None


@contextlib.contextmanager
def operations_run() -> Iterator[set[str]]:
    """Yield a set that the operations are added to, by name, which run at once in the block, in functions too.

    Without ``op_callbacks`` it stays empty, and nothing is known of what the function draws or changes.
    """
    found: set[str] = set()
    try:
        from tensorflow.python.eager import context
        from tensorflow.python.framework import op_callbacks
    except ImportError:
        yield found
        return

    def note(name, inputs, attributes, outputs, op_name=None, graph=None):
        name = tf.compat.as_str(name)  # bytes where a graph is built
        if name not in found:
            found.add(name)
            if context.context().has_function(name):
                for node in context.get_function_def(name).node_def:
                    note(node.op, None, None, None)
                    for attribute in node.attr.values():
                        if attribute.func.name:
                            note(attribute.func.name, None, None, None)

    op_callbacks.add_op_callback(note)
    try:
        yield found
    finally:
        op_callbacks.remove_op_callback(note)


def masked(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return those of the tensors to which a Keras layer has attached a mask.

    Without ``_keras_mask`` in a tensor's attributes, as where Keras keeps masks elsewhere, none is found.
    """
    return [tensor for tensor in tensors if tensor.__dict__.get("_keras_mask") is not None]


def random_state() -> tuple:
    """Return TensorFlow's global seed and its global generator, each None where it is not set.

    Without ``global_seed`` and ``global_generator`` neither is known: a change of them after a trace is not seen.
    """
    try:
        from tensorflow.python.eager import context
        from tensorflow.python.ops import stateful_random_ops

        return context.global_seed(), stateful_random_ops.global_generator
    except (ImportError, AttributeError):
        return None, None


@functools.cache
def modules_with_moments() -> list[ModuleType]:
    """Return the modules in which ``moments`` is looked up, by `tf.nn.moments` and by its predecessor.

    Without TensorFlow's private module, `tf.nn` itself: then what has imported the function by name keeps the original.
    """
    try:
        from tensorflow.python.ops import nn_impl

        return [module for module in (nn_impl, tf.compat.v1.nn) if hasattr(module, "moments")]
    except ImportError:
        return [tf.nn, tf.compat.v1.nn]


@functools.cache
def modules_of_numpy() -> list[ModuleType]:
    """Return the modules that have the functions of `tf.experimental.numpy`, that which defines them first.

    An import of ``tensorflow.experimental.numpy`` makes another module than the attribute is. Without the private
    module there are none of them.
    """
    if (defining := _module("tensorflow.python.ops.numpy_ops.np_math_ops")) is None:
        return []
    names = ("tensorflow._api.v2.experimental.numpy", "tensorflow.experimental.numpy")
    found = [defining, tf.experimental.numpy, *filter(None, map(_module, names))]
    return list({id(module): module for module in found}.values())


@functools.cache
def modules_of_keras(name: str) -> list[ModuleType]:
    """Return the module of Keras' backend in which it looks up "numpy" or "nn" functions; none without its name."""
    return list(filter(None, [_module(f"keras.src.backend.tensorflow.{name}")]))


def _module(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def cells(function: Callable) -> list[CellType]:
    """Return the cells in which the public wrappers of a TensorFlow function hold what they wrap, the innermost.

    What has imported the function by name calls what is in there too. Without such wrappers there are none.
    """
    found, seen, left = [], {id(function)}, [function]
    while left:
        for cell in left.pop().__closure__ or ():
            inside = cell.cell_contents
            if not isinstance(inside, FunctionType) or id(inside) in seen:
                continue
            seen.add(id(inside))
            left.append(inside)
            if inside.__name__ == function.__name__ and inside.__closure__ is None:
                found.append(cell)
    return found


@functools.cache
def function_classes() -> tuple[type, type]:
    """Return the classes of what `tf.function` returns, and of its concrete functions."""
    function = tf.function(lambda: tf.constant(0.0))
    concrete = type(function.get_concrete_function())
    return type(function), next(kind for kind in concrete.__mro__ if "__call__" in vars(kind))


def traces(function: tf.types.experimental.PolymorphicFunction) -> list[tf.types.experimental.ConcreteFunction]:
    """Return the concrete functions that a `tf.function` has, without tracing it.

    ``_function_cache`` has them, or ``concrete_functions`` if the function was loaded. Without either, none are found.
    """
    if hasattr(function, "concrete_functions"):
        return list(function.concrete_functions)
    cache = getattr(function, "_function_cache", None)
    return list(cache.values()) if cache is not None else []


def fresh_copy(
    function: tf.types.experimental.PolymorphicFunction,
) -> tf.types.experimental.PolymorphicFunction | None:
    """Return a `tf.function` of the same Python function that has no traces; None for one that was loaded.

    Without ``_clone`` there is none either.
    """
    if hasattr(function, "concrete_functions") or not hasattr(function, "_clone"):
        return None
    return function._clone(None)


def vectorized(f: Callable[[Any], Any], elements: Any) -> Any:
    """Map a function over the first axis of nested tensors, all at once; raises what `tf.vectorized_map` cannot do.

    Its own fallback is a loop that the caller is not told of.
    """
    with filter_gradients_by_products(), segment_gradients_by_segments() as right:
        mapped = tf.vectorized_map(f, elements, fallback_to_while_loop=False)
    if not right and any(op.type in _SEGMENT_GRADIENTS for op in tf.compat.v1.get_default_graph().get_operations()):
        raise NotImplementedError("tf.vectorized_map may map the gradient of a sum over sparse segments wrongly")
    return mapped


@contextlib.contextmanager
def filter_gradients_by_products() -> Iterator[None]:
    """While this is open, `tf.vectorized_map` computes the gradients of convolution filters by matrix products.

    Its own converter makes a loop over the examples where images and upstream gradients both differ between them, and
    does not know explicit padding. Where only the gradients differ it takes them for further channels, which is wrong
    for a convolution in groups. For one tap (i, j) of a filter, the gradient is the product of the images shifted by
    (i, j), as a matrix of shape (pixels, channels in), transposed, and the upstream gradient, (pixels, channels out): a
    batch of products for each tap. Without ``_pfor_converter_registry`` the loop remains.
    """
    try:
        from tensorflow.python.ops.parallel_for import pfor

        registry, wrap = pfor._pfor_converter_registry, pfor.wrap
        original = process.original(registry, "Conv2DBackpropFilter")
    except (ImportError, AttributeError, KeyError):
        yield
        return

    def convert(pfor_input):
        pfor_input.stack_inputs(stack_indices=[2])
        images, differ, _ = pfor_input.input(0)
        # What is stacked often has no static shape; the operation that is converted has.
        op = pfor_input.op
        shapes = [tensor.shape for tensor in (op.inputs[0], op.inputs[2], op.outputs[0])]
        if not all(shape.is_fully_defined() for shape in shapes):
            raise NotImplementedError("the gradient of a filter whose shape is not known while it is traced")
        one_image, one_upstream, shape = (shape.as_list() for shape in shapes)
        last = pfor_input.get_attr("data_format") == b"NHWC"
        groups = one_image[-1 if last else -3] // shape[2]
        if not last and groups > 1:
            raise NotImplementedError("the gradient of a filter that works in groups, with channels first")
        if not last or (groups == 1 and not differ):
            return original(pfor_input)
        images = tf.reshape(images, [-1, *one_image])
        upstream = tf.reshape(pfor_input.stacked_input(2), [-1, *one_upstream])
        strides, dilations = pfor_input.get_attr("strides")[1:3], pfor_input.get_attr("dilations")[1:3]
        padding = pfor_input.get_attr("padding").decode()
        if padding == "EXPLICIT":
            padding = pfor_input.get_attr("explicit_paddings")[2:6]
        return wrap(_filter_gradients(images, upstream, shape, strides, dilations, padding), True)

    with process.replaced(registry, "Conv2DBackpropFilter", convert):
        yield


def _filter_gradients(images, upstream, shape, strides, dilations, padding):
    """Return gradients (n, *shape) from images (n, batch, y, x, channels) and upstream (n, batch, y, x, channels out).

    The images may be the same for all, (1, batch, y, x, channels).

    Args:
        shape: the filter's, (y, x, channels of a group, channels out).
        padding: "SAME", "VALID", or how much above, below, left and right.
    """
    channels, pixels = images.shape[-1], images.shape[2:4]
    # From a tap's first pixel to its last one, in each of the two directions.
    reach = [(size - 1) * stride + 1 for size, stride in zip(upstream.shape[2:4], strides, strict=True)]
    if padding == "VALID":
        padding = [0, 0, 0, 0]
    elif padding == "SAME":
        sizes = zip(shape[:2], dilations, reach, pixels, strict=True)
        missing = [max((taps - 1) * dilation + length - size, 0) for taps, dilation, length, size in sizes]
        padding = [half for size in missing for half in (size // 2, size - size // 2)]
    images = tf.reshape(images, [-1, *pixels, channels])
    images = tf.pad(images, [[0, 0], padding[:2], padding[2:], [0, 0]])
    groups, positions = channels // shape[2], math.prod(upstream.shape[1:4])

    def grouped(tensor):
        """As matrices of shape (pixels, channels of a group), one for each row and group."""
        return tf.transpose(tf.reshape(tensor, [-1, positions, groups, tensor.shape[-1] // groups]), [0, 2, 1, 3])

    upstream = grouped(upstream)
    products = []
    for tap in itertools.product(range(shape[0]), range(shape[1])):
        starts = [index * dilation for index, dilation in zip(tap, dilations, strict=True)]
        rows, columns = (slice(s, s + r, stride) for s, r, stride in zip(starts, reach, strides, strict=True))
        product = tf.matmul(grouped(images[:, rows, columns]), upstream, transpose_a=True)
        products.append(tf.reshape(tf.transpose(product, [0, 2, 1, 3]), [-1, *shape[2:]]))
    return tf.reshape(tf.stack(products, axis=1), [-1, *shape])


_SEGMENT_GRADIENTS = ("SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad", "SparseSegmentSumGrad")


@contextlib.contextmanager
def segment_gradients_by_segments() -> Iterator[bool]:
    """While this is open, `tf.vectorized_map` sends gradients of sums over sparse segments to the segments they are of.

    Its own converter takes the largest number of a segment for the last one, and so gives another row's gradient where
    there are empty segments behind it, as ``num_segments`` makes them. Yields whether ours is used: without
    ``_pfor_converter_registry`` `vectorized` refuses these gradients.
    """
    try:
        from tensorflow.python.ops.parallel_for import pfor

        registry, wrap = pfor._pfor_converter_registry, pfor.wrap
        for kind in _SEGMENT_GRADIENTS:
            process.original(registry, kind)
    except (ImportError, AttributeError, KeyError):
        yield False
        return

    def convert(pfor_input):
        gradient = pfor_input.stacked_input(0)
        indices, ids, size = map(pfor_input.unstacked_input, (1, 2, 3))
        rows, segments = tf.shape(gradient)[0], tf.shape(gradient)[1]
        row = tf.range(rows)[:, tf.newaxis]
        found = getattr(tf.raw_ops, pfor_input.op_type)(
            grad=tf.reshape(gradient, tf.concat([[-1], tf.shape(gradient)[2:]], 0)),
            indices=tf.reshape(indices + tf.cast(row * size, indices.dtype), [-1]),
            segment_ids=tf.reshape(ids + tf.cast(row * segments, ids.dtype), [-1]),
            output_dim0=rows * size,
        )
        return wrap(tf.reshape(found, tf.concat([[rows, size], tf.shape(found)[1:]], 0)), True)

    with contextlib.ExitStack() as stack:
        for kind in _SEGMENT_GRADIENTS:
            stack.enter_context(process.replaced(registry, kind, convert))
        yield True
