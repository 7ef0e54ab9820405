"""What decides speed: up to which size XLA pays, how much goes through at once, and when a search stops.

None of these numbers changes a result. Beside each stands what was measured, with TensorFlow 2.21 on two idle cores of
a Xeon. Another machine may have others: `make bench ARGS=--constants` measures them again, and says which would be
another there (`ci/bench/constants.py`).
"""

from tapelab.graphs.operations import of_family, operation

# XLA is tried first where it is expected to win. It saves the start of each operation, and fuses what lies between
# products; its own matrix products and convolutions are slower.

# Bytes of the largest tensor of a derivative of one pass, where a call is mostly its own start. Elementwise, a plain
# graph took 1.05 to 1.4 times XLA's time up to 128 KiB, and 0.8 times at 1 MiB; of networks 1.1 times at the smallest,
# 0.9 times up to 16 KiB, and 0.7 to 0.85 times beyond.
XLA_ONE_PASS = 2**14
# Elements of a Jacobian by rows: a plain graph took 1.04 to 1.8 times XLA's time up to 300 by 300, 0.9 to 1.1 times at
# 1000 by 1000, 1.0 to 1.2 times at 2000 by 2000. Its forward mode is slower under XLA.
XLA_JACOBIAN = 1_000_000
# Elements of the sources of a Hessian with products: of networks, a plain graph took 1.1 to 1.3 times XLA's time up to
# 980, and 0.6 to 0.8 times from 1996. Without products there is no limit: it took 2.7 to 3.3 times from 300 to 4000.
XLA_HESSIAN = 1000
# Bytes of all rows of the largest tensor of a Laplacian.
XLA_LAPLACIAN = 2**23

# What XLA is known to compile as TensorFlow does: a program of other operations is left to a graph.
COMPILED_WELL = (
    of_family(operation.ELEMENTWISE, operation.MOVING, operation.PRODUCT, operation.SHAPE, operation.CALL)
    | of_family(operation.REDUCING)
    | {"BiasAddGrad", "Const", "Fill", "LogSoftmax", "NoOp", "OneHot", "Placeholder", "PlaceholderWithDefault", "Range"}
    | {"Softmax", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)

# What is compiled as well where it is ours: loops over chunks, which a tape cannot follow under XLA, and indices that
# are known to be in range. Of an index out of range XLA takes the nearest one.
OURS = of_family(operation.LIST, operation.LOOP) | {"GatherV2"}

# How operations start through which XLA is slower than TensorFlow, in products of second derivatives with vectors: of
# dense layers and normalisation a plain graph took 0.8 to 1.7 times XLA's time, of convolutions 0.6 to 0.7 times, of
# depthwise ones 0.1. XLA's second derivatives of max pooling are wrong, and refused.
SLOW_SECOND_ORDER = ("Conv", "DepthwiseConv", "MaxPool")
# In examples' gradients: a plain graph took 1.3 to 1.5 times XLA's time of dense layers, and 0.5 to 0.8 times of
# convolutions (but 2.4 times of depthwise ones beside others).
SLOW_PER_EXAMPLE = ("Conv2D",)

# Programs that XLA compiles for one transform: TensorFlow keeps each until the process ends. Of the
# smallest function each takes 0.4 MiB.
PROGRAMS = 64
# Signatures of a transform's arguments whose programs are kept; one that is not is traced and compiled anew. Of the
# smallest function each takes 0.2 MiB.
SIGNATURES = 64

# A Hessian's rows are computed so many at once that their largest tensors stay in the processor's cache, but not fewer
# than start operations without much to do. A quarter, four and sixteen times as much took 1.00 to 1.07 times as long,
# 8 rows 0.99 to 1.07 times, 128 rows 0.98.
HESSIAN_CACHED = 2**20  # bytes of the largest tensor
HESSIAN_ROWS = 32
# A packed Hessian by factors is put together from strips of rows, each of so many elements or this share of the matrix.
# Thinner ones took 1.05 to 1.09 times as long at n = 4042. Thicker ones take more memory: at n = 8070 strips of half
# the matrix took 0.85 to 0.98 times as long.
STRIP, STRIP_SHARE = 2**22, 10

# Examples in a chunk of a clipped gradient: 32 to 512 took 0.92 to 1.07 times as long.
CLIPPED_EXAMPLES = 256
# Products with so many vectors go through a data set at once: one by one took 1.3 times as long for a small network,
# four at once 1.1 times, sixteen 0.96 times; for a large one all took as long. Each has three vectors in memory.
VECTORS = 8
