"""What one tape saw: its operations in order, and for each whether the tape recorded it.

The tape itself is C++ and shows nothing, so its rule is replayed here: an operation is recorded if the tape is open and
not paused and at least one input is on the tape with a dtype that can carry a gradient; then its outputs are on the
tape too.
"""

import collections
import dataclasses
import enum
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from tapelab.explain.ground import private
from tapelab.explain.ground.lines import Line, Place
from tapelab.explain.ground.measure import Attributes
from tapelab.process.tensorflow import Tensors, tf


@functools.cache
def can_carry(dtype: tf.DType) -> bool:
    """Whether a gradient can flow through a tensor of this dtype: real, complex, or a handle to something that is."""
    return dtype.is_floating or dtype.is_complex or dtype in (tf.resource, tf.variant)


@functools.cache
def is_handle(dtype: tf.DType) -> bool:
    """Whether a dtype is a handle to state rather than a value."""
    return dtype in (tf.resource, tf.variant)


def keys_of(value: Any) -> list[int]:
    """Return the keys that a tape knows a value by: one, or those of the parts of a ragged or sparse tensor.

    Parts that carry no gradient, such as indices, are left out where others do.
    """
    parts = tf.nest.flatten(getattr(value, "handle", value), expand_composites=True)
    carrying = [part for part in parts if can_carry(part.dtype)]
    return [private.key(part) for part in carrying or parts]


def keys_in(structure: Any) -> list[int]:
    """Return the keys of all values in a structure."""
    return [key for value in tf.nest.flatten(structure) for key in keys_of(value)]


# What the last tapes saw, for what a later one is given from there: key of a tensor → keys that it was made of, line.
ran_before = collections.deque(maxlen=4)


class Kind(enum.Enum):
    """How TensorFlow records it: an operation, a custom gradient, or the call of a tf.function; or not at all."""

    OPERATION = "operation"
    CUSTOM = "custom gradient"
    FUNCTION = "function"
    PYTHON = "Python on the values"


class Unrecorded(enum.Enum):
    """Why the tape did not record an operation."""

    UNWATCHED = "none of its inputs was on the tape"
    PAUSED = "the tape's recording was stopped"
    SUSPENDED = "TensorFlow had suspended all tapes"


@dataclasses.dataclass(slots=True, eq=False)
class Event:
    """One operation that ran while the tape was open.

    Attributes:
        index: its position in the log.
        op: the operation's type, such as "MatMul", or the function's name.
        kind: a `Kind`.
        inputs, outputs: the keys of its tensors.
        attributes: the operation's attributes, alternating names and values.
        place: the `Place` it was run from.
        unrecorded: why it is not on the tape, an `Unrecorded`; None if it is.
        backward: the backward function of a custom gradient; None otherwise.
        erased: whether the tape was reset after it.
        call: of a recorded call of a tf.function, what TensorFlow recorded: (backward function, keys of the inputs,
            keys of the outputs); None otherwise.
    """

    index: int
    op: str
    kind: Kind
    inputs: tuple
    outputs: tuple
    attributes: tuple
    place: Place
    unrecorded: Unrecorded | None
    backward: object = None
    erased: bool = False
    call: tuple | None = None

    @property
    def line(self) -> Line | None:
        """The learner's `Line`, or None."""
        return self.place.line

    @property
    def name(self) -> str:
        """What to call it: the type, or the function's name without TensorFlow's additions."""
        if self.kind is not Kind.FUNCTION:
            return self.op
        name = self.op
        for prefix in ("__inference_", "__forward_", "__backward_", "_"):
            name = name.removeprefix(prefix)
        return name.rstrip("0123456789").rstrip("_") or "function"


@dataclasses.dataclass(frozen=True)
class Departure:
    """A value that left TensorFlow: the key of its tensor, by which method, from where, and when (a key, too)."""

    key: int
    how: str
    place: Place
    time: int


