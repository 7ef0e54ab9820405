"""`ExplainTape`: a `tf.GradientTape` that can be asked why a gradient is None."""

import collections
import contextlib
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tapelab.explain.ground import hooks, lines, private
from tapelab.explain.ground.log import Log, keys_in

import tensorflow as tf

_as_it_is = tf.autograph.experimental.do_not_convert  # AutoGraph takes no time for our own code, nor warns of it
_USED_UP = "A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)"

# Tensors that a gradient computation returned, by key, newest last: what shows that a target is itself a gradient.
gradients_returned = collections.deque(maxlen=10_000)


class ExplainTape(tf.GradientTape):
    """A drop-in replacement for `tf.GradientTape` that keeps a log of what it saw.

    Use it as you would a `tf.GradientTape`: the arguments, the gradients and the errors are the same. Afterwards
    `explain(tape, target, source)` says why a gradient is None, and `draw(tape, target, sources)` shows what was
    recorded.

    The log holds every tensor made inside the tape until the tape itself is released, and each operation takes some
    microseconds longer: it is for finding a mistake, not for training. Inside a `tf.function` it keeps no log: there
    `explain` says which gradients are None, and not why. Put the tape outside the compiled function, around its call,
    or run it eagerly: ``tf.config.run_functions_eagerly(True)``.

    Args:
        persistent: whether `gradient` may be called more than once.
        watch_accessed_variables: whether trainable variables are watched when they are read.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True):
        # Always persistent underneath, so that the tape can be asked again for what it really returns. That it is used
        # up after one gradient, unless it was asked to be persistent, is taken care of in `_computing`.
        super().__init__(persistent=True, watch_accessed_variables=watch_accessed_variables)
        self.log = Log(self)
        self.is_persistent = persistent
        self.watches_variables = watch_accessed_variables
        self.in_function = False
        self.blind = None
        self.spent = False  # whether the one gradient of a tape that is not persistent has been computed
        self.spent_line = None
        self.asked = set()  # (key of target, key of source) of that call
        self.refused = False  # whether a later call was refused
        self._busy = False
        self._finalizer = None

    def __enter__(self) -> "ExplainTape":
        if tf.executing_eagerly():
            self.blind = hooks.blind()
        super().__enter__()
        if self.spent:  # as with a plain tape, a used-up tape starts afresh when entered again
            super().reset()
            self.log = Log(self)
            self.spent, self.refused = False, False
        if not tf.executing_eagerly():
            self.in_function = True
            return self
        try:
            if not self.blind:
                self.log.open()
                self._finalizer = weakref.finalize(self, hooks.forget, self.log)  # a tape may never be left
                self._finalizer.atexit = False
                hooks.listen(self.log)
        except BaseException:
            self._stop_listening()
            super().__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)
        finally:
            self._stop_listening()

    def _stop_listening(self) -> None:
        if not self.in_function and not self.blind:
            hooks.silence(self.log)
            if self._finalizer is not None:
                self._finalizer.detach()
            self.log.close()

    @_as_it_is
    def watch(self, tensor: Any) -> None:
        for one in tf.nest.flatten(tensor):
            if hasattr(one, "path"):
                raise ValueError(
                    f"tape.watch was passed the Keras variable {one.path}; expected TensorFlow's tensors or variables. "
                    "A trainable variable is watched when it is read: leave tape.watch out, or pass variable.value"
                )
        super().watch(tensor)
        if self._sees():
            self.log.watch(tensor)

    @_as_it_is
    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        with super().stop_recording():
            self.log.is_paused = True
            try:
                yield
            finally:
                self.log.is_paused = False

    @_as_it_is
    def reset(self) -> None:
        super().reset()
        self.log.reset()

    @_as_it_is
    def gradient(self, target: Any, sources: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._computed(super().gradient, target, sources, *arguments, **keywords)

    @_as_it_is
    def jacobian(self, target: tf.Tensor, sources: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._computed(super().jacobian, target, sources, *arguments, **keywords)

    @_as_it_is
    def batch_jacobian(self, target: tf.Tensor, source: Any, *arguments: Any, **keywords: Any) -> tf.Tensor | None:
        return self._computed(super().batch_jacobian, target, source, *arguments, **keywords)

    def _computed(
        self, compute: Callable[..., Any], target: Any, sources: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        """What a gradient computation returns, taken down; not what it computes on the way, within a function."""
        if not keywords.get("experimental_use_pfor", True) and tf.executing_eagerly() and not self.is_persistent:
            raise RuntimeError(
                "GradientTape must be created with persistent=True to compute the jacobian with eager execution "
                "enabled and with experimental_use_pfor set to False."
            )
        with self._computing(target, sources):
            found = compute(target, sources, *arguments, **keywords)
            if self._sees():
                made = tf.nest.flatten(found, expand_composites=True)
                eager = (one for one in made if tf.is_tensor(one) and hasattr(one, "numpy"))
                gradients_returned.extend(map(private.key, eager))
            return found

    def result_for(self, targets: list[Any], source: Any) -> Any:
        """Ask the tape what its gradient is, without using up the tape or a tf.py_function, and recording nothing.

        Args:
            targets: a list of tensors.
            source: a tensor or variable.

        Returns:
            A tensor, `tf.IndexedSlices` or None.

        Raises:
            Whatever the gradient computation raises.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(hooks.deaf())
            stack.enter_context(private.paused())
            stack.enter_context(private.with_python_calls(self.log.python_calls))
            if self.log.is_open and not self.log.is_paused:
                stack.enter_context(super().stop_recording())
            return super().gradient(targets, source)

    def _sees(self) -> bool:
        return not self.in_function and not self.blind and self.log.opened is not None

    @contextlib.contextmanager
    def _computing(self, target: Any, sources: Any) -> Iterator[None]:
        """Behave as a tape that is not persistent does: stop recording, compute once, then be used up."""
        if self._busy or self.is_persistent:
            yield
            return
        if self.spent:
            self.refused = True
            raise RuntimeError(_USED_UP)
        super().__exit__(None, None, None)
        self._stop_listening()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        self.spent, self.spent_line = True, lines.walk(sys._getframe(1), (), None).line
        if self._sees():
            self.asked = set(itertools.product(keys_in(target), keys_in(sources)))
