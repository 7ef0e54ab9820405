"""Operations of which TensorFlow's second derivatives lack a part without a word: found in a graph, to be refused.

`SoftmaxCrossEntropyWithLogits` keeps softmax - labels for its gradient, and the gradient of that ignores the labels:
where labels and logits depend on the same numbers, as in the entropy of a softmax, the mixed second derivative is lost.
Other operations have no derivative by some of their inputs, a gradient that is registered as not differentiable, or one
that is not the derivative. All were found by comparing TensorFlow with central differences
(ci/derivative_audit/RESULTS.md, with the reason of each).
"""

from collections.abc import Callable, Iterable, Sequence

from tapelab.runtime import tf

import numpy as np

_LABELS = (
    "it computes tf.nn.softmax_cross_entropy_with_logits of labels that depend on what the logits depend on, of which "
    "TensorFlow's second derivative lacks a part. Write -tf.reduce_sum(labels * tf.nn.log_softmax(logits), -1) instead"
)
_STITCH = (
    "it computes tf.dynamic_stitch with indices of which one stands twice, or that are not known while it is traced: "
    "the last value wins, and TensorFlow's gradient goes to all of them. Use tf.tensor_scatter_nd_update, and each "
    "index once"
)
_WARP = (
    "it transforms images by ImageProjectiveTransform (as layers such as RandomRotation do), whose gradient in "
    "TensorFlow is not its derivative. Keep it out of what you differentiate, or interpolate by tf.gather"
)
# By operation: the inputs that must not depend on the sources, and why.
_INPUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "ResizeBilinear": (
        (0,),
        "it resizes images by bilinear interpolation, of which TensorFlow's second derivative counts as zero. Write "
        "the resizing as a product with a constant matrix on each side, or use another method of tf.image.resize, such "
        'as "lanczos3"',
    ),
    "SparseAdd": (
        (1, 4),
        "it computes tf.sparse.add of two sparse tensors, of which TensorFlow's second derivative counts as zero. Add "
        "dense tensors, as tf.sparse.to_dense gives them",
    ),
    "ImageProjectiveTransformV2": ((0, 1), _WARP),
    "ImageProjectiveTransformV3": ((0, 1), _WARP),
    "HSVToRGB": (
        (0,),
        "it computes tf.image.hsv_to_rgb, of which TensorFlow has no derivative. Write the conversion out",
    ),
    "Betainc": (
        (0, 1),
        "it computes tf.math.betainc(a, b, x) with an a or b that depends on the sources, by which TensorFlow has no "
        "derivative. Keep a and b fixed",
    ),
    "Zeta": (
        (0,),
        "it computes tf.math.zeta(x, q) with an x that depends on the sources, by which TensorFlow has no derivative. "
        "Keep x fixed",
    ),
    "PadV2": (
        (2,),
        "it pads with a value that depends on the sources, by which TensorFlow has no derivative. Pad with 0 and add "
        "the value times a padding of ones",
    ),
    "OneHot": (
        (2, 3),
        "it computes tf.one_hot with values that depend on the sources, by which TensorFlow has no derivative. Write "
        "off + (on - off) * tf.one_hot(…)",
    ),
}
_STITCHES = {"DynamicStitch", "ParallelDynamicStitch"}
OPERATIONS = {"SoftmaxCrossEntropyWithLogits", *_STITCHES, *_INPUTS}


def gap(graph: tf.Graph, sources: Iterable[tf.Tensor]) -> str | None:
    """Say why second derivatives by these tensors of a graph would be wrong in TensorFlow, or None if nothing is known.

    In a function that the graph calls, the sources are not followed: there an input counts as depending on them if it
    is computed from an argument, and labels if they are computed from one from which the logits are computed too.
    """
    reached = {tensor.ref() for tensor in sources}
    for op in graph.get_operations():
        depends = [tensor.ref() in reached for tensor in op.inputs]
        if op.type == "SoftmaxCrossEntropyWithLogits" and all(depends):
            return _LABELS
        if op.type in OPERATIONS and any(depends):
            nodes = [tensor.op.node_def for tensor in op.inputs]
            if why := _lacking(op.node_def, depends.__getitem__, nodes):
                return why
        if any(depends):
            reached.update(tensor.ref() for tensor in op.outputs)
    for function in graph.as_graph_def().library.function:
        nodes = {node.name: node for node in function.node_def}
        for node in nodes.values():
            if node.op not in OPERATIONS:
                continue
            arguments = [_arguments(nodes, name) for name in node.input if not name.startswith("^")]
            if node.op == "SoftmaxCrossEntropyWithLogits" and arguments[0] & arguments[1]:
                return _LABELS
            made_by = [nodes.get(name.split(":")[0]) for name in node.input if not name.startswith("^")]
            if why := _lacking(node, lambda i, found=arguments: bool(found[i]), made_by):
                return why
    return None


def _lacking(node: tf.compat.v1.NodeDef, depends: Callable[[int], bool], made_by: Sequence) -> str | None:
    """Why an operation lacks a derivative by inputs that depend on the sources; `made_by`: the nodes they come from."""
    if "T" in node.attr and tf.as_dtype(node.attr["T"].type).is_integer:
        return None  # gradients stitch and pad shapes
    if node.op in _INPUTS:
        inputs, why = _INPUTS[node.op]
        return why if any(map(depends, inputs)) else None
    if node.op in _STITCHES:
        half = len(made_by) // 2
        if any(depends(i) for i in range(half, len(made_by))) and not _each_once(made_by[:half]):
            return _STITCH
    return None


def _each_once(indices: Sequence) -> bool:
    """Whether no index stands twice: seen in constants, and true of the parts of one partition."""
    kinds = {node.op if node is not None else "" for node in indices}
    if kinds == {"DynamicPartition"}:
        return len({node.name for node in indices}) == 1  # the gradient of tf.dynamic_partition
    if kinds != {"Const"}:
        return False
    values = np.concatenate([tf.make_ndarray(node.attr["value"].tensor).ravel() for node in indices])
    return len(np.unique(values)) == len(values)


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
