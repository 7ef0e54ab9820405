"""Operations that are parts of a program: shapes, functions that are called, random numbers, variables."""

from tapelab.graphs.operations.operation import BRANCH, CALL, LOOP, OUTSIDE, RANDOM, SHAPE, Operation

_SHAPE = Operation(SHAPE, facts="flat, valueless")
_DRAWN = Operation(RANDOM)
_OUTSIDE = Operation(OUTSIDE)

ROWS = {
    "Rank": _SHAPE,
    "Shape": _SHAPE,
    "ShapeN": _SHAPE,
    "Size": _SHAPE,
    "VarIsInitializedOp": Operation(SHAPE, facts="flat, valueless, reads"),
    "VariableShape": Operation(SHAPE, facts="flat, valueless, reads"),
    "PartitionedCall": Operation(CALL),
    "StatefulPartitionedCall": Operation(CALL),
    "Case": Operation(BRANCH),
    "If": Operation(BRANCH),
    "StatelessCase": Operation(BRANCH),
    "StatelessIf": Operation(BRANCH),
    "StatelessWhile": Operation(LOOP),
    "While": Operation(LOOP),
    "EagerPyFunc": _OUTSIDE,
    "PyFunc": Operation(OUTSIDE, facts="leaves"),
    "PyFuncStateless": Operation(OUTSIDE, facts="leaves"),
    "XlaCallModule": _OUTSIDE,
    "Multinomial": _DRAWN,
    "RandomGamma": _DRAWN,
    "RandomPoissonV2": _DRAWN,
    "RandomShuffle": _DRAWN,
    "RandomStandardNormal": _DRAWN,
    "RandomUniform": _DRAWN,
    "RandomUniformInt": _DRAWN,
    "TruncatedNormal": _DRAWN,
}
