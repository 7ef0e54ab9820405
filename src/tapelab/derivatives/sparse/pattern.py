"""The pattern of a Jacobian or a Hessian, from the graph of the function or of its gradient.

Every element of every tensor gets the set of the elements of the sources that it depends on, operation by operation.
What is the same at every call (shapes, constants, counters of loops) is computed on the way: it tells which elements a
gather takes, where a matrix is zero and how often a loop runs. An operation without a rule makes all of its results
depend on all of its inputs, and is named.
"""

from collections.abc import Sequence

from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.hessians import gradient_under
from tapelab.derivatives.private import function_body
from tapelab.derivatives.problem import Problem
from tapelab.derivatives.sparse.dependence import Dependence, NoRule, Room, everything, identity, room_for, union
from tapelab.derivatives.sparse.lists import LISTS
from tapelab.derivatives.sparse.products import PRODUCTS
from tapelab.derivatives.sparse.rules import RULES, Step
from tapelab.derivatives.sparse.stencils import STENCILS
from tapelab.derivatives.taylor.kinds import CONSTANT
from tapelab.derivatives.taylor.reissue import CALLS, place, reissue
from tapelab.runtime import tf

import numpy as np
from scipy import sparse

_RULES = RULES | PRODUCTS | STENCILS
_FLAT = CONSTANT | {"FloorDiv", "TruncateDiv"}  # without a derivative, or with one that is zero
_SHAPES = {"Rank", "Shape", "ShapeN", "Size"}
_BRANCHES, _LOOPS = ("If", "StatelessIf"), ("While", "StatelessWhile")
_STEPS = 50_000  # operations of all turns of loops
_DERIVED = ("gradient_tape", "gradients")  # the scopes that TensorFlow puts gradients' operations in


class _Unending(Exception):
    """A loop that is not followed turn by turn; says why."""


