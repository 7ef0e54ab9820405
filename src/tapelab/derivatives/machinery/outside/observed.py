"""Running a function for the first time, to see what it does or whether it runs: what it changed is changed back."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tapelab import process
from tapelab.derivatives.private import function_classes, operations_run
from tapelab.process.tensorflow import tf

_CHANGING = ("assign", "scatter", "batch_scatter", "_strided_slice_assign")


@contextlib.contextmanager
def observed() -> Iterator[set[str]]:
    """Undo changes of variables at the end of the block, and yield a set of the operations that run in it.

    Not undone is what moves a `tf.random.Generator` on, and what Python does itself.
    """
    values = _Values()
    with contextlib.ExitStack() as stack:
        _keep_what_changes(values, stack)
        ran = stack.enter_context(operations_run())
        try:
            yield ran
        finally:
            stack.close()
            values.restore()


@contextlib.contextmanager
def undone_if_it_fails(variables: Iterable[tf.Variable] | None) -> Iterator[None]:
    """Give variables back the values that they have now, if the block raises: these, or None for all that it changes.

    Of None, not undone is what `observed` does not undo.
    """
    values = _Values()
    with contextlib.ExitStack() as stack:
        if variables is None:
            _keep_what_changes(values, stack)
        else:
            values.keep(variables)
        try:
            yield
        except Exception:
            stack.close()
            values.restore()
            raise


class _Values:
    """Variables and the values that they had."""

    def __init__(self):
        self._kept = {}

    def keep(self, variables: Iterable[tf.Variable]) -> None:
        with tf.init_scope():
            for variable in variables:
                if id(variable) not in self._kept:
                    self._kept[id(variable)] = variable, tf.identity(variable)

    def restore(self) -> None:
        for variable, value in self._kept.values():
            variable.assign(value)


def _keep_what_changes(values: _Values, stack: contextlib.ExitStack) -> None:
    """Keep the value of each variable before it is changed, until the stack is closed."""
    owner = next(kind for kind in type(tf.Variable(0.0)).__mro__ if "assign_add" in vars(kind))
    for name in vars(owner):
        if name.startswith(_CHANGING):
            stack.enter_context(_keeping(values, owner, name, lambda variable: [variable]))
    concrete = function_classes()[1]
    if hasattr(concrete, "_call_flat"):  # else what a tf.function changes stays changed
        stack.enter_context(_keeping(values, concrete, "_call_flat", lambda called: called.graph.variables))


def _keeping(
    values: _Values, owner: type, name: str, variables_of: Callable[[Any], Iterable[tf.Variable]]
) -> contextlib.AbstractContextManager:
    """Replace a method that changes variables by one that keeps their values first."""

    def change(changing: Any, *args: Any, **kwargs: Any) -> Any:
        values.keep(variables_of(changing))
        return process.original(owner, name)(changing, *args, **kwargs)

    return process.replaced(owner, name, change)
