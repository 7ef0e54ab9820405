"""One gradient, one directional derivative, one weighted sum of rows: a few times the cost of the function."""

from collections.abc import Callable
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.arguments import (
    Argnums,
    Description,
    Options,
    Sources,
    Wanted,
    dense_tensor,
    flatten,
    options_by_keyword,
    require_alike,
    require_one_of,
    unflatten,
)
from tapelab.derivatives.costs import Plan
from tapelab.derivatives.traced import LOOP, Call, Recording, Signature, dense, pair
from tapelab.derivatives.transform import Computed, Recipe, Transform, direct, transform
from tapelab.derivatives.wrong import Needs
from tapelab.process.tensorflow import Tensors, tf

Push = Callable[[Tensors], list[tf.Tensor | None]]


@options_by_keyword
def value_and_gradient(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, **options: Unpack[Options]) -> Transform:
    """Return a function that returns the value of f and its gradient.

    Args:
        f: returns one scalar.
        wrt, argnums, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments that returns a pair: the value, and the gradient in the sources' structure.

    Raises:
        ValueError, TypeError: when called, for sources or a result that have no gradient; the message says what to do.
    """
    return transform(f, _ValueAndGradient(), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def vjp(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, **options: Unpack[Options]) -> Transform:
    """Return a function that computes a vector-Jacobian product: one backward pass, whatever the size of the sources.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments and the keyword ``cotangents``, of the structure, shapes and dtypes of f's result.
        It returns a pair: f's result, and the cotangents times the Jacobian in the sources' structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for cotangents that do not match the result.
    """
    return transform(f, _VJP(), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def jvp(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, **options: Unpack[Options]) -> Transform:
    """Return a function that computes a Jacobian-vector product: one forward pass, whatever the size of the result.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments and the keyword ``tangents``, of the structure, shapes and dtypes of the sources. It
        returns a pair: f's result, and the Jacobian times the tangents in the result's structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for tangents that do not match the sources.
    """
    return transform(f, _JVP(), argnums=argnums, wrt=wrt, **options)


def linearize(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, unconnected: str = "error") -> "Linearize":
    """Return a function that returns the value of f and its derivative there, as a function of tangents.

    What products with different tangents have in common is computed once: each product then costs about one forward
    pass. `jvp` computes it every time.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, unconnected: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns a pair: f's result, and a function that takes tangents, of the
        structure, shapes and dtypes of the sources, and returns the Jacobian times them, in the result's structure.

    Raises:
        ValueError, TypeError: when called, as `jvp`.
    """
    own: dict[str, Any] = {"return_value": False, "compile": "graph", "check_finite": False}
    if not callable(f):
        raise TypeError(f"linearize takes a function, and got a {type(f).__name__}: pass f, not f(x)")
    require_one_of(("error", "zero"), unconnected=unconnected)
    return Linearize(f, _Linearized(), Sources(argnums, wrt), unconnected=unconnected, **own)


def gradient(recording: Recording, cotangents: Any = None) -> list[Any]:
    """Return the gradient of what was recorded, None where there is none; IndexedSlices become tensors."""
    found = recording.tape.gradient(recording.outputs, recording.sources, output_gradients=cotangents)
    return [None if part is None else tf.convert_to_tensor(part) for part in found]


def linearized(
    call: Call, record: Callable[[], Recording] | None = None, *, end: int | None = None
) -> tuple[Recording, Push]:
    """Evaluate the function, and return what was recorded and a function from tangents to products with them.

    u -> Jᵀu is linear in u, so its derivative is the same for every u, and transposed it is v -> Jv. In a graph nothing
    remains of the products with u but that transpose: what runs is forward mode. `tf.autodiff.ForwardAccumulator` would
    do it directly, but it evaluates the function anew for every tangent, and after some dozens of traces in one session
    it forgets shapes, which `tf.vectorized_map` needs.

    Args:
        record: evaluates the function under a persistent tape; by default `Call.record` does.
        end: which outputs have products, ``outputs[:end]``; by default all.

    Raises:
        ValueError: if a custom gradient is not linear in its cotangents: no product with tangents is right then.
    """
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        recording = record() if record else call.record(persistent=True)
        call.require(Needs.TANGENTS)
        # Any would do, since it is linear in them; with positive ones, a gradient that divides by them is right, too.
        cotangents = [tf.ones_like(output) for output in recording.outputs[:end]]
        outer.watch(cotangents)
        products = gradient(recording._replace(outputs=recording.outputs[:end]), cotangents)
    call.require_connected(products)

    def push(tangents: Tensors) -> list[tf.Tensor | None]:
        pairs = [(product, v) for product, v in zip(products, tangents, strict=True) if product is not None]
        return outer.gradient([product for product, _ in pairs], cotangents, [v for _, v in pairs])

    call.require_linear(end)
    return recording, push


class _VJP(Recipe):
    name = "vjp"
    vector: str | None = "cotangents"

    def compute(self, call: Call) -> Computed:
        recording = call.record()
        if call.signature.vector is None:
            call.require_scalar()
        else:
            self.require_vector(call, call.like_outputs)
        found = gradient(recording, call.vector or None)
        call.require_connected(found)
        outputs = [*recording.outputs, *dense(found, recording.sources)]
        structure = pair(call.traced.description, call.signature.source_description)
        return Computed(outputs, structure, Plan("reverse", way="one backward pass"), None, recording.outputs)


class _ValueAndGradient(_VJP):
    """The same with a cotangent of 1."""

    name = "value_and_gradient"
    vector = None


class _JVP(Recipe):
    name = "jvp"
    vector = "tangents"

    def compute(self, call: Call) -> Computed:
        self.require_vector(call, call.like_sources)
        recording, push = linearized(call)
        products = dense(push(call.vector), recording.outputs)
        description = call.traced.description
        plan = Plan("forward", way="one forward pass")
        return Computed([*recording.outputs, *products], pair(description, description), plan, None, recording.outputs)


class _Linearized(Recipe):
    name = "linearize"


class Linearize(Transform):
    """A function and its derivative at a point; otherwise as `Transform`."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._points: dict[Any, tuple] = {}

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Callable[[Any], Any]]:
        key, signature, tensors = self._flattened(args, kwargs)
        made = signature()
        if not tf.executing_eagerly():
            call = Call(made, tensors, LOOP)
            with call.explaining():
                recording, push = linearized(call)
            outputs, wanted = recording.outputs, call.like_sources
            product = lambda tangents: dense(push(tangents), outputs)  # noqa: E731
            return self._pair(call.traced.description, outputs, wanted, product)
        named = self._named.now()
        key = (key, *map(id, named))
        entry = self._points.get(key)
        if entry is None:
            entry = self._points[key] = (self._parts(made, tensors), named)
            while len(self._points) > costs.SIGNATURES:
                del self._points[next(iter(self._points))]
        (forward, product_of, description, wanted, count), _ = entry
        found = forward(tensors)
        outputs, kept = found[:count], found[count:]
        return self._pair(description, outputs, wanted, lambda tangents: product_of([*kept, *tangents]))

    def _pair(
        self, description: Description, outputs: Tensors, wanted: Wanted, product: Callable[[Tensors], Any]
    ) -> tuple[Any, Callable[[Any], Any]]:
        def along(tangents: Any) -> Any:
            leaves: list[Any] = []
            given = flatten(tangents, leaves, numbers=True)
            tensors = [dense_tensor(leaf, self.__name__) for leaf in leaves]
            require_alike(self.__name__, "tangents", given, tensors, wanted)
            return unflatten(description, iter(product(tensors)))

        return unflatten(description, iter(outputs)), along

    def _parts(self, signature: Signature, tensors: Tensors) -> tuple:
        """Trace the product once, and cut it where the tangents come in: what does not depend on them is kept."""
        made: list[Call] = []

        def program(*inputs: tf.Tensor) -> list[tf.Tensor]:
            call = Call(signature, inputs[: len(tensors)], LOOP)
            made[:] = [call]
            with call.explaining():
                recording, push = linearized(call)
            return [*recording.outputs, *map(tf.identity, dense(push(inputs[len(tensors) :]), recording.outputs))]

        sources = signature.sources.variables or tensors[: signature.own]
        specs = [*signature.specs, *[tf.TensorSpec(source.shape, source.dtype) for source in sources]]
        whole = tf.compat.v1.wrap_function(program, specs)
        (call,), graph = made, whole.graph
        self._warn(call)
        inputs, tangents = graph.inputs[: len(tensors)], graph.inputs[len(tensors) : len(specs)]
        moved = {tensor.op for tensor in tangents}
        kept: dict[Any, tf.Tensor] = {}
        for op in graph.get_operations():
            if not moved.isdisjoint([*(tensor.op for tensor in op.inputs), *op.control_inputs]):
                moved.add(op)
                # `prune` cuts at all outputs of an operation, or at none.
                kept.update((output.ref(), output) for tensor in op.inputs for output in tensor.op.outputs)
        captured = {tensor.ref() for tensor in graph.internal_captures}  # both parts capture them anew
        residuals = [
            tensor
            for ref, tensor in kept.items()
            if tensor.op not in moved
            and ref not in captured
            and (tensor.op.type != "Const" or tensor.op.control_inputs)
        ]
        count = len(call.traced.names)
        outputs, products = graph.outputs[:count], graph.outputs[count:]
        forward = direct(whole.prune(inputs, [*outputs, *residuals]))
        return (
            forward,
            direct(whole.prune([*residuals, *tangents], products)),
            call.traced.description,
            call.like_sources,
            count,
        )
