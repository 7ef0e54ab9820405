"""What the replay shows about one source: where a bad value or a bad cotangent comes from, node by node."""

import collections
import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.log import Kind, can_carry, is_handle
from tapelab.explain.ground.measure import Cotangents, Gradient, Measures, array, dense, rounding
from tapelab.explain.values.rerun.nodes import Node, Trace
from tapelab.graphs.operations import with_fact
from tapelab.graphs.walks import reachable
from tapelab.process.tensorflow import tf

import numpy as np

# Outputs for which the tape passes None on rather than zeros.
_MAY_BE_NONE = {
    "SoftmaxCrossEntropyWithLogits": {1},
    "SparseSoftmaxCrossEntropyWithLogits": {1},
    "FusedBatchNorm": {1, 2, 3, 4},
    "FusedBatchNormV3": {1, 2, 3, 4, 5},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Passed:
    """What one node had in the backward pass.

    Attributes:
        upstream: the cotangent of each output, or None.
        downstream: its contribution to each input, or None.
    """

    upstream: tuple
    downstream: tuple


class Replay:
    """The backward pass of some targets, along everything that depends on some sources.

    Args:
        trace: a `Trace`.
        targets: the keys of the targets.
        sources: the keys of all sources.

    Attributes:
        trace: the same.
        targets, sources: the same, as a tuple and a set.
        parts: key → what its cotangent is the sum of, a list of (node, contribution); of the target also (None, ones).
        passed: node → `Passed`, for every node that a cotangent reached.
        made_of: the key of each tensor that was made of sources in a recorded way → of which, one bit for each.
        nodes_of: type of an operation → those of these nodes.
        trials: for `fixes`, which runs the program with a fix once for all sources: what came of it.
    """

    def __init__(self, trace: Trace, targets: Iterable[int], sources: Iterable[int]):
        self.trace, self.targets, self.sources = trace, tuple(targets), set(sources)
        self.parts, self.passed = collections.defaultdict(list), {}
        self._sums, self.trials = {}, {}
        self._sources = {key: 1 << number for number, key in enumerate(self.sources)}
        self.made_of = self._followed()
        for key in self.targets:
            if key in trace.values and can_carry(trace.values[key].dtype):
                self.parts[key].append((None, tf.ones_like(trace.values[key])))
        taken = set()  # what a later custom gradient answers for
        with hooks.deaf(), private.paused():
            for node in reversed(trace.nodes):
                if node.is_recorded and any(key in self.made_of for key in node.inputs):
                    self._pass(node, taken)
        self.nodes_of = collections.defaultdict(list)
        for node in self.passed:
            self.nodes_of[node.op].append(node)

    def _followed(self) -> dict[int, int]:
        """The keys of all tensors that were made of sources in a recorded way → of which, one bit for each."""
        made_of = dict(self._sources)
        for node in self.trace.nodes:
            if node.is_recorded:
                bits = 0
                for key in node.inputs:
                    bits |= made_of.get(key, 0)
                if bits:
                    made_of.update((key, made_of.get(key, 0) | bits) for key in node.outputs)
        return made_of

    def depending(self, source: int) -> set[int]:
        """Return the keys of all tensors that were made from a source in a recorded way, and its own."""
        bit = self._sources[source]
        return {key for key, bits in self.made_of.items() if bits & bit}

    @functools.cached_property
    def is_second(self) -> bool:
        """Whether a backward pass is differentiated: then these are derivatives of derivatives."""
        return any(node.is_backward for node in self.passed)

    def cotangent(self, key: int) -> Gradient | None:
        """Return the gradient of the targets with respect to a tensor of the trace, or None."""
        if key not in self._sums:
            self._sums[key] = _sum([part for _, part in self.parts.get(key, ())])
        return self._sums[key]

    def _pass(self, node: Node, taken: set[int]) -> None:
        upstream = [None if key in taken else self.cotangent(key) for key in node.outputs]
        if node.event.kind is Kind.CUSTOM:
            taken.update(node.outputs)
        if all(one is None for one in upstream):
            return
        upstream = [self._filled(node, position, one) for position, one in enumerate(upstream)]
        try:
            downstream = self._gradients(node, upstream)
        except LookupError:
            downstream = [None] * len(node.inputs)
        self.passed[node] = Passed(tuple(upstream), tuple(downstream))
        for key, part in zip(node.inputs, downstream, strict=False):
            if part is not None and key in self.made_of:
                self.parts[key].append((node, part))
                self._sums.pop(key, None)

    def _filled(self, node: Node, position: int, upstream: Gradient | None) -> tf.Tensor | None:
        """The cotangent of an output as the tape hands it on: zeros where there is none, with exceptions."""
        value = self.trace.values[node.outputs[position]]
        if upstream is not None:
            return dense(upstream)
        if position in _MAY_BE_NONE.get(node.op, ()) or not can_carry(value.dtype) or value.dtype == tf.resource:
            return None
        return tf.raw_ops.ZerosLike(x=value)

    def _gradients(self, node: Node, upstream: Cotangents) -> list[Gradient | None]:
        trace = self.trace
        with private.with_python_calls(trace.log.python_calls_of.get(node.event.index, {})):
            if node.backward is not None:
                found = node.backward(*upstream)
                return list(found) if isinstance(found, (list, tuple)) else [found]
            inputs = [trace.values[key] for key in node.inputs]
            outputs = [trace.values[key] for key in node.outputs]
            return private.gradients_of(node.op, node.attributes, inputs, outputs, upstream)


def slopes(trace: Trace, node: Node, changed: Mapping[int, tf.Tensor] = types.MappingProxyType({})) -> np.ndarray:
    """Return the slope of a node that works on each element by itself, at each element; some values may be others."""
    values = trace.values if not changed else trace.values | changed
    inputs, outputs = ([values[key] for key in keys] for keys in (node.inputs, node.outputs))
    return array(private.gradients_of(node.op, node.attributes, inputs, outputs, [tf.ones_like(outputs[0])])[0])


def _sum(parts: Sequence[Gradient]) -> Gradient | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    with hooks.deaf(), private.paused():
        return tf.raw_ops.AddN(inputs=[dense(part) for part in parts])  # adds tensor lists, too


# Operations that hand a value on as it is, in another shape or dtype or as a copy.
PASSING = with_fact("passes") - with_fact("flat")
ADDING = with_fact("adds") | {"Sub"}
READS = with_fact("reads") - with_fact("valueless")


class Evidence:
    """One source in a replay.

    Args:
        replay: a `Replay`.
        source: the key of the source.
        measures: a `Measures` that the evidence about all sources of a replay shares.

    Attributes:
        replay, trace, source: as above.
        measure: the `Measures`.
        gradient: the cotangent of the source, or None.
    """

    def __init__(self, replay: Replay, source: int, measures: Measures | None = None):
        self.replay, self.trace, self.source = replay, replay.trace, source
        self.measure = measures or Measures()
        self.gradient = replay.cotangent(source)

    @functools.cached_property
    def depends(self) -> set[int]:
        """The keys of all that was made from the source."""
        return self.replay.depending(self.source)

    @property
    def target(self) -> int:
        """The key of the target; of several, of the first that is not finite, else of the first."""
        return next((key for key in self.replay.targets if self.bad(key)), self.replay.targets[0])

    def value(self, key: int) -> tf.Tensor | None:
        """The forward value of a tensor; of a variable's handle, what it held when it was read."""
        value = self.trace.values[key]
        if value.dtype == tf.resource:
            reads = [node for node in self.trace.users.get(key, ()) if node.op == "ReadVariableOp"]
            return self.trace.values[reads[0].outputs[0]] if reads else None
        return value

    def array(self, key: int) -> np.ndarray:
        """The forward value as an array."""
        return array(self.value(key))

    def bad(self, key: int) -> bool:
        """Whether a forward value is not finite."""
        return self.measure.not_finite(self.value(key))

    def maker(self, key: int) -> Node | None:
        """The node that made a value, before it was handed on as it is; None where none did."""
        node = self.trace.producer.get(key)
        while node is not None and node.op in PASSING:
            node = self.trace.producer.get(node.inputs[0])
        return node

    def made_of(self, node: Node) -> list[np.ndarray]:
        """The values of a node's inputs, as arrays."""
        return [self.array(key) for key in node.inputs]

    def users(self, key: int) -> list[Node]:
        """The nodes that use a value; where it is only read from a variable, those that use what was read."""
        found = []
        for node in self.trace.users.get(key, ()):
            found.extend(self.users(node.outputs[0]) if node.op == "ReadVariableOp" else [node])
        return found

    def is_learned(self, key: int) -> bool:
        """Whether a value was made from a source or from any variable: it is no mask or constant."""
        producer, values = self.trace.producer, self.trace.values

        def made_of(one: int) -> Iterable[int]:  # what a comparison gave is a mask, whatever it compared
            return producer[one].inputs if one in producer and values[one].dtype != tf.bool else ()

        return any(
            one in self.replay.sources or (one in producer and producer[one].op in READS)
            for one in reachable([key], made_of)
        )

    @functools.cached_property
    def reached(self) -> dict[int, np.ndarray | np.bool_]:
        """key → which elements depend on the source: NaN is put in its place and the log run again."""
        return {key: np.isnan(array(value)) for key, value in self.rerun_from(self.source, _filled).items()}

    def target_changes(self) -> bool | None:
        """Whether the target's sum changes if the source does, a little and at random; None where that is not known."""
        generator = np.random.default_rng(0)

        def moved(tensor: tf.Tensor) -> tf.Tensor:
            values = array(tensor)
            step = 0.1 * generator.standard_normal(values.shape) * (1.0 + np.abs(values))
            return tf.cast(tf.constant(values + step), tensor.dtype)

        new = self.rerun_from(self.source, moved)
        pairs = [(array(new[key]), self.array(key)) for key in self.replay.targets if key in new]
        if not pairs or any(not np.isfinite(after).all() for after, _ in pairs):
            return None
        # By more than rounding, as between two ways of adding up.
        noise = 30 * rounding(self.trace.values[self.target])
        change = abs(sum(np.sum(after) - np.sum(before) for after, before in pairs))
        maker = self.trace.producer.get(self.target)
        terms = [np.abs(self.array(key)).max(initial=0.0) for key in maker.inputs] if maker else []
        return bool(change > noise * max([sum(np.abs(before).sum() for _, before in pairs), *terms]))

    def target_moved(self, step: np.ndarray) -> float:
        """The sum of the targets after a step of the source.

        Args:
            step: in the shape of the source's value.

        Raises:
            ValueError: if the log cannot be run again with another source, by what it holds alone.
        """
        moved = []

        def change(tensor: tf.Tensor) -> tf.Tensor:
            if moved or tensor.shape != step.shape:
                raise ValueError("an operation cannot be run again")
            moved.append(tensor)
            return tensor + tf.cast(step, tensor.dtype)

        return self.target_sum(self.rerun_from(self.source, change))

    def target_sum(self, changed: Mapping[int, tf.Tensor] | None = None) -> float:
        """The sum of the targets, of which some may have new values: `changed` has them, by their keys."""
        values = self.trace.values if changed is None else self.trace.values | changed
        return sum(float(np.sum(array(values[key]), dtype=np.float64)) for key in self.replay.targets)

    def target_is_kinked(self) -> bool:
        """Whether half a step along a direction changes the target by half as much, as beside a kink.

        Where the target is stationary and smooth, it changes it by a quarter or less.
        """
        value = self.array(self.source)
        direction = np.random.default_rng(0).uniform(0.5, 1.0, value.shape) * (1.0 + np.abs(value))
        here = self.target_sum()
        try:
            slopes = [abs(self.target_moved(step * direction) - here) / step for step in (0.02, 0.01)]
        except ValueError:
            return False
        return bool(np.isfinite(slopes).all() and slopes[1] > 0.8 * slopes[0])

    def rerun_from(self, source: int, change: Callable[[tf.Tensor], tf.Tensor]) -> dict[int, tf.Tensor]:
        """Run the log again with another value for a tensor: key → the new value of all that depends on it.

        Args:
            source: its key.
            change: takes the source's value and returns another. It is also applied to what comes out of operations
                that cannot be run again, as if they handed the change on.
        """
        trace = self.trace
        is_variable = is_handle(trace.values[source].dtype)
        new = {} if is_variable else {source: change(trace.values[source])}
        read = None
        with hooks.deaf(), private.paused():
            for node in trace.nodes:
                reads = is_variable and source in node.inputs
                if not reads and not any(key in new for key in node.inputs):
                    continue
                old = [trace.values[key] for key in node.outputs]
                made = None
                if node.op == "ReadVariableOp" and reads:
                    read = read or [change(old[0])]  # every read of a variable gives the same
                    made = read
                elif not (node.is_custom or node.is_opaque or reads):
                    inputs = [new.get(key, trace.values[key]) for key in node.inputs]
                    # Where an operation refuses the value, all that it makes counts as changed.
                    with contextlib.suppress(Exception):
                        made = private.run(node.op, node.attributes, inputs, len(old)) if old else []
                made = [change(one) if one.dtype.is_floating else one for one in old] if made is None else made
                new.update(zip(node.outputs, made, strict=True))
        return new

    def concerned(self, tensor: Gradient | None, key: int) -> np.ndarray:
        """A cotangent's elements that the source has a part in, as an array; all where that is not known."""
        values, mask = array(tensor), self.reached.get(key)
        return values[mask] if mask is not None and mask.shape == values.shape else values

    def origins(self, is_bad: Callable[[Gradient, int], bool]) -> list[tuple[Node, int]]:
        """Find the nodes at which good cotangents became bad ones on the way to the source.

        Args:
            is_bad: takes a cotangent and the key that it belongs to, and says whether it is bad.

        Returns:
            A list of (node, position of the input whose contribution was bad).
        """
        passed = self.replay.passed

        def made_bad(key: int) -> Iterator[tuple[Node, list[int]]]:
            """The nodes whose contribution to a cotangent is bad, each with the keys of its outputs' that are."""
            nodes = [node for node, part in self.replay.parts.get(key, ()) if node is not None and is_bad(part, key)]
            for node in dict.fromkeys(nodes):
                pairs = zip(node.outputs, passed[node].upstream, strict=True)
                # An output that no cotangent reached was given zeros, which nobody made.
                yield node, [out for out, one in pairs if self.replay.parts.get(out) and is_bad(one, out)]

        def position(node: Node, key: int) -> int:
            parts = enumerate(zip(node.inputs, passed[node].downstream, strict=False))
            return next(i for i, (name, one) in parts if name == key and one is not None and is_bad(one, key))

        keys = reachable([self.source], lambda key: [out for _, worse in made_bad(key) for out in worse])
        return [(node, position(node, key)) for key in keys for node, worse in made_bad(key) if not worse]

    def roots(self, key: int, is_bad: Callable[[tf.Tensor | None], bool]) -> list[tuple[Node | None, int]]:
        """Find what first made a forward value bad.

        Args:
            key: of a value that is bad.
            is_bad: whether a value is bad.

        Returns:
            A list of (node that made a bad value of good ones, its key), or (None, key) for a value that came in bad.
        """

        def made_by(one: int) -> Node | None:
            node = self.trace.producer.get(one)
            return None if node is None or node.op in READS else node  # a variable held what was read from it

        def worse(one: int) -> list[int]:
            return [name for name in made_by(one).inputs if is_bad(self.value(name))] if made_by(one) else []

        return [(made_by(one), one) for one in reachable([key], worse) if not worse(one)]


def _filled(tensor: tf.Tensor) -> tf.Tensor:
    return tf.fill(tf.shape(tensor), tf.constant(np.nan, tensor.dtype)) if tensor.dtype.is_floating else tensor
