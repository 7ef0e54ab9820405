"""Operations of which TensorFlow's second derivatives lack a part without a word: found in a graph, to be refused.

`SoftmaxCrossEntropyWithLogits` keeps softmax - labels for its gradient, and the gradient of that ignores the labels:
where labels and logits depend on the same numbers, as in the entropy of a softmax, the mixed second derivative is lost.
The gradient of `ResizeBilinear` is registered as not differentiable, and so counts as constant. Both were found by
comparing TensorFlow with central differences (ci/derivative_audit/RESULTS.md).
"""

from collections.abc import Iterable, Sequence

from tapelab.runtime import tf

OPERATIONS = {"SoftmaxCrossEntropyWithLogits", "ResizeBilinear"}
_LABELS = (
    "it computes tf.nn.softmax_cross_entropy_with_logits of labels that depend on what the logits depend on, of which "
    "TensorFlow's second derivative lacks a part. Write -tf.reduce_sum(labels * tf.nn.log_softmax(logits), -1) instead"
)
_RESIZE = (
    "it resizes images by bilinear interpolation, of which TensorFlow's second derivative counts as zero. Write the "
    "resizing as a product with a constant matrix on each side, or use another method of tf.image.resize, such as "
    '"lanczos3"'
)


def gap(graph: tf.Graph, sources: Iterable[tf.Tensor]) -> str | None:
    """Say why second derivatives by these tensors of a graph would be wrong in TensorFlow, or None if nothing is known.

    In a function that the graph calls, the sources are not followed: there labels are taken to depend on them if they
    are computed from an argument from which the logits are computed too.
    """
    reached = {tensor.ref() for tensor in sources}
    for op in graph.get_operations():
        depends = [tensor.ref() in reached for tensor in op.inputs]
        if op.type == "SoftmaxCrossEntropyWithLogits" and all(depends):
            return _LABELS
        if op.type == "ResizeBilinear" and depends[0]:
            return _RESIZE
        if any(depends):
            reached.update(tensor.ref() for tensor in op.outputs)
    for function in graph.as_graph_def().library.function:
        nodes = {node.name: node for node in function.node_def}
        for node in nodes.values():
            if node.op == "ResizeBilinear":
                return _RESIZE
            if node.op == "SoftmaxCrossEntropyWithLogits":
                logits, labels = (_arguments(nodes, name) for name in node.input[:2])
                if logits & labels:
                    return _LABELS
    return None


def _arguments(nodes: dict, name: str) -> set[str]:
    """The arguments of a function from which a value of this name is computed."""
    found, seen, rest = set(), set(), [name]
    while rest:
        name = rest.pop().lstrip("^").split(":")[0]
        if name in seen:
            continue
        seen.add(name)
        if name in nodes:
            rest += nodes[name].input
        else:
            found.add(name)
    return found


def placeholders(graph: tf.Graph, count: int, variables: Sequence[tf.Variable] | None) -> list[tf.Tensor]:
    """The tensors that stand for the sources in a concrete function's graph: its first arguments, or variables."""
    if variables is None:
        return list(graph.inputs[:count])
    handles = {id(variable.handle) for variable in variables}
    return [inside for outside, inside in graph.captures if id(outside) in handles]