class Walk:
    """Sends dependences through graphs.

    Args:
        room: raises if a matrix is too large.

    Attributes:
        dense: the operations whose results were taken to depend on all of their inputs, with their lines and why.
    """

    def __init__(self, room: Room):
        self._room = room
        self._steps = 0
        self._looping = 0
        self._constants: dict = {}
        self._needed: dict = {}
        self.dense: list[str] = []

    def run(self, graph: tf.Graph, inputs: Sequence[Dependence]) -> list[Dependence]:
        """Return what is known of a graph's outputs."""
        known = {tensor.ref(): one for tensor, one in zip(graph.inputs, inputs, strict=True)}
        for op in self._operations(graph):
            found = self._follow(op, [known[tensor.ref()] for tensor in op.inputs])
            for tensor, one in zip(op.outputs, found, strict=True):
                known[tensor.ref()] = one
        return [known[tensor.ref()] for tensor in graph.outputs]

    def _operations(self, graph):
        """The operations that a graph's outputs are made of, each after those of its inputs.

        They were not always made in that order: a loop gets further inputs when its gradient is built.
        """
        if id(graph) not in self._needed:
            seen, order = {tensor.op for tensor in graph.inputs}, []
            left = [(tensor.op, False) for tensor in graph.outputs]
            while left:
                op, ready = left.pop()
                if ready:
                    order.append(op)
                elif op not in seen:
                    seen.add(op)
                    left += [(op, True), *((tensor.op, False) for tensor in op.inputs)]
            self._needed[id(graph)] = order, graph  # the graph is kept with it: its id stays its own
        return self._needed[id(graph)][0]

    def _follow(self, op, known):
        if self._looping:
            self._steps += 1
            if self._steps > _STEPS:
                raise _Unending(f"its turns are more than {_STEPS} operations")
        if op.type in ("Identity", "IdentityN"):
            return known
        if op.type in CALLS:
            return self.run(function_body(op.graph, op.get_attr("f").name), known)[: len(op.outputs)]
        if op.type in _BRANCHES:
            return self._branch(op, known)
        if op.type in _LOOPS:
            return self._loop(op, known)
        shapes = _shapes(op, known)
        values = self._values(op, known, shapes)
        if values is not None:
            return [Dependence(shape, value=value) for shape, value in zip(shapes, values, strict=True)]
        flat = op.type in _FLAT or not any(map(_continuous, op.outputs))
        if op.type not in LISTS and (flat or not any(one.depends for one in known)):
            return [Dependence(shape) for shape in shapes]
        try:
            return self._by_rule(op, known, shapes)
        except NoRule as error:
            return self._everything(op, known, shapes, str(error))

    def _by_rule(self, op, known, shapes):
        if op.type == "AddN" and op.outputs[0].dtype == tf.variant:
            return [_either(known, self._room)]
        if op.type in LISTS:
            return LISTS[op.type](Step(op, known, shapes, self._room))
        if op.type not in _RULES or any(one.items is not None for one in known):
            raise NoRule("it is not among the operations that are followed")
        if any(one.depends and one.shape is None for one in known) or None in shapes:
            raise NoRule("a shape is not known in a graph")
        try:
            matrices = _RULES[op.type](Step(op, known, shapes, self._room))
        except (ValueError, TypeError, IndexError, tf.errors.OpError) as error:
            raise NoRule(f"its rule does not fit: {error}") from error
        return [
            Dependence(shape, matrix if _continuous(tensor) else None)
            for shape, matrix, tensor in zip(shapes, matrices, op.outputs, strict=True)
        ]

    def _values(self, op, known, shapes):
        """The values of an operation's results, if they are the same at every call; None otherwise."""
        if op.type == "Const":
            if op not in self._constants:
                with tf.init_scope(), tf.device("CPU:0"):
                    self._constants[op] = reissue(op, [])
            return self._constants[op]
        try:
            with tf.init_scope(), tf.device("CPU:0"):
                if op.type in _SHAPES and all(one.shape is not None for one in known):
                    return reissue(op, [tf.zeros(one.shape) for one in known])
                if op.type == "TensorListLength" and known[0].items is not None:
                    return [tf.constant(len(known[0].items))]
                if op.type in ("ZerosLike", "OnesLike") and shapes[0] is not None and op.outputs[0].dtype != tf.variant:
                    return [(tf.zeros if op.type == "ZerosLike" else tf.ones)(shapes[0], op.outputs[0].dtype)]
                if op.type in LISTS or op.op_def.is_stateful or any(one.value is None for one in known):
                    return None
                return reissue(op, [one.value for one in known])
        except Exception:  # no kernel here, or one that refuses these values
            return None

    def _everything(self, op, known, shapes, reason):
        if not any(one.depends for one in known):
            return [Dependence(shape) for shape in shapes]
        text = f"{_line_of(op)}: {reason}"
        if text not in self.dense:
            self.dense.append(text)
        return [
            everything(known, None if tensor.dtype == tf.variant else shape, self._room)
            if _continuous(tensor)
            else Dependence(shape)
            for tensor, shape in zip(op.outputs, shapes, strict=True)
        ]

    def _branch(self, op, known):
        chosen, *inputs = known

        def run(name):
            return self.run(function_body(op.graph, op.get_attr(name).name), inputs)[: len(op.outputs)]

        if chosen.value is not None:
            return run("then_branch" if bool(chosen.value.numpy().any()) else "else_branch")
        pairs = zip(run("then_branch"), run("else_branch"), strict=True)
        return [_either(pair, self._room) for pair in pairs]

    def _loop(self, op, known):
        """Follow a loop turn by turn, where constants tell how often it runs."""
        condition, body = (function_body(op.graph, op.get_attr(name).name) for name in ("cond", "body"))
        now = list(known)
        self._looping += 1
        try:
            while True:
                (goes_on,) = self.run(condition, now)[:1]
                if goes_on.value is None:
                    raise _Unending("how often it runs depends on values")
                if not goes_on.value.numpy().any():
                    return now
                now = self.run(body, now)[: len(now)]
        except _Unending as error:
            if self._looping > 1 and self._steps > _STEPS:
                raise  # they are the outer loop's turns
            return self._everything(op, known, [_static(tensor) for tensor in op.outputs], str(error))
        finally:
            self._looping -= 1
            self._steps = self._steps if self._looping else 0


