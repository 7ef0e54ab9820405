"""A call of the raw operation for each row of `tapelab.graphs.operations`: its arguments, numbers as NumPy arrays.

The first axis of what carries numbers is that of the examples where the family has one. Arrays of numbers that are not
whole are what tests may change; everything else is a parameter.
"""

import inspect

from tapelab.graphs.operations import OPERATIONS
from tapelab.runtime import tf

import numpy as np

EXAMPLES = 4


def numbers(*shape, phase=0.0):
    """Numbers from 0.1 to 0.9 in no particular relation, the same in every run."""
    return 0.5 + 0.4 * np.cos(1.0 + phase + 1.7 * np.arange(np.prod(shape))).reshape(shape)


X, Y = numbers(EXAMPLES, 3), numbers(EXAMPLES, 3, phase=0.4)
COMPLEX = X + 1j * Y
WHOLE = np.arange(EXAMPLES * 3, dtype=np.int32).reshape(EXAMPLES, 3)
TRUE = X > 0.5
SQUARE = numbers(EXAMPLES, 3, 3) + 3 * np.eye(3)
POSITIVE = SQUARE @ SQUARE.transpose(0, 2, 1)
IMAGES, VOLUMES = numbers(EXAMPLES, 4, 4, 2), numbers(EXAMPLES, 4, 4, 4, 2)
FILTER, CUBE = numbers(2, 2, 2, 3), numbers(2, 2, 2, 2, 3)
FLAT_WINDOW = {"strides": [1, 1, 1, 1], "padding": "SAME"}
FLAT_POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
WINDOW = {"strides": [1, 1, 1, 1, 1], "padding": "SAME"}
POOL = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
EDGES = [[0, 0], [1, 1]]
ROWS = [[0], [2], [3]]
SEGMENTS = [0, 0, 1, 2]
CHANNELS = np.float32(numbers(2))
NORM = {"x": np.float32(IMAGES), "scale": CHANNELS, "offset": CHANNELS, "mean": CHANNELS, "variance": CHANNELS}
NORM["is_training"] = False
DIAGONAL = {"k": 0, "num_rows": -1, "num_cols": -1, "padding_value": np.array(0.0)}

