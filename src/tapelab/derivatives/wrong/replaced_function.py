"""What a family of cures says of a library function that it replaces, and how it finds one that was traced before."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.program import nodes_of
from tapelab.process.tensorflow import tf


class Replacement(NamedTuple):
    """A library function that composes operations so that derivatives come out wrong, and ours in its place.

    Attributes:
        owners: returns the modules in which the function is looked up.
        name: of the attribute there.
        function: ours, with the same signature. The first line of its docstring is the note for the `Plan`.
        needs: the first kind of derivative that is wrong without it.
        what: what it computes, for the sentence "f computes … in a graph that was traced before".
        traced: whether a graph (its library of functions included) was traced from the original.
    """

    owners: Callable[[], Sequence[Any]]
    name: str
    function: Callable
    needs: Needs
    what: str
    traced: Callable[[tf.compat.v1.GraphDef], bool]


Node: TypeAlias = tf.compat.v1.NodeDef
Inputs = Callable[[Node], list[Node]]


def has_node(pattern: Callable[[Node, Inputs], bool]) -> Callable[[tf.compat.v1.GraphDef], bool]:
    """Return a function that looks whether a graph, or a function in its library, has a node that fits a pattern.

    Args:
        pattern: takes a node, and a function that returns the nodes which a node's inputs come from, past identities;
            what is no node of the same graph has "" for its type.
    """

    def traced(definition: tf.compat.v1.GraphDef) -> bool:
        for nodes in nodes_of(definition):
            inputs = partial(_inputs, {node.name: node for node in nodes})
            if any(pattern(node, inputs) for node in nodes):
                return True
        return False

    return traced


def _inputs(nodes: dict[str, Node], node: Node) -> list[Node]:
    found = []
    for name in node.input:
        if name.startswith("^"):  # what runs before, and gives nothing
            continue
        while (source := nodes.get(name.split(":")[0])) is not None and source.op == "Identity":
            name = source.input[0]
        found.append(Node(name=name.split(":")[0]) if source is None else source)
    return found