def _either(ones, room):
    """What is known of a tensor that is one of two, or the sum of several."""
    ones = [one for one in ones if one is not None]
    first = ones[0]
    if all(one is first for one in ones):
        return first
    if any(one.items is not None for one in ones):
        lists = [one.items for one in ones if one.items]  # an empty box is no box
        hidden = any(one.items is None and one.depends for one in ones)
        if not hidden and all(len(items) == len(lists[0]) for items in lists):
            merged = [
                _either(parts, room) if any(part is not None for part in parts) else None
                for parts in zip(*lists, strict=True)
            ]
            return Dependence((), items=tuple(merged))
        return everything(ones, None, room)
    if any(one.shape != first.shape or one.shape is None for one in ones):
        return everything(ones, None, room)
    matrices = [one.matrix for one in ones if one.matrix is not None]
    return Dependence(first.shape, union(matrices) if matrices else None)


def _continuous(tensor):
    """Whether derivatives go through a tensor: numbers that are not whole, and what holds such."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype in (tf.variant, tf.resource)


def _static(tensor):
    return tuple(tensor.shape) if tensor.shape.is_fully_defined() else None


def _shapes(op, known):
    """The shapes of an operation's outputs: its own, or from those that the inputs have here; None if not known."""
    shapes = [_static(tensor) for tensor in op.outputs]
    if None not in shapes or any(one.shape is None for one in known) or any(one.items is not None for one in known):
        return shapes
    try:
        if op.type.startswith("Segment") and known[1].value is not None:
            return [(int(known[1].value.numpy().max(initial=-1)) + 1, *known[0].shape[1:])]
        with tf.Graph().as_default():
            inputs = [
                tf.compat.v1.placeholder(tensor.dtype, one.shape)
                if one.value is None
                else tf.constant(one.value.numpy())
                for tensor, one in zip(op.inputs, known, strict=True)
            ]
            return [_static(output) for output in reissue(op, inputs)]
    except Exception:  # an operation that cannot be issued again has the shapes that it has
        return shapes


def _line_of(op):
    """Name an operation and its line; of a gradient's operation, that of the nearest one that the function has."""
    seen, left = {op}, [op]
    while left:
        near = left.pop(0)
        if not near.name.startswith(_DERIVED) and near.type not in ("Const", "Placeholder"):
            return place(op) if near is op else f"{op.type} in the gradient of {place(near)}"
        new = [tensor.op for tensor in near.inputs if tensor.op not in seen]
        seen.update(new)
        left += new
    return f"{op.type} ({op.name})"


class Pattern:
    """Where a matrix of derivatives may have entries.

    Attributes:
        matrix: shape (rows, columns), boolean, canonical.
        dense: a list of strings: operations that were taken to depend on all of their inputs.
    """

    def __init__(self, matrix: sparse.csr_array, dense: Sequence[str] = ()):
        self.matrix = matrix.tocsr()
        self.matrix.sum_duplicates()
        self.dense = list(dense)


def jacobian_pattern(problem: Problem, limit: float) -> Pattern:
    """Return the pattern of the Jacobian of all outputs by all sources, rows and columns in the order of `pack`.

    Where gradients were given with `tf.custom_gradient`, the pattern is that of the product with cotangents.

    Raises:
        MemoryLimitError: if it is so dense that following it does not fit ``limit`` bytes.
    """
    if not problem.custom_gradients:
        return _traced(problem, limit, problem.evaluate, problem.output_sizes)

    def product(tensors, cotangents):
        tape, sources, outputs = recorded(problem, tensors)
        return dense_gradient(tape, outputs, sources, cotangents)

    specs = [tf.TensorSpec(*pair) for pair in zip(problem.output_shapes, problem.output_dtypes, strict=True)]
    found = _traced(problem, limit, product, problem.source_sizes, vector=specs)
    return Pattern(found.matrix.T, found.dense)


