"""Conditionals and loops with channels: `tf.cond` and `tf.while_loop` of the bodies, channels among what they carry."""

from collections.abc import Sequence
from typing import Any

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val, zeros_if_none
from tapelab.process.tensorflow import tf


def conditional(interpreter: Any, algebra: Algebra, op: tf.Operation, vals: Sequence[Val]) -> list[Val]:
    """Return the outputs of an If. One that is no number, or depends on nothing that moves, has no channels."""
    chosen, *inputs = vals
    moves = any(v.ch for v in inputs)
    carried = [moves and output.dtype.is_floating for output in op.outputs]

    def branch(name):
        def run():
            outputs = interpreter.body(op, op.get_attr(name).name, inputs)
            return _flat(algebra, outputs, carried)

        return run

    found = tf.cond(_truth(chosen.v), branch("then_branch"), branch("else_branch"))
    return _unflat(algebra, found if isinstance(found, (list, tuple)) else [found], carried)


def loop(interpreter: Any, algebra: Algebra, op: tf.Operation, vals: Sequence[Val]) -> list[Val]:
    """Return the outputs of a While. What comes to depend on the sources in its body has channels from the start."""
    body, condition = op.get_attr("body").name, op.get_attr("cond").name
    carried = [bool(v.ch) for v in vals]
    while True:
        grown = _after_body(interpreter, algebra, op, body, vals, carried)
        if grown == carried:
            break
        carried = grown

    def repeat(*parts):
        return _flat(algebra, interpreter.body(op, body, _unflat(algebra, parts, carried)), carried)

    def goes_on(*parts):
        values = [Val(v.v) for v in _unflat(algebra, parts, carried)]
        return _truth(interpreter.body(op, condition, values)[0].v)

    start = _flat(algebra, vals, carried)
    found = tf.while_loop(goes_on, repeat, start, parallel_iterations=op.get_attr("parallel_iterations"))
    return _unflat(algebra, found, carried)


def _after_body(interpreter, algebra, op, body, vals, carried):
    """Which of the variables of a loop have channels before its body or after it."""
    found = []

    def trace(*parts):
        outputs = interpreter.body(op, body, _unflat(algebra, parts, carried))
        found[:] = [before or bool(output.ch) for before, output in zip(carried, outputs, strict=True)]
        return []

    specs = [tf.TensorSpec(part.shape, part.dtype) for part in _flat(algebra, vals, carried)]
    tf.function(trace, autograph=False).get_concrete_function(*specs)
    return found


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


def _unflat(algebra: Algebra, parts: Sequence[tf.Tensor], carried: Sequence[bool]) -> list[Val]:
    """Undo `_flat`."""
    rest = iter(parts)
    return [Val(next(rest), [next(rest) for _ in algebra.lanes] if channels else None) for channels in carried]


def _truth(value):
    return value if value.dtype.is_bool else tf.not_equal(value, tf.zeros_like(value))
