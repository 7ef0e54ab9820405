"""Operations whose derivatives TensorFlow gets wrong, or lacks, without a word: found in a graph, to be refused.

Where an operation is registered as not differentiable, or its gradient has None for an input, that part of a sum counts
as zero. Some gradients are not the derivative. Of others the first derivative is right, and what is made from them is
not: products with tangents differentiate the gradient by its cotangent, second derivatives by the inputs as well.
Most were found by comparing derivatives with central differences (ci/derivative_audit/RESULTS.md, with the reason of
each), the rest among what TensorFlow's registry calls not differentiable.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from tapelab.derivatives.wrong.doubts import doubts
from tapelab.graphs.flow import Walk
from tapelab.graphs.operations import known
from tapelab.graphs.program import LOOPS, function_body, place
from tapelab.process.tensorflow import tf

import numpy as np


class Needs(IntEnum):
    """What a derivative takes: those above need what those below do."""

    GRADIENT = 1  # products of cotangents with the Jacobian
    TANGENTS = 2  # products of the Jacobian with tangents
    SECOND = 3  # second derivatives
    SECOND_AT_ZERO = 4  # the same at a point where TensorFlow's are wrong: warned of, since others are right
    AT_POINTS = 5  # all of them at such a point


_NONE = "of which TensorFlow has no derivative"
_WARP = (
    "it transforms images by ImageProjectiveTransform (as layers such as RandomRotation do), whose gradient in "
    "TensorFlow is not its derivative. Keep it out of what you differentiate, or interpolate by tf.gather"
)
_BATCH_STATISTICS = (
    "it uses the mean or variance that FusedBatchNorm takes or gives, by which TensorFlow has no derivative. Compute "
    "them by tf.reduce_mean"
)
_DIAGONAL = f"it pads a diagonal with a value that depends on the sources, {_NONE}. Pad with 0, and add the value"
_QUANTISED = "it rounds by tf.quantization.fake_quant_…, {0}. Round by x + tf.stop_gradient(tf.round(x) - x) instead"
# By operation: the inputs that must not depend on the sources (none named: any), and why.
LACKING: dict[Needs, dict[str, tuple[Sequence[int], str]]] = {
    Needs.GRADIENT: {
        "Betainc": (
            (0, 1),
            "it computes tf.math.betainc(a, b, x) with an a or b that depends on the sources, by which TensorFlow has "
            "no derivative. Keep a and b fixed",
        ),
        "BlockLSTMV2": (
            range(9),
            "it computes the raw operation BlockLSTMV2, whose gradient in TensorFlow takes the gates in another order. "
            "Use keras.layers.LSTM",
        ),
        "DrawBoundingBoxes": (
            (0, 1),
            f"it draws boxes into images, {_NONE}. Keep tf.image.draw_bounding_boxes out of what you differentiate",
        ),
        "DrawBoundingBoxesV2": (
            (0, 1),
            f"it draws boxes into images, {_NONE}. Keep tf.image.draw_bounding_boxes out of what you differentiate",
        ),
        "ExtractGlimpse": ((0, 2), f"it takes glimpses of images, {_NONE}. Cut them out by slices"),
        "HSVToRGB": ((0,), f"it computes tf.image.hsv_to_rgb, {_NONE}. Write the conversion out"),
        "ImageProjectiveTransformV2": ((0, 1), _WARP),
        "ImageProjectiveTransformV3": ((0, 1), _WARP),
        "LinSpace": (
            (0, 1),
            f"it computes the raw operation LinSpace, {_NONE}. Use tf.linspace, or start + (stop - start) * steps",
        ),
        "MatrixDiagPartV2": ((2,), _DIAGONAL),
        "MatrixDiagPartV3": ((2,), _DIAGONAL),
        "MatrixDiagV2": ((4,), _DIAGONAL),
        "MatrixDiagV3": ((4,), _DIAGONAL),
        "OneHot": (
            (2, 3),
            "it computes tf.one_hot with values that depend on the sources, by which TensorFlow has no derivative. "
            "Write off + (on - off) * tf.one_hot(…)",
        ),
        "PadV2": (
            (2,),
            "it pads with a value that depends on the sources, by which TensorFlow has no derivative. Pad with 0 and "
            "add the value times a padding of ones",
        ),
        "ParameterizedTruncatedNormal": (
            (1, 2, 3, 4),
            "it draws truncated normal numbers with parameters that depend on the sources, by which TensorFlow has no "
            "derivative. Draw with fixed ones, then scale and shift",
        ),
        "Polygamma": (
            (0,),
            "it computes tf.math.polygamma(n, x) with an n that depends on the sources, which has no derivative. Keep "
            "n fixed",
        ),
        "RaggedRange": ((0, 1, 2), f"it computes tf.ragged.range of real numbers, {_NONE}. Write start + delta * n"),
        "RandomShuffle": (
            (0,),
            f"it shuffles by tf.random.shuffle, {_NONE}. Shuffle the indices, and take tf.gather",
        ),
        "Range": ((0, 1, 2), f"it computes tf.range of real numbers, {_NONE}. Write start + delta * tf.range(n)"),
        "SparseConcat": ((), f"it computes tf.sparse.concat, {_NONE}. Concatenate dense tensors"),
        "Zeta": (
            (0,),
            "it computes tf.math.zeta(x, q) with an x that depends on the sources, by which TensorFlow has no "
            "derivative. Keep x fixed",
        ),
    },
    Needs.TANGENTS: {
        "FakeQuantWithMinMaxArgs": ((0,), _QUANTISED.format("of whose gradient TensorFlow has no derivative")),
        "FakeQuantWithMinMaxVars": ((0, 1, 2), _QUANTISED.format("of whose gradient TensorFlow has no derivative")),
        "FakeQuantWithMinMaxVarsPerChannel": (
            (0, 1, 2),
            _QUANTISED.format("of whose gradient TensorFlow has no derivative"),
        ),
        "ResizeBilinear": (
            (0,),
            "it resizes images by bilinear interpolation, of whose gradient TensorFlow's derivative counts as zero. "
            "Write the resizing as a product with a constant matrix on each side, or use another method of "
            'tf.image.resize, such as "lanczos3"',
        ),
        "SparseAdd": (
            (1, 4),
            "it computes tf.sparse.add of two sparse tensors, of whose gradient TensorFlow's derivative counts as "
            "zero. Add dense tensors, as tf.sparse.to_dense gives them",
        ),
    },
    Needs.SECOND: {},
}
_BY_NAME = (
    "it computes {0} of tf.experimental.numpy, which it imported by name: at a tie, TensorFlow's gradient goes to one "
    "of the two. Call it as tf.experimental.numpy.{0}, or use keras.ops.{0}"
)
_STITCH = (
    "it computes the raw operation ParallelDynamicStitch with indices of which one stands twice, or that are not known "
    "while it is traced: any of the values may win, and TensorFlow's gradient goes to all of them. Use "
    "tf.dynamic_stitch, or each index once"
)
_BISECTION = (
    "it computes tf.linalg.eigh_tridiagonal, whose eigenvalues come from a bisection that TensorFlow differentiates as "
    "it is written, which is not their derivative. Use tf.linalg.eigvalsh of the dense matrix"
)
_NO_TAPE = (
    f"it calls tf.numpy_function, {_NONE}. Pass it the tf.stop_gradient of its arguments if that part is not wanted, "
    "or write it with operations of TensorFlow"
)
_BATCH_NORMS = ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
_OPAQUE = {"EagerPyFunc", "XlaCallModule"}  # what these call is no function of TensorFlow's
# Through these nothing is differentiated, and that is what they are for.
_ENDS = {"OnesLike", "StopGradient", "ZerosLike"}


class Gaps(NamedTuple):
    """What is known of TensorFlow's derivatives of a graph.

    Attributes:
        reasons: for each kind of derivative that an operation makes wrong, why, and the operation and its line: the
            first that is met.
        unseen: the operations that were not looked into, each with its line, as the keys of a dictionary.
    """

    reasons: dict[Needs, str]
    unseen: dict[str, None]


def gaps(graph: tf.Graph, sources: Iterable[tf.Tensor], outputs: Iterable[tf.Tensor]) -> Gaps:
    """Say why derivatives of a graph's outputs by these tensors would be wrong in TensorFlow, as far as is known."""
    finder = _Finder()
    finder.collect(graph, {tensor.ref() for tensor in sources}, outputs)
    return finder.found


