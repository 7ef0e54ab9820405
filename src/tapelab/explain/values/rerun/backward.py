"""The backward pass once more, node by node, with the gradient functions that TensorFlow itself uses.

A *cotangent* is the gradient of the target with respect to a tensor. The upstream cotangents of a node are those of its
outputs; what its gradient function makes of them are its contributions to the cotangents of its inputs.
"""

import collections
import dataclasses
import functools
import types
from collections.abc import Iterable, KeysView, Mapping, Sequence

from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.log import Kind, can_carry
from tapelab.explain.ground.measure import Cotangents, Gradient, array, dense
from tapelab.explain.values.rerun.nodes import Node, Trace
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

    @functools.cached_property
    def upstream(self) -> KeysView[int]:
        """The keys of all tensors that the targets were made from, in whichever way, and of these."""
        return self.trace.before(self.targets)

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