_BY_HAND = {
    "Acosh": {"x": 1 + X},
    "Angle": {"input": COMPLEX, "Tout": tf.float64},
    "FakeQuantWithMinMaxArgs": {"inputs": np.float32(X)},
    "FakeQuantWithMinMaxVars": {"inputs": np.float32(X), "min": np.float32(-6), "max": np.float32(6)},
    "FakeQuantWithMinMaxVarsPerChannel": {
        "inputs": np.float32(X),
        "min": np.float32([-6, -5, -4]),
        "max": np.float32([6, 5, 4]),
    },
    "BiasAdd": {"value": X, "bias": numbers(3)},
    "BitwiseAnd": {"x": WHOLE, "y": WHOLE.T.reshape(WHOLE.shape)},
    "BitwiseOr": {"x": WHOLE, "y": WHOLE.T.reshape(WHOLE.shape)},
    "BitwiseXor": {"x": WHOLE, "y": WHOLE.T.reshape(WHOLE.shape)},
    "AddN": {"inputs": [X, Y, X * Y]},
    "Cast": {"x": X, "DstT": tf.float64},
    "CheckNumerics": {"tensor": X, "message": ""},
    "CheckNumericsV2": {"tensor": X, "message": ""},
    "ClipByValue": {"t": X, "clip_value_min": np.full_like(X, 0.3), "clip_value_max": np.full_like(X, 0.7)},
    "Complex": {"real": X, "imag": Y, "Tout": tf.complex128},
    "ComplexAbs": {"x": COMPLEX, "Tout": tf.float64},
    "Conj": {"input": COMPLEX},
    "EnsureShape": {"input": X, "shape": X.shape},
    "FresnelCos": {"x": X},
    "IdentityN": {"input": [X, Y]},
    "Imag": {"input": COMPLEX, "Tout": tf.float64},
    "Real": {"input": COMPLEX, "Tout": tf.float64},
    "LogicalAnd": {"x": TRUE, "y": ~TRUE},
    "LogicalNot": {"x": TRUE},
    "LogicalOr": {"x": TRUE, "y": ~TRUE},
    "Mod": {"x": X, "y": Y},
    "Polygamma": {"a": np.ones_like(X), "x": X},
    "Select": {"condition": TRUE, "x": X, "y": Y},
    "SelectV2": {"condition": TRUE, "t": X, "e": Y},
    "Zeta": {"x": 2 + X, "q": Y},
    "BatchToSpace": {"input": IMAGES, "crops": [[0, 0], [0, 0]], "block_size": 2},
    "BatchToSpaceND": {"input": IMAGES, "block_shape": [2], "crops": [[0, 1]]},
    "BroadcastTo": {"input": X, "shape": [2, EXAMPLES, 3]},
    "ConcatV2": {"values": [X, Y], "axis": 1},
    "DepthToSpace": {"input": numbers(EXAMPLES, 2, 2, 4), "block_size": 2},
    "Diag": {"diagonal": X},
    "DiagPart": {"input": numbers(3, 3)},
    "DynamicStitch": {"indices": [[0, 2], [1]], "data": [X[:2], Y[:1]]},
    "ParallelDynamicStitch": {"indices": [[0, 2], [1]], "data": [X[:2], Y[:1]]},
    "ExpandDims": {"input": X, "axis": 1},
    "MatrixBandPart": {"input": SQUARE, "num_lower": 1, "num_upper": 0},
    "MatrixDiag": {"diagonal": X},
    "MatrixDiagPart": {"input": SQUARE},
    "MatrixDiagPartV3": {"input": SQUARE, "k": [-1, 0], "padding_value": np.array(0.0)},
    "MatrixDiagV3": {"diagonal": X, **DIAGONAL},
    "MatrixSetDiagV3": {"input": SQUARE, "diagonal": X, "k": 0},
    "MirrorPad": {"input": X, "paddings": EDGES, "mode": "REFLECT"},
    "Pack": {"values": [X, Y], "axis": 1},
    "Pad": {"input": X, "paddings": EDGES},
    "PadV2": {"input": X, "paddings": EDGES, "constant_values": np.array(0.4)},
    "Reshape": {"tensor": X, "shape": [2, 6]},
    "ReverseSequence": {"input": X, "seq_lengths": [1, 2, 3, 3], "seq_dim": 1},
    "ReverseV2": {"tensor": X, "axis": [1]},
    "Roll": {"input": X, "shift": [1], "axis": [1]},
    "Slice": {"input": X, "begin": [0, 1], "size": [4, 2]},
    "SpaceToBatch": {"input": IMAGES, "paddings": [[0, 0], [0, 0]], "block_size": 2},
    "SpaceToBatchND": {"input": IMAGES, "block_shape": [2], "paddings": [[1, 1]]},
    "SpaceToDepth": {"input": IMAGES, "block_size": 2},
    "Split": {"axis": 1, "value": X, "num_split": 3},
    "SplitV": {"value": X, "size_splits": [1, 2], "axis": 1, "num_split": 2},
    "Squeeze": {"input": X[:, None]},
    "StridedSlice": {"input": X, "begin": [0, 2], "end": [4, 0], "strides": [1, -1]},
    "StridedSliceGrad": {"shape": [4, 5], "begin": [0, 0], "end": [4, 5], "strides": [1, 2], "dy": X},
    "Tile": {"input": X, "multiples": [1, 2]},
    "Transpose": {"x": X, "perm": [1, 0]},
    "Unpack": {"value": X, "num": 3, "axis": 1},
    "Gather": {"params": X, "indices": [2, 0, 2]},
    "GatherNd": {"params": X, "indices": [[2, 1], [0, 0]]},
    "GatherV2": {"params": X, "indices": [2, 0, 2], "axis": 1},
    "OneHot": {"indices": WHOLE, "depth": 4, "on_value": np.array(0.7), "off_value": np.array(0.2)},
    "DynamicPartition": {"data": X, "partitions": [0, 1, 1, 0], "num_partitions": 2},
    "MirrorPadGrad": {"input": numbers(4, 5), "paddings": EDGES, "mode": "REFLECT"},
    "ScatterNd": {"indices": ROWS, "updates": X[:3], "shape": [4, 3]},
    "TensorScatterAdd": {"tensor": X, "indices": ROWS, "updates": Y[:3]},
    "TensorScatterMax": {"tensor": X, "indices": ROWS, "updates": Y[:3]},
    "TensorScatterMin": {"tensor": X, "indices": ROWS, "updates": Y[:3]},
    "TensorScatterSub": {"tensor": X, "indices": ROWS, "updates": Y[:3]},
    "TensorScatterUpdate": {"tensor": X, "indices": ROWS, "updates": Y[:3]},
    "SegmentMax": {"data": X, "segment_ids": SEGMENTS},
    "SegmentMean": {"data": X, "segment_ids": SEGMENTS},
    "SegmentMin": {"data": X, "segment_ids": SEGMENTS},
    "SegmentProd": {"data": X, "segment_ids": SEGMENTS},
    "SegmentSum": {"data": X, "segment_ids": SEGMENTS},
    "UnsortedSegmentMax": {"data": X, "segment_ids": SEGMENTS, "num_segments": 3},
    "UnsortedSegmentMin": {"data": X, "segment_ids": SEGMENTS, "num_segments": 3},
    "UnsortedSegmentProd": {"data": X, "segment_ids": SEGMENTS, "num_segments": 3},
    "UnsortedSegmentSum": {"data": X, "segment_ids": SEGMENTS, "num_segments": 3},
    "All": {"input": TRUE, "axis": 1},
    "Any": {"input": TRUE, "axis": 1},
    "ArgMax": {"input": X, "dimension": 1},
    "ArgMin": {"input": X, "dimension": 1},
    "EuclideanNorm": {"input": X, "axis": 1},
    "Max": {"input": X, "axis": 1},
    "Mean": {"input": X, "axis": 1},
    "Min": {"input": X, "axis": 1},
    "Prod": {"input": X, "axis": 1},
    "Sum": {"input": X, "axis": 1},
    "Cumprod": {"x": X, "axis": 1},
    "Cumsum": {"x": X, "axis": 1},
    "CumulativeLogsumexp": {"x": X, "axis": 1},
    "LogMatrixDeterminant": {"input": SQUARE},
    "Lu": {"input": SQUARE},
    "MatrixDeterminant": {"input": SQUARE},
    "MatrixInverse": {"input": SQUARE},
    "Qr": {"input": SQUARE},
    "Cholesky": {"input": POSITIVE},
    "SelfAdjointEigV2": {"input": POSITIVE},
    "Svd": {"input": POSITIVE},
    "MatrixSquareRoot": {"input": POSITIVE.astype(complex)},
    "Eig": {"input": SQUARE, "Tout": tf.complex128},
    "FFT": {"input": COMPLEX},
    "IFFT": {"input": COMPLEX},
    "FFT2D": {"input": SQUARE + 1j * POSITIVE},
    "IFFT2D": {"input": SQUARE + 1j * POSITIVE},
    "RFFT": {"input": X, "fft_length": [3], "Tcomplex": tf.complex128},
    "RFFT2D": {"input": SQUARE, "fft_length": [3, 3], "Tcomplex": tf.complex128},
    "IRFFT": {"input": COMPLEX, "fft_length": [4], "Treal": tf.float64},
    "IRFFT2D": {"input": SQUARE + 1j * POSITIVE, "fft_length": [3, 4], "Treal": tf.float64},
    "MatrixSolve": {"matrix": SQUARE, "rhs": numbers(EXAMPLES, 3, 2)},
    "MatrixTriangularSolve": {"matrix": SQUARE, "rhs": numbers(EXAMPLES, 3, 2)},
    "SoftmaxCrossEntropyWithLogits": {"features": X, "labels": Y},
    "SparseSoftmaxCrossEntropyWithLogits": {"features": X, "labels": [0, 2, 1, 1]},
    "TopKV2": {"input": X, "k": 2},
    "TridiagonalSolve": {"diagonals": POSITIVE[:, :, :3], "rhs": numbers(EXAMPLES, 3, 2)},
    "BatchMatMul": {"x": SQUARE, "y": POSITIVE},
    "BatchMatMulV2": {"x": SQUARE, "y": POSITIVE},
    "BatchMatMulV3": {"x": SQUARE, "y": POSITIVE, "Tout": tf.float64},
    "Einsum": {"inputs": [X, SQUARE], "equation": "ij,ijk->ik"},
    "MatMul": {"a": X, "b": SQUARE[0]},
    "SparseTensorDenseMatMul": {
        "a_indices": np.array([[0, 1], [2, 2]]),
        "a_values": numbers(2),
        "a_shape": np.array([3, 3]),
        "b": SQUARE[0],
    },
    "AvgPool": {"value": IMAGES, **FLAT_POOL},
    "AvgPool3D": {"input": np.float32(VOLUMES), **POOL},
    "AvgPool3DGrad": {"orig_input_shape": VOLUMES.shape, "grad": np.float32(numbers(EXAMPLES, 2, 2, 2, 2)), **POOL},
    "AvgPoolGrad": {"orig_input_shape": IMAGES.shape, "grad": numbers(EXAMPLES, 2, 2, 2), **FLAT_POOL},
    "Conv2D": {"input": IMAGES, "filter": FILTER, **FLAT_WINDOW},
    "Conv2DBackpropFilter": {
        "input": IMAGES,
        "filter_sizes": FILTER.shape,
        "out_backprop": numbers(EXAMPLES, 4, 4, 3),
        **FLAT_WINDOW,
    },
    "Conv2DBackpropInput": {
        "input_sizes": IMAGES.shape,
        "filter": FILTER,
        "out_backprop": numbers(EXAMPLES, 4, 4, 3),
        **FLAT_WINDOW,
    },
    "Conv3D": {"input": VOLUMES, "filter": CUBE, **WINDOW},
    "Conv3DBackpropFilterV2": {
        "input": VOLUMES,
        "filter_sizes": CUBE.shape,
        "out_backprop": numbers(EXAMPLES, 4, 4, 4, 3),
        **WINDOW,
    },
    "Conv3DBackpropInputV2": {
        "input_sizes": VOLUMES.shape,
        "filter": CUBE,
        "out_backprop": numbers(EXAMPLES, 4, 4, 4, 3),
        **WINDOW,
    },
    "DepthwiseConv2dNative": {"input": IMAGES, "filter": FILTER, **FLAT_WINDOW},
    "DepthwiseConv2dNativeBackpropFilter": {
        "input": IMAGES,
        "filter_sizes": FILTER.shape,
        "out_backprop": numbers(EXAMPLES, 4, 4, 6),
        **FLAT_WINDOW,
    },
    "DepthwiseConv2dNativeBackpropInput": {
        "input_sizes": IMAGES.shape,
        "filter": FILTER,
        "out_backprop": numbers(EXAMPLES, 4, 4, 6),
        **FLAT_WINDOW,
    },
    "FusedBatchNorm": NORM,
    "FusedBatchNormV2": NORM,
    "FusedBatchNormV3": NORM,
    "MaxPool": {"input": IMAGES, **FLAT_POOL},
    "MaxPool3D": {"input": np.float32(VOLUMES), **POOL},
    "MaxPool3DGrad": {
        "orig_input": np.float32(VOLUMES),
        "orig_output": np.float32(VOLUMES.reshape(EXAMPLES, 2, 2, 2, 2, 2, 2, 2).max((2, 4, 6))),
        "grad": np.float32(numbers(EXAMPLES, 2, 2, 2, 2)),
        **POOL,
    },
    "MaxPoolGrad": {
        "orig_input": IMAGES,
        "orig_output": IMAGES.reshape(EXAMPLES, 2, 2, 2, 2, 2).max((2, 4)),
        "grad": numbers(EXAMPLES, 2, 2, 2),
        **FLAT_POOL,
    },
    "MaxPoolV2": {"input": IMAGES, "ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"},
    "ResizeBicubic": {"images": np.float32(IMAGES), "size": [3, 6]},
    "ResizeBilinear": {"images": np.float32(IMAGES), "size": [3, 6]},
    "ResizeNearestNeighbor": {"images": IMAGES, "size": [3, 6]},
    "ShapeN": {"input": [X, Y]},
    "Multinomial": {"logits": X, "num_samples": 50},
    "RandomGamma": {"shape": [9], "alpha": X},
    "RandomPoissonV2": {"shape": [99], "rate": X},
    "RandomShuffle": {"value": numbers(50)},
    "RandomUniformInt": {"shape": [9], "minval": 0, "maxval": 1000},
    "RandomStandardNormal": {"shape": [9], "dtype": tf.float64},
    "RandomUniform": {"shape": [9], "dtype": tf.float64},
    "TruncatedNormal": {"shape": [9], "dtype": tf.float64},
}

