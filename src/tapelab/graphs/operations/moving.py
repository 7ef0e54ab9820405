"""Operations that put elements elsewhere: always to the same places, or to places that numbers say."""

from tapelab.graphs.operations.operation import JOINTLY, LIST, LOOKUP, MOVING, SCATTERING, Operation

_MOVED = Operation(MOVING, JOINTLY)
_SAME = Operation(MOVING, JOINTLY, "passes")
_PARTS = Operation(MOVING, JOINTLY, "parts")
_LOOKUP = Operation(LOOKUP, JOINTLY, "parts")
_READ = Operation(LOOKUP, JOINTLY, "parts, reads")
_SCATTERED = Operation(SCATTERING, JOINTLY)
_OTHERWISE = Operation(SCATTERING)
_LIST = Operation(LIST)

ROWS = {
    "BatchToSpace": _MOVED,
    "BatchToSpaceND": _MOVED,
    "BroadcastTo": _MOVED,
    "ConcatV2": _MOVED,
    "DepthToSpace": _MOVED,
    "Diag": _MOVED,
    "DiagPart": _MOVED,
    "DynamicStitch": _MOVED,
    "ExpandDims": _SAME,
    "MatrixBandPart": _MOVED,
    "MatrixDiag": _MOVED,
    "MatrixDiagPart": _MOVED,
    "MatrixDiagPartV3": _MOVED,
    "MatrixDiagV3": _MOVED,
    "MatrixSetDiagV3": _MOVED,
    "MirrorPad": _MOVED,
    "Pack": _MOVED,
    "Pad": _MOVED,
    "PadV2": _MOVED,
    "ParallelDynamicStitch": _MOVED,
    "Reshape": _SAME,
    "ReverseSequence": _MOVED,
    "ReverseV2": _MOVED,
    "Roll": _MOVED,
    "Slice": _PARTS,
    "SpaceToBatch": _MOVED,
    "SpaceToBatchND": _MOVED,
    "SpaceToDepth": _MOVED,
    "Split": _PARTS,
    "SplitV": _PARTS,
    "Squeeze": _SAME,
    "StridedSlice": _PARTS,
    "StridedSliceGrad": _MOVED,
    "Tile": _MOVED,
    "Transpose": _MOVED,
    "Unpack": _PARTS,
    # Rows of a table, by numbers.
    "Gather": _LOOKUP,
    "GatherNd": _LOOKUP,
    "GatherV2": _LOOKUP,
    "OneHot": Operation(LOOKUP, JOINTLY),
    "ResourceGather": _READ,
    "ResourceGatherNd": _READ,
    # Into rows of a table, by numbers.
    "DynamicPartition": _SCATTERED,
    "MirrorPadGrad": _SCATTERED,
    "ScatterNd": _SCATTERED,
    "SegmentMax": Operation(SCATTERING, facts="chooses"),
    "SegmentMean": _SCATTERED,
    "SegmentMin": Operation(SCATTERING, facts="chooses"),
    "SegmentProd": _OTHERWISE,
    "SegmentSum": _SCATTERED,
    "TensorScatterAdd": _SCATTERED,
    "TensorScatterMax": Operation(SCATTERING, facts="chooses"),
    "TensorScatterMin": Operation(SCATTERING, facts="chooses"),
    "TensorScatterSub": _SCATTERED,
    "TensorScatterUpdate": _SCATTERED,
    "UnsortedSegmentMax": Operation(SCATTERING, facts="chooses"),
    "UnsortedSegmentMin": Operation(SCATTERING, facts="chooses"),
    "UnsortedSegmentProd": _OTHERWISE,
    "UnsortedSegmentSum": _SCATTERED,
    # Lists of tensors, and boxes for one.
    "EmptyTensorList": _LIST,
    "OptionalFromValue": _LIST,
    "OptionalGetValue": _LIST,
    "TensorListFromTensor": _LIST,
    "TensorListGetItem": _LIST,
    "TensorListLength": _LIST,
    "TensorListPopBack": _LIST,
    "TensorListPushBack": _LIST,
    "TensorListReserve": _LIST,
    "TensorListSetItem": _LIST,
    "TensorListStack": _LIST,
}
