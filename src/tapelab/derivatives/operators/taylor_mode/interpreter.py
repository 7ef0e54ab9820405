"""Going through a traced graph, operation by operation, with channels: conditionals and loops carry them along."""

from collections.abc import Callable, Sequence
from functools import partial

from tapelab.derivatives.machinery.failures import told_line
from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.by_derivatives import by_derivatives
from tapelab.derivatives.operators.taylor_mode.rules import RULES
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val, zeros_if_none
from tapelab.graphs.flow import Walk
from tapelab.graphs.operations import with_fact
from tapelab.graphs.program import has_custom_gradient, place, reissue
from tapelab.process.tensorflow import Tensors, tf

_CONSTANT = with_fact("flat")
# Where values are equal, the derivatives of these are limits that are taken when gradients are differentiated
# (`tapelab.derivatives.wrong.cures.ties`): not along curves.
_DECOMPOSITIONS = with_fact("spectral")
# What TensorFlow raises where an operation cannot be issued, mapped or differentiated. What else a rule raises is a
# fault of ours, and is not called a missing rule.
_CANNOT = (LookupError, NoRule, NotImplementedError, RuntimeError, TypeError, ValueError, tf.errors.OpError)


class Interpreter(Walk[Val]):
    """Sends values and channels through graphs.

    Args:
        algebra: which channels there are.
        strict: whether an operation without a rule raises `NoRule`; otherwise derivatives of derivatives of that
            operation alone are taken.

    Attributes:
        custom: the places of the operations whose gradient was given by the function's author, and was not used.
    """

    def __init__(self, algebra: Algebra, *, strict: bool = True):
        self._algebra = algebra
        self._strict = strict
        self.custom: list[str] = []

    def follow(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        """Return an operation's outputs. What goes wrong names it, and its line."""
        try:
            return super().follow(op, known)
        except _CANNOT as error:
            if getattr(error, "placed", False):
                raise
            named = NoRule(f"{place(op)} has no rule here: {told_line(error)[:150]}")
            named.placed = True
            raise named from error

    def branch(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        """Return a conditional's outputs. One that is no number, or depends on nothing that moves, has no channels."""
        chosen, *inputs = known
        moves = any(v.ch for v in inputs)
        carried = [moves and output.dtype.is_floating for output in op.outputs]

        def run(name: str) -> list[tf.Tensor]:
            return _flat(self._algebra, self.body(op, op.get_attr(name).name, inputs), carried)

        found = tf.cond(_truth(chosen.v), partial(run, "then_branch"), partial(run, "else_branch"))
        return _unflat(self._algebra, found if isinstance(found, (list, tuple)) else [found], carried)

    def loop(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        """Return the outputs of a loop. What comes to depend on the sources in its body has channels from the start."""
        algebra, body, condition = self._algebra, op.get_attr("body").name, op.get_attr("cond").name
        carried, grown = None, [bool(v.ch) for v in known]
        while grown != carried:
            carried, grown = grown, self._after_body(op, body, known, grown)

        def repeat(*parts: tf.Tensor) -> list[tf.Tensor]:
            return _flat(algebra, self.body(op, body, _unflat(algebra, parts, carried)), carried)

        def goes_on(*parts: tf.Tensor) -> tf.Tensor:
            values = [Val(v.v) for v in _unflat(algebra, parts, carried)]
            return _truth(self.body(op, condition, values)[0].v)

        start = _flat(algebra, known, carried)
        found = tf.while_loop(goes_on, repeat, start, parallel_iterations=op.get_attr("parallel_iterations"))
        return _unflat(algebra, found, carried)

    def _after_body(self, op: tf.Operation, body: str, vals: Sequence[Val], carried: Sequence[bool]) -> list[bool]:
        """Which of the variables of a loop have channels before its body or after it."""
        found: list[bool] = []

        def trace(*parts: tf.Tensor) -> list[tf.Tensor]:
            outputs = self.body(op, body, _unflat(self._algebra, parts, carried))
            found[:] = [before or bool(output.ch) for before, output in zip(carried, outputs, strict=True)]
            return []

        specs = [tf.TensorSpec(part.shape, part.dtype) for part in _flat(self._algebra, vals, carried)]
        tf.function(trace, autograph=False).get_concrete_function(*specs)
        return found

    def step(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        """Issue an operation anew, with its channels."""
        vals, values = known, [v.v for v in known]
        if not any(v.ch for v in vals) or op.type in _CONSTANT or not any(_continuous(t) for t in op.outputs):
            return [Val(y) for y in reissue(op, values)]
        if has_custom_gradient(op):
            self.custom.append(place(op))
        if op.type in _DECOMPOSITIONS:
            raise NoRule("where its values are equal, terms would be missing")
        rule = RULES.get(op.type)
        if rule is None and self._strict:
            raise NoRule("none is written")
        if rule is not None:
            try:
                return rule(self._algebra, op, vals, values)
            except NoRule:
                if self._strict:
                    raise
        return by_derivatives(self._algebra, op, vals, values)


def _continuous(tensor: tf.Tensor) -> bool:
    # A list of tensors (variant) or a resource may carry numbers: those need a rule.
    return not (tensor.dtype.is_integer or tensor.dtype.is_bool or tensor.dtype == tf.string)


def propagate(
    f: Callable[..., list[tf.Tensor]], sources: Sequence[Val], algebra: Algebra, *, strict: bool = True
) -> tuple[list[Val], list[str]]:
    """Evaluate a function of tensors, with channels.

    Called while a graph is built.

    Args:
        f: takes the sources' tensors, returns a list of tensors; what else it needs, it captures.
        sources: the tensors with their channels.
        strict: as for `Interpreter`.

    Returns:
        A pair: f's results with their channels, and the places of custom gradients that were not used.
    """
    specs = [tf.TensorSpec(source.v.shape, source.v.dtype) for source in sources]
    traced = tf.function(f, autograph=False).get_concrete_function(*specs)
    for variable in traced.variables:
        tf.identity(variable)  # so that a tape around the whole knows that it was read
    interpreter = Interpreter(algebra, strict=strict)
    outputs = interpreter.run(traced.graph, [*sources, *map(Val, traced.captured_inputs)])
    return outputs, list(dict.fromkeys(interpreter.custom))


def _flat(algebra: Algebra, vals: Sequence[Val], carried: Sequence[bool]) -> list[tf.Tensor]:
    """The values, each followed by all of its channels, full, if they are carried."""
    parts = []
    for val, channels in zip(vals, carried, strict=True):
        parts.append(val.v)
        if not channels:
            if val.ch:
                raise NoRule(f"a result of dtype {val.v.dtype.name} depends on the sources")
            continue
        if not val.v.shape.is_fully_defined():
            raise NoRule(f"a shape on the way is not known in a graph, {val.v.shape}")
        for lanes, c in zip(algebra.lanes, val.channels(len(algebra.lanes)), strict=True):
            parts.append(zeros_if_none(c, lanes, val.v))
    return parts


def _unflat(algebra: Algebra, parts: Tensors, carried: Sequence[bool]) -> list[Val]:
    """Undo `_flat`."""
    rest = iter(parts)
    return [Val(next(rest), [next(rest) for _ in algebra.lanes] if channels else ()) for channels in carried]


def _truth(value: tf.Tensor) -> tf.Tensor:
    return value if value.dtype.is_bool else tf.not_equal(value, tf.zeros_like(value))