# What cannot be called alone: it takes variables, lists of tensors, functions; or more than a few numbers. This list
# only gets shorter.
WITHOUT = {
    "Case", "EagerPyFunc", "EmptyTensorList", "FusedBatchNormGradV3", "If", "OptionalFromValue", "OptionalGetValue",
    "PartitionedCall", "PyFunc", "PyFuncStateless", "ReadVariableOp", "ResourceGather", "ResourceGatherNd",
    "StatefulPartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile", "TensorListFromTensor",
    "TensorListGetItem", "TensorListLength", "TensorListPopBack", "TensorListPushBack", "TensorListReserve",
    "TensorListSetItem", "TensorListStack", "VarIsInitializedOp", "VariableShape", "While", "XlaCallModule",
}  # fmt: skip


def _plain(kind):
    """X and Y for what an operation takes, where that is all."""
    parameters = inspect.signature(getattr(tf.raw_ops, kind)).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    return dict(zip(names, (X, Y, X * Y), strict=False))


CALLS = {kind: _BY_HAND[kind] if kind in _BY_HAND else _plain(kind) for kind in OPERATIONS if kind not in WITHOUT}

INDEXED = sorted(kind for kind, row in OPERATIONS.items() if row.at is not None)
_TABLE = tf.Variable(X)


def indexed(kind, at):
    """Return what an operation with an index gives, a list, where that is this number throughout."""
    if kind == "ResourceGather":
        return [tf.raw_ops.ResourceGather(resource=_TABLE.handle, indices=[at], dtype=X.dtype)]
    if kind.startswith("TensorList"):
        rows = tf.raw_ops.TensorListFromTensor(tensor=X, element_shape=[3])
        if kind == "TensorListSetItem":
            return [tf.raw_ops.TensorListSetItem(input_handle=rows, index=at, item=X[0])]
        return [tf.raw_ops.TensorListGetItem(input_handle=rows, index=at, element_shape=[3], element_dtype=X.dtype)]
    raw = getattr(tf.raw_ops, kind)
    name = list(inspect.signature(raw).parameters)[OPERATIONS[kind].at]
    return [raw(**CALLS[kind] | {name: tf.fill(np.shape(CALLS[kind][name]), at)})]
