"""Kinds of operation, and how channels go through one of each kind."""

from collections.abc import Sequence

from tapelab.derivatives.operators.taylor_mode import elementwise
from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.bilinear import Bilinear
from tapelab.derivatives.operators.taylor_mode.values import Val, padded, plus
from tapelab.runtime import tf

# Their derivative is zero wherever they have one, or, for StopGradient, by definition.
CONSTANT = {
    "StopGradient", "Sign", "Floor", "Ceil", "Round", "Rint", "ZerosLike", "OnesLike",
}  # fmt: skip

# Linear in all of their floating-point inputs together. Inputs that do not depend on the sources count as zero.
LINEAR = {
    "AvgPool", "AvgPool3D", "BatchToSpace", "BatchToSpaceND", "BroadcastTo", "Cast", "ConcatV2", "Conj", "Cumsum",
    "DepthToSpace", "DynamicPartition", "DynamicStitch", "ExpandDims", "FFT", "FFT2D", "Gather", "GatherNd",
    "GatherV2", "IFFT", "IFFT2D", "IRFFT", "IRFFT2D", "Imag", "InvertPermutation", "MatrixBandPart", "MatrixDiag",
    "MatrixDiagPart", "MatrixDiagPartV3", "MatrixDiagV3", "MatrixSetDiagV3", "Mean", "MirrorPad", "Pack", "Pad",
    "PadV2", "ParallelDynamicStitch", "RFFT", "RFFT2D", "Real", "Reshape", "ResizeBilinear",
    "ResizeNearestNeighbor", "ReverseSequence", "ReverseV2", "Roll", "ScatterNd", "SegmentMean", "SegmentSum",
    "Slice", "SpaceToBatch", "SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Squeeze", "StridedSlice", "Sum",
    "TensorScatterAdd", "TensorScatterSub", "TensorScatterUpdate", "Tile", "Transpose", "Unpack", "UnsortedSegmentSum",
}  # fmt: skip


def unary_of(algebra: Algebra, a: Val, y: tf.Tensor, table: elementwise.Table) -> Val:
    """Send channels through y = φ(a), whose derivatives are in a table; each is computed once."""
    found: dict[int, tf.Tensor | None] = {}

    def derivative(order):
        if order not in found:
            found[order] = table[order - 1]()
        return found[order]

    return algebra.unary(a, y, derivative)


def bilinear_of(algebra: Algebra, b: Bilinear, left: Val, right: Val, y: tf.Tensor) -> Val:
    """Send channels through y = B(left, right)."""
    return algebra.bilinear(b, *b.prepared(left, right), y)


def combination(algebra: Algebra, vals: Sequence[Val], signs: Sequence[int], y: tf.Tensor) -> Val:
    """Add or subtract values channel by channel, with broadcasting."""
    out = []
    for k in range(len(algebra.lanes)):
        parts = [(sign, v.ch[k]) for sign, v in zip(signs, vals, strict=True) if v.ch and v.ch[k] is not None]
        parts = [(sign, padded(c, y.shape.rank)) for sign, c in parts]
        out.append(plus(*[c if sign == 1 else -c for sign, c in parts]))
    return Val(y, out)
