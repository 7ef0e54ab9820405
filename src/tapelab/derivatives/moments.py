"""Second derivatives through `tf.nn.moments`, and so through normalisation layers: right, where TensorFlow's are wrong.

`tf.nn.moments` computes the variance as ``mean((x - stop_gradient(mean(x)))²)``. That leaves the first derivative as it
is, since x - mean(x) sums to zero, and the second one without a term: the variance of n numbers has the Hessian
2/n (I - 1/n), and TensorFlow's has 2/n I. No public report of it is known.

While a function is evaluated for one of our derivatives, ``moments`` is a function without the stop, in that thread.
A `tf.function` that was traced before holds the stop in its graph: a fresh copy of it is traced. What cannot be traced
anew, a loaded model or a concrete function, is named in `Cure.left`.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tapelab import process
from tapelab.derivatives import private
from tapelab.runtime import tf

_stopped = weakref.WeakKeyDictionary()  # concrete function → whether its graph has the stop


class Cure:
    """What was met while a function was evaluated.

    Attributes:
        used: whether it computed moments.
        left: the names of the functions that stop the gradient in a graph that cannot be traced anew.
    """

    def __init__(self):
        self.used = False
        self.left: list[str] = []
        self._copies: dict[int, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Have this thread compute moments without the stop while the block runs."""
        function, concrete = private.function_classes()
        with contextlib.ExitStack() as stack:
            for owner in private.modules_with_moments():
                stack.enter_context(process.replaced(owner, "moments", self._moments))
            for kind, call in ((function, self._call), (concrete, self._call_concrete)):
                stack.enter_context(process.replaced(kind, "__call__", call))
            yield

    def _moments(self, x, axes, shift=None, name=None, keep_dims=None, keepdims=None):
        self.used = True
        with tf.name_scope(name or "moments"):
            x = tf.convert_to_tensor(x)
            y = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x  # as the original: half has no range for squares
            mean = tf.reduce_mean(y, axes, keepdims=True)
            variance = tf.reduce_mean(tf.math.squared_difference(y, mean), axes, keepdims=True)
            if not (keepdims or keep_dims):
                mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
            return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)

    def _call(self, function, *args, **kwargs):
        """Call a `tf.function`, or a fresh copy of it if it has a trace with the stop."""
        call = process.original(private.function_classes()[0], "__call__")
        if any(map(_stops, private.traces(function))):
            self.used = True
            copy, _ = self._copies.setdefault(id(function), (None, function))
            copy = copy or private.fresh_copy(function)
            if copy is None:
                self._leave(getattr(function, "name", None) or "a loaded function")
            else:
                self._copies[id(function)] = copy, function  # the function stays alive, and so its id
                function = copy
        return call(function, *args, **kwargs)

    def _call_concrete(self, function, *args, **kwargs):
        if _stops(function):
            self._leave(function.name)
        return process.original(private.function_classes()[1], "__call__")(function, *args, **kwargs)

    def _leave(self, name):
        name = str(getattr(name, "decode", lambda: name)())
        if name not in self.left:
            self.left.append(name)


def _stops(concrete: Callable) -> bool:
    """Whether the graph of a concrete function, or of one that it calls, stops the gradient of a variance's mean."""
    try:
        return _stopped[concrete]
    except KeyError:
        found = _stopped[concrete] = stops_the_mean(concrete.graph.as_graph_def())
        return found


def stops_the_mean(definition: tf.compat.v1.GraphDef) -> bool:
    """Whether a graph, or a function in its library, contains SquaredDifference(x, StopGradient(Mean(x)))."""
    return any(map(_squares, [definition.node, *(function.node_def for function in definition.library.function)]))


def _squares(nodes):
    nodes = {node.name: node for node in nodes}

    def source(name):
        """The node that an input comes from, past identities; the input's name where it is no node's."""
        while (node := nodes.get(name.split(":")[0])) is not None and node.op == "Identity":
            name = node.input[0]
        return name.split(":")[0] if node is None else node.name

    for node in nodes.values():
        if node.op == "SquaredDifference":
            x, stop = map(source, node.input[:2])
            if stop in nodes and nodes[stop].op == "StopGradient":
                mean = source(nodes[stop].input[0])
                if mean in nodes and nodes[mean].op == "Mean" and source(nodes[mean].input[0]) == x:
                    return True
    return False
