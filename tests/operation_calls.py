"""A call of the raw operation for each row of `tapelab.graphs.operations`: its arguments, numbers as NumPy arrays.

The first axis of what carries numbers is that of the examples where the family has one. Arrays of numbers that are not
whole are what tests may change; everything else is a parameter.
"""

import inspect

from tapelab.graphs.operations import OPERATIONS
from tapelab.runtime import tf

import numpy as np
from data_tables import read_table

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

_BY_HAND = read_table("operation_calls", "_BY_HAND", globals())

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