def _behind(outputs: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """The operations from which tensors are computed."""
    seen, left = set(), [tensor.op for tensor in outputs]
    while left:
        op = left.pop()
        if op not in seen:
            seen.add(op)
            left += [] if op.type in _ENDS else [tensor.op for tensor in op.inputs]
    return seen


class _Finder(Walk[bool]):
    """Follows what depends on the sources, and collects what is wrong on the way."""

    def __init__(self):
        self.found = Gaps({}, {})
        self._callers: tuple[tf.Operation, ...] = ()

    def collect(self, graph: tf.Graph, reached: set, outputs: Iterable[tf.Tensor]) -> None:
        """Add to `reached`, references of tensors, what is computed from them, and to `found` what is wrong there."""
        within = _behind(outputs)
        for op in graph.get_operations():
            depends = [tensor.ref() in reached for tensor in op.inputs]
            if op not in within or op.type in _ENDS or not any(depends):
                continue
            for needs, why in [*_lacking(op, depends, within), *_doubts(op, depends, reached, within)]:
                self.found.reasons.setdefault(needs, f"{why}. It is {_where(op, self._callers)}")
            for tensor, moves in zip(op.outputs, self.follow(op, depends), strict=True):
                if moves and not (tensor.dtype.is_integer or tensor.dtype.is_bool):
                    reached.add(tensor.ref())

    def run(self, graph: tf.Graph, inputs: Sequence[bool]) -> list[bool]:
        reached = {tensor.ref() for tensor, moves in zip(graph.inputs, inputs, strict=True) if moves}
        self.collect(graph, reached, graph.outputs)
        return [tensor.ref() in reached for tensor in graph.outputs]

    def body(self, op: tf.Operation, name: str, known: Sequence[bool]) -> list[bool]:
        callers, self._callers = self._callers, (*self._callers, op)
        try:
            return super().body(op, name, known)
        except LookupError:
            self.found.unseen.setdefault(_where(op, callers))
            return [any(known)] * len(op.outputs)
        finally:
            self._callers = callers

    def joined(self, several: Sequence[bool]) -> bool:
        return any(several)

    def step(self, op: tf.Operation, known: list[bool]) -> list[bool]:
        if op.type in _OPAQUE or any("func" in attribute.type for attribute in op.op_def.attr):
            self.found.unseen.setdefault(_where(op, self._callers))
        return [True] * len(op.outputs)


def operations_of(graph: tf.Graph) -> Iterator[tf.Operation]:
    """The operations of a graph, and of the functions that it calls, as far as they are found."""
    for op in graph.get_operations():
        yield op
        for attribute in op.op_def.attr:
            if "func" in attribute.type:
                for function in np.ravel(op.get_attr(attribute.name)):
                    with contextlib.suppress(LookupError):
                        yield from operations_of(function_body(graph, function.name))


def _where(op: tf.Operation, callers: tuple[tf.Operation, ...]) -> str:
    """Name an operation and its line; of one from a loaded model, which has no line, the line that calls it."""
    for outer in (op, *reversed(callers)):
        found = place(outer)
        if not found.endswith(f"({outer.name})"):
            return found if outer is op else f"{place(op)}, in what is called by {found}"
    return place(op)


def _lacking(op: tf.Operation, depends: list[bool], within: set[tf.Operation]) -> Iterator[tuple[Needs, str]]:
    """What is wrong with an operation some of whose inputs depend on the sources."""

    def any_of(inputs: Iterable[int]) -> bool:
        return any(depends[i] for i in inputs if i < len(depends))

    for needs, table in LACKING.items():
        if op.type in table:
            inputs, why = table[op.type]
            if any_of(inputs or range(len(depends))):
                yield needs, why
    if op.type == "Log1p" and (name := _imported_by_name(op)):
        yield Needs.GRADIENT, _BY_NAME.format(name)
    elif op.type == "ParallelDynamicStitch" and op.outputs[0].dtype.is_floating:
        half = len(op.inputs) // 2
        if any(depends[half:]) and not _each_once([tensor.op for tensor in op.inputs[:half]]):
            yield Needs.GRADIENT, _STITCH
    elif op.type in _BATCH_NORMS:
        used = any(consumer in within for tensor in op.outputs[1:3] for consumer in tensor.consumers())
        if used if op.get_attr("is_training") else any_of((3, 4)):
            yield Needs.GRADIENT, _BATCH_STATISTICS
    elif op.type in LOOPS and _is_bisection(op):
        yield Needs.GRADIENT, _BISECTION
    elif known(op.type).has("leaves") and any(tensor.dtype.is_floating for tensor in op.outputs):
        yield Needs.GRADIENT, _NO_TAPE


def _doubts(
    op: tf.Operation, depends: list[bool], reached: set, within: set[tf.Operation]
) -> Iterator[tuple[Needs, str]]:
    """What is wrong with an operation at some points only."""
    for second, why in doubts(op, depends, reached, within):
        yield Needs.SECOND_AT_ZERO if second else Needs.AT_POINTS, why


def _is_bisection(op: tf.Operation) -> bool:
    """Whether a loop is one of tf.linalg.eigh_tridiagonal, which is no operation of its own: by names.

    The scope has its name, unless the caller gave another, and the stack has it, unless the graph was loaded.
    """
    scopes, frames = op.name.split("/"), op.traceback or []
    return any(name.startswith("eigh_tridiagonal") for name in [*scopes, *(frame.name for frame in frames)])


def _imported_by_name(op: tf.Operation) -> str | None:
    """The function of tf.experimental.numpy that made a logarithm, where it was not replaced: by the stack."""
    for frame in op.traceback or []:
        if frame.name in ("logaddexp", "logaddexp2") and frame.filename.endswith("np_math_ops.py"):
            return frame.name
    return None


def _each_once(indices: Sequence[tf.Operation]) -> bool:
    """Whether no index stands twice: seen in constants, and true of the parts of one partition."""
    kinds = {op.type for op in indices}
    if kinds == {"DynamicPartition"}:
        return len(set(indices)) == 1  # the gradient of tf.dynamic_partition
    if kinds != {"Const"}:
        return False
    values = np.concatenate([tf.make_ndarray(op.get_attr("value")).ravel() for op in indices])
    return len(np.unique(values)) == len(values)


def placeholders(graph: tf.Graph, count: int, variables: Sequence[tf.Variable] | None) -> list[tf.Tensor]:
    """The tensors that stand for the sources in a concrete function's graph: its first arguments, or variables."""
    if variables is None:
        return list(graph.inputs[:count])
    handles = {id(variable.handle) for variable in variables}
    return [inside for outside, inside in graph.captures if id(outside) in handles]
