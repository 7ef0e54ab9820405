"""One question, "why is this gradient None?", with the names that the learner uses."""

import dataclasses
import types

from tapelab.explain import lines
from tapelab.explain.flow import Flow
from tapelab.explain.log import Log, keys_of

import tensorflow as tf


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
    """

    tape: tf.GradientTape
    flow: Flow
    targets: tuple
    source: object
    target_name: str
    source_name: str
    frame: types.FrameType | None

    @property
    def log(self) -> Log:
        """The tape's log."""
        return self.tape.log

    @property
    def start(self):
        """The key of the source; for a variable, of its handle; for a ragged or sparse tensor, of its values."""
        return keys_of(self.source)[0]

    @property
    def goals(self):
        """The keys of the target's tensors."""
        return {key for target in self.targets for key in keys_of(target)}

    @property
    def is_variable(self):
        """Whether the source is a variable, TensorFlow's or Keras's."""
        return hasattr(self.source, "handle")

    @property
    def was_rebound(self):
        """The `Line` that made a tensor of what used to be a variable, or None."""
        return None if self.is_variable else lines.rebinding(self.frame, self.source_name)


def name_of(value, frame, path=None):
    """Return what to call a source: the learner's own name, a variable's path, or its place in the structure."""
    own = lines.name_in(frame, value)
    if own:
        return own
    if hasattr(value, "handle"):
        return getattr(value, "path", None) or value.name.removesuffix(":0")
    return path or "source"


def named_sources(sources, frame):
    """Name each element of a structure of sources.

    Returns:
        A list of (name, source), in the order in which `tf.nest` flattens the structure, the names distinct.
    """
    named = {}
    for path, value in _with_paths(sources, "source"):
        name = name_of(value, frame, path)
        named[name if name not in named else f"{name} ({path})"] = value
    return list(named.items())


def _with_paths(structure, path):
    if isinstance(structure, dict):
        return [found for key in sorted(structure) for found in _with_paths(structure[key], f"{path}[{key!r}]")]
    if isinstance(structure, (list, tuple)):
        return [found for i, item in enumerate(structure) for found in _with_paths(item, f"{path}[{i}]")]
    return [(path, structure)]
