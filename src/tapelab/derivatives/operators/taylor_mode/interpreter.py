"""Going through a traced graph, operation by operation, with channels."""

from collections.abc import Callable, Sequence

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.branches import conditional, loop
from tapelab.derivatives.operators.taylor_mode.by_derivatives import by_derivatives
from tapelab.derivatives.operators.taylor_mode.kinds import CONSTANT
from tapelab.derivatives.operators.taylor_mode.rules import RULES
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val
from tapelab.graphs.flow import Walk
from tapelab.graphs.program import has_custom_gradient, place, reissue
from tapelab.process.tensorflow import tf

# Where values are equal, the derivatives of these are limits that are taken when gradients are differentiated
# (`tapelab.derivatives.wrong.cures.ties`): not along curves.
_DECOMPOSITIONS = {"Eig", "SelfAdjointEigV2", "Svd"}
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
            reason = str(error).strip().splitlines()[:1] or ["no message"]
            named = NoRule(f"{place(op)} has no rule here: {reason[0][:150]}")
            named.placed = True
            raise named from error

    def branch(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        return conditional(self, self._algebra, op, known)

    def loop(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        return loop(self, self._algebra, op, known)

    def step(self, op: tf.Operation, known: list[Val]) -> list[Val]:
        """Issue an operation anew, with its channels."""
        vals, values = known, [v.v for v in known]
        if not any(v.ch for v in vals) or op.type in CONSTANT or not any(_continuous(t) for t in op.outputs):
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


def _continuous(tensor):
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
