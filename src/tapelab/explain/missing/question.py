"""Questions, "why is this gradient None?", with the names that the learner uses."""

import ast
import collections.abc
import dataclasses
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from tapelab.explain.ground import expressions, lines
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.log import Log, keys_in, keys_of
from tapelab.explain.ground.origins import Origins
from tapelab.explain.missing.inside_functions import Cut
from tapelab.explain.missing.paths import Flow, Step

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Finding:
    """A judgement.

    Attributes:
        code: of the cause.
        seen: by which of the cause's other sentences it is told; "" for its usual one.
        exists: whether there is a gradient; None where it is not known.
        line: the learner's `Line` to look at.
        certain: whether the cause is certain.
        cuts: the first cut on each path.
        further: the cuts behind the first, on the path with the fewest.
        path: the `Step`s of that path.
        remarks: codes.
        fix: what to write, where it is not what the cause says.
        values: what stands in the cause's sentence besides the names of source, target and operation.
        more: what is said after that.
    """

    code: str
    seen: str = ""
    exists: bool | None = False
    line: Line | None = None
    certain: bool = True
    cuts: tuple[Cut, ...] = ()
    further: tuple[Cut, ...] = ()
    path: tuple[Step, ...] = ()
    remarks: tuple[str, ...] = ()
    fix: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)
    more: str = ""


@dataclasses.dataclass(frozen=True)
class Question:
    """A target, a source, and the log of the tape that stood between them.

    Attributes:
        tape: the `ExplainTape`.
        flow: the `Flow` of values in the log.
        targets: the target's tensors.
        source: a tensor or variable.
        target_name, source_name: what they are called.
        frame: the learner's frame, or None.
        origins: gives the `Origins` of what the learner holds.
    """

    tape: tf.GradientTape
    flow: Flow | None
    targets: tuple
    source: object
    target_name: str
    source_name: str
    frame: lines.Frame
    origins: Callable[[], Origins]

    @property
    def log(self) -> Log:
        """The tape's log."""
        return self.tape.log

    @property
    def start(self) -> int:
        """The key of the source; for a variable, of its handle; for a ragged or sparse tensor, of its values."""
        return keys_of(self.source)[0]

    @property
    def goals(self) -> set[int]:
        """The keys of the target's tensors."""
        return set(keys_in(self.targets))

    @property
    def is_variable(self) -> bool:
        """Whether the source is a variable, TensorFlow's or Keras's."""
        return hasattr(self.source, "handle")

    @property
    def watched_variable(self) -> tf.Variable:
        """The variable that the tape knows: of a Keras variable, TensorFlow's inside it."""
        return self.source.value if hasattr(self.source, "path") else self.source

    @property
    def was_rebound(self) -> lines.Line | None:
        """The `Line` that made a tensor of what used to be a variable, or None."""
        return None if self.is_variable else self.origins().rebound(self.source)


def name_of(value: Any, frame: lines.Frame, expression: ast.expr | None, place: str) -> str:
    """Return what to call a target or source.

    Args:
        value: the target or source.
        frame: the learner's frame, or None.
        expression: what the learner wrote for it in the call, or None.
        place: what to call it if nothing better is known, such as "source[0]".

    Returns:
        The learner's own expression or name, else a variable's path or name, else the place.
    """
    own = expressions.reference(expression) or lines.name_in(frame, value)
    if own:
        return own
    if hasattr(value, "handle"):
        name = lines.name_of_variable(value)
        if name != "Variable":  # the name of every variable without a name
            return name
    return place


def named_sources(sources: Any, frame: lines.Frame, expression: ast.expr | None) -> list[tuple[str, Any]]:
    """Name each element of a structure of sources.

    Args:
        sources: a tensor or variable, or a structure of them.
        frame: the learner's frame, or None.
        expression: what the learner wrote for the whole, or None.

    Returns:
        A list of (name, source), in the order in which the learner put them into the structure, the names distinct.
    """
    named = {}
    for value, part, place in leaves(sources, expression, expressions.reference(expression) or "source"):
        name = name_of(value, frame, part, place)
        named[name if name not in named else f"{name} ({place})"] = value
    return list(named.items())


def leaves(structure: Any, expression: ast.expr | None, place: str) -> list[tuple[Any, ast.expr | None, str]]:
    """Return the leaves of a structure: a list of (value, what the learner wrote for it or None, place).

    Args:
        expression: what the learner wrote for the whole, or None.
        place: what to call the whole, such as "source"; a part of it is "source[0]".
    """
    if not tf.nest.is_nested(structure):
        return [(structure, expression, place)]
    if isinstance(structure, collections.abc.Mapping):
        steps, values = [f"[{key!r}]" for key in structure], list(structure.values())
    elif hasattr(structure, "_fields"):
        steps, values = [f".{field}" for field in structure._fields], list(structure)
    else:
        values = list(structure) if isinstance(structure, (list, tuple)) else tf.nest.flatten(structure)
        steps = [f"[{i}]" for i in range(len(values))]
    parts = expressions.elements(expression, len(values))
    found = [leaves(*one) for one in zip(values, parts, map(place.__add__, steps), strict=True)]
    return [leaf for several in found for leaf in several]


def questions(tape: tf.GradientTape, target: Any, source: Any, frame: types.FrameType) -> list[Question]:
    """Return a list of `Question`, one for each source in a structure.

    Args:
        tape, target, source: as `explain` takes them, in this order.
        frame: that of the call of `explain` or `draw`, which knows what the learner calls them.
    """
    targets = tuple(tf.nest.flatten(target))
    goals = set(keys_in([one for one in targets if tf.is_tensor(one) and is_eager(one)]))
    flow = Flow(tape.log, goals) if isinstance(tape, ExplainTape) else None
    own = lines.own_frame(frame)
    call = expressions.arguments(frame) if own is frame else None
    # What AutoGraph wrote has the learner's names.
    named_in = frame if "__autograph_generated_file" in frame.f_code.co_filename else own
    target_name = name_of(target, named_in, expressions.argument(call, 1, ("target",)), "target")
    named = named_sources(source, named_in, expressions.argument(call, 2, ("source", "sources")))
    origins = functools.cache(lambda: Origins(own))
    return [Question(tape, flow, targets, one, target_name, name, own, origins) for name, one in named]


def is_eager(value: Any) -> bool:
    """Whether a tensor or variable has a value now."""
    return hasattr(value, "handle") or not tf.is_symbolic_tensor(value)