class Log:
    """Listens to the hooks for one tape and replays what the tape records.

    Attributes:
        events: every `Event`, in order.
        departures: every `Departure`, in order.
        tensors: key → tensor, for every tensor that an event mentions.
        on_tape: the keys that the tape knows now.
        ever_watched: the keys that were on the tape by watching, also before a reset.
        producers: key → the event that made a tensor, the last one where a custom gradient took over.
        python_calls: what the calls of tf.py_function keep for their gradients, as `private.python_calls` returns it.
        python_calls_of: the same for one event, by its index; events without such calls are left out.
        bypassed: key of what a function with a custom gradient made that was passed no tensor by position → its line.
        opened, closed: when, by the numbering of tensors; None if it did not happen.
        is_open, is_paused: whether the tape is in its with block, and in `stop_recording`.
        resets: how often the tape was reset.
        failure: a sentence, if listening itself failed.
    """

    def __init__(self, tape: tf.GradientTape):
        # Weakly, so that the tensors are released at once with the tape and need not wait for the garbage collector.
        self._tape = weakref.ref(tape)
        self.events, self.departures = [], []
        self.tensors = {}
        self.on_tape, self.ever_watched = set(), set()
        self.producers = {}
        self.python_calls, self.python_calls_of = {}, {}
        self._calls_before = {}  # what was there when the tape opened
        self.opened = self.closed = None
        self.bypassed = {}
        self.resets = 0
        self.is_open, self.is_paused = False, False
        self.failure = None

    def watched_variables(self) -> tuple[tf.Variable, ...]:
        """Return the variables that the tape watches; none once the tape itself is gone."""
        tape = self._tape()
        return () if tape is None else tape.watched_variables()

    # What the tape tells.

    def open(self) -> None:
        """The tape began to record."""
        if self.opened is None:
            self.opened = private.next_key()
            self._calls_before = dict(private.python_calls())
        self.is_open, self.closed = True, None

    def close(self) -> None:
        """The tape no longer records."""
        if self.is_open:
            self.is_open, self.closed = False, private.next_key()
            made = {key: (event.inputs, event.line) for event in self.events for key in event.outputs}
            ran_before.append(made)

    def watch(self, tensors: Any) -> None:
        """The learner watches these: a structure of tensors, variables and composite tensors."""
        for value in tf.nest.flatten(tensors, expand_composites=True):
            self._add_watched(self._keep(getattr(value, "handle", value)))

    def reset(self) -> None:
        """The tape forgot everything."""
        for event in self.events:
            event.erased = True
        self.resets += 1
        self.on_tape.clear()

    # What the hooks tell.

    def on_operation(
        self, op_type: str, inputs: Tensors, attributes: Attributes, outputs: Tensors, place: Place
    ) -> None:
        """An operation ran."""
        inputs, outputs = self._keep_all(inputs), self._keep_all(outputs)
        is_function = op_type.startswith("__")
        unrecorded = None
        if self.is_paused:
            unrecorded = Unrecorded.PAUSED
        elif private.recording_stopped() and not is_function:
            unrecorded = Unrecorded.SUSPENDED
        else:
            self._notice_variables(inputs)
            # A function's call is recorded apart, once its outputs are there: see on_record.
            if is_function or not self._reaches_tape(inputs):
                unrecorded = Unrecorded.UNWATCHED
        kind = Kind.FUNCTION if is_function else Kind.OPERATION
        event = Event(len(self.events), op_type, kind, inputs, outputs, attributes, place, unrecorded)
        self.events.append(event)
        if is_function or op_type == "EagerPyFunc":
            self._keep_python_calls(event)
        if unrecorded is None:
            self.on_tape.update(outputs)
        self.producers.update(dict.fromkeys(outputs, event))

    def on_python(self, name: str, inputs: Tensors, outputs: Tensors, place: Place) -> None:
        """A Python function ran on the values of tensors, and made tensors of what it returned."""
        inputs, outputs = self._keep_all(inputs), self._keep_all(outputs)
        event = Event(len(self.events), name, Kind.PYTHON, inputs, outputs, (), place, Unrecorded.UNWATCHED)
        self.events.append(event)
        for output in outputs:
            self.producers.setdefault(output, event)

    def on_record(
        self, op_type: str, outputs: Tensors, inputs: Tensors, backward: Callable[..., Any], place: Place
    ) -> None:
        """TensorFlow put a custom gradient or a function's call on the tapes of this thread."""
        if self.is_paused:
            return
        inputs, outputs = self._keep_all(inputs), self._keep_all(outputs)
        self._notice_variables(inputs)
        if not inputs:
            self.bypassed.update(dict.fromkeys(outputs, place.line))
        if not self._reaches_tape(inputs):
            return
        made_by = self.producers.get(outputs[0]) if outputs else None
        if made_by is not None and made_by.kind is Kind.FUNCTION and set(outputs) <= set(made_by.outputs):
            made_by.unrecorded = None
            made_by.call = (backward, inputs, outputs)
            self._put_on_tape(made_by, outputs)
            return
        event = Event(len(self.events), op_type, Kind.CUSTOM, inputs, outputs, (), place, None, backward=backward)
        self.events.append(event)
        self._put_on_tape(event, outputs)

    def on_leave(self, tensor: tf.Tensor, how: str, place: Place) -> None:
        """A tensor's value was handed to Python."""
        self.departures.append(Departure(self._keep(tensor), how, place, private.next_key()))

    def failed(self, error: Exception) -> None:
        """Listening raised."""
        self.failure = f"watching the operations failed with {type(error).__name__}: {error}"

    # The replayed rule.

    def carries(self, key: int) -> bool:
        """Whether a gradient can flow through the tensor with this key."""
        return can_carry(self.tensors[key].dtype)

    def is_handle(self, key: int) -> bool:
        """Whether the log has a tensor with this key that is a handle to state."""
        return key in self.tensors and is_handle(self.tensors[key].dtype)

    def _keep(self, tensor: tf.Tensor) -> int:
        key = private.key(tensor)
        self.tensors.setdefault(key, tensor)
        return key

    def _keep_all(self, tensors: Tensors) -> tuple[int, ...]:
        return tuple(map(self._keep, tensors))

    def _keep_python_calls(self, event: Event) -> None:
        known = self._calls_before | self.python_calls
        new = {token: call for token, call in private.python_calls().items() if known.get(token) is not call}
        if new:
            self.python_calls_of[event.index] = new
            self.python_calls.update(new)

    def _reaches_tape(self, inputs: Iterable[int]) -> bool:
        return any(key in self.on_tape and self.carries(key) for key in inputs)

    def _put_on_tape(self, event: Event, outputs: Iterable[int]) -> None:
        self.on_tape.update(outputs)
        self.producers.update(dict.fromkeys(event.outputs, event))

    def _add_watched(self, key: int) -> None:
        self.on_tape.add(key)
        self.ever_watched.add(key)

    def _notice_variables(self, inputs: Iterable[int]) -> None:
        """Find out whether the tape has begun to watch the variables whose handles are among these."""
        if not any(key not in self.on_tape and self.tensors[key].dtype == tf.resource for key in inputs):
            return
        for variable in self._tape().watched_variables():
            key = self._keep(variable.handle)
            if key not in self.on_tape:
                self._add_watched(key)