def hessian_pattern(problem: Problem, limit: float) -> Pattern:
    """Return the pattern of the Hessian of a scalar by all sources, symmetric.

    It is that of the Jacobian of the gradient's graph. Each half may say too much: an entry is where both have one.

    Raises:
        MemoryLimitError: as for `jacobian_pattern`.
    """
    if problem.custom_gradients:

        def product(tensors, tangents):
            with tf.GradientTape(watch_accessed_variables=False) as outer:
                sources, gradients = gradient_under(outer, problem, tensors)
            pairs = [(g, tf.reshape(v, [-1])) for g, v in zip(gradients, tangents, strict=True) if g is not None]
            return dense_gradient(outer, [g for g, _ in pairs], sources, [v for _, v in pairs])

        found = _traced(problem, limit, product, problem.source_sizes, vector=problem.source_specs)
        return Pattern(found.matrix + found.matrix.T, found.dense)

    def gradient(tensors):
        tape, sources, outputs = recorded(problem, tensors)
        return dense_gradient(tape, outputs[0], sources)

    found = _traced(problem, limit, gradient, problem.source_sizes)
    return Pattern(found.matrix.multiply(found.matrix.T), found.dense)


def _traced(problem, limit, compute, sizes, vector=None):
    """Trace a function of tensors and follow the sources, or the vector if there is one, to its results."""
    own = [] if problem.data_start == 0 else problem.source_specs
    data = [tf.TensorSpec(*pair) for pair in zip(problem.data_shapes, problem.data_dtypes, strict=True)]
    specs = [*own, *data]

    def trace(*tensors):
        parts = [tensors[: len(specs)]] if vector is None else [tensors[: len(specs)], tensors[len(specs) :]]
        return [tf.identity(result) for result in compute(*parts)]

    concrete = tf.function(trace, autograph=False).get_concrete_function(*specs, *(vector or ()))
    followed = vector or problem.source_specs
    total = sum(spec.shape.num_elements() for spec in followed)
    start, moving = 0, []
    for spec in followed:
        count = spec.shape.num_elements()
        moving.append(Dependence(tuple(spec.shape), identity(count, start, total)))
        start += count
    still = [Dependence(tuple(spec.shape)) for spec in specs]
    held = {}
    if vector is not None:
        inputs = [*still, *moving]
    elif problem.data_start == 0:
        inputs = still
        held = {id(variable.handle): one for variable, one in zip(problem.sources(()), moving, strict=True)}
    else:
        inputs = [*moving, *still[len(own) :]]
    inputs += [held.get(id(tensor)) or _captured(tensor) for tensor in concrete.captured_inputs]
    room = room_for(problem.name, limit)
    walk = Walk(room)
    outputs = walk.run(concrete.graph, inputs)
    blocks = []
    for one, size in zip(outputs, sizes, strict=True):
        matrix = one.matrix
        if matrix is None:
            matrix = sparse.csr_array((size, total), dtype=bool)
        elif one.shape is None:
            matrix = sparse.csr_array(np.ones([size, 1], bool)) @ matrix
        blocks.append(matrix)
    return Pattern(sparse.vstack(blocks, format="csr"), walk.dense)


def _captured(tensor):
    """What is known of a tensor from outside: its value, unless it is a variable, or of the graph around."""
    if tensor.dtype in (tf.resource, tf.variant):
        return Dependence(None if tensor.dtype == tf.variant else ())
    symbolic = tf.is_symbolic_tensor(tensor)
    return Dependence(_static(tensor), value=None if symbolic else tensor)
