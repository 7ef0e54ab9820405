"""One walk through a program: the functions that it calls are entered, branches and loops followed.

An analysis says what it knows of an operation's results from what it knows of its inputs (`Walk.step`), and of what is
one of several (`Walk.joined`). Who issues a program anew, or follows a loop turn by turn, has ways of its own for them.
"""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from tapelab.graphs.program import BRANCHES, CALLS, LOOPS, branches_of, function_body, in_order
from tapelab.process.tensorflow import tf

Known = TypeVar("Known")


class Walk(Generic[Known]):
    """Goes through graphs, operation by operation, with something known of each tensor."""

    def run(self, graph: tf.Graph, inputs: Sequence[Known]) -> list[Known]:
        """Return what is known of a graph's outputs, from what is known of its inputs, captured ones last."""
        known = {tensor.ref(): one for tensor, one in zip(graph.inputs, inputs, strict=True)}
        for op in self.operations(graph):
            found = self.follow(op, [known[tensor.ref()] for tensor in op.inputs])
            known.update((tensor.ref(), one) for tensor, one in zip(op.outputs, found, strict=True))
        return [known[tensor.ref()] for tensor in graph.outputs]

    def operations(self, graph: tf.Graph) -> Iterable[tf.Operation]:
        """The operations of a graph that are followed, each after those of its inputs."""
        return [op for op in in_order(graph) if op.type not in ("NoOp", "Placeholder")]

    def follow(self, op: tf.Operation, known: list[Known]) -> list[Known]:
        """Return what is known of an operation's outputs."""
        if op.type in CALLS:
            return self.body(op, op.get_attr("f").name, known)
        if op.type in BRANCHES:
            return self.branch(op, known)
        return self.loop(op, known) if op.type in LOOPS else self.step(op, known)

    def body(self, op: tf.Operation, name: str, known: Sequence[Known]) -> list[Known]:
        """Return what is known of the outputs of a function that an operation calls.

        Its own graph may have more: what a gradient needs.
        """
        return self.run(function_body(op.graph, name), known)[: len(op.outputs)]

    def step(self, op: tf.Operation, known: list[Known]) -> list[Known]:
        """Return what is known of the outputs of an operation that calls no function of its graph."""
        raise NotImplementedError

    def joined(self, op: tf.Operation, several: Sequence[Known]) -> Known:
        """Return what is known of an output of a branch or a loop that is one of several."""
        raise NotImplementedError

    def branch(self, op: tf.Operation, known: list[Known]) -> list[Known]:
        """Follow all branches, and join what they give."""
        results = [self.body(op, name, known[1:]) for name in branches_of(op)]
        return [self.joined(op, several) for several in zip(*results, strict=True)]

    def loop(self, op: tf.Operation, known: list[Known]) -> list[Known]:
        """Follow a loop's body until nothing new is known: what is so after a turn is so before the next one."""
        before = None
        while known != before:
            before, after = known, self.body(op, op.get_attr("body").name, known)
            known = [self.joined(op, pair) for pair in zip(before, after, strict=True)]
        return known
