"""What decides speed: up to which size XLA pays, how much goes through at once, and when a search stops.

None of these numbers changes a result. Beside each stands what was measured, with TensorFlow 2.21 on two cores of a Xeon;
another machine may have others: `make bench ARGS=--constants` measures them again (`ci/bench/constants.py` says how), and
tells which would be another there.
"""

# XLA is tried first where it is expected to win. It saves the start of each operation, and fuses what lies between
# products; its own matrix products and convolutions are slower.

# Bytes of the largest tensor of a derivative of one pass. A call is mostly its own start: a plain graph took 1.5 to 2.9
# times XLA's time up to 16 KiB, 0.6 times from 128 KiB in networks and from 1 MiB elementwise.
XLA_ONE_PASS = 2**14
# Elements of a Jacobian by rows: a plain graph took 1.1 to 2.8 times XLA's time up to 300 by 300, 1.1 to 1.3 times at 1000
# by 1000, and of a network 0.8 times at 2000 by 2000. Its forward mode is slower under XLA.
XLA_JACOBIAN = 1_000_000
# Elements of the sources of a Hessian with products: of networks, a plain graph took 1.8 to 2.7 times XLA's time up to 980,
# and 0.3 to 0.4 times from 1996. Without products, it took 2 to 5.8 times XLA's time, up to 8000.
XLA_HESSIAN = 1000
# Bytes of the largest channel of an operator: of the Laplacians of networks, a plain graph took 1.4 to 1.6 times XLA's time
# up to 1.3 MB, and 0.7 to 0.9 times from 13 MB.
XLA_OPERATOR = 2**23
# Bytes of the largest tensor for all colours of a sparse matrix: a plain graph took 1.04 to 4 times XLA's time wherever it
# was tried, up to 20 MB.
XLA_SPARSE = 2**24

# How operations start through which XLA is slower than TensorFlow in products of second derivatives with vectors. Of dense
# layers and normalisation a plain graph took 1 to 1.4 times XLA's time, of convolutions 0.5 to 0.8 times, of depthwise
# ones 0.1. XLA's second derivatives of max pooling are wrong, and refused.
SLOW_SECOND_ORDER = ("Conv", "DepthwiseConv", "MaxPool")
# In examples' gradients: a plain graph took 1.3 to 2.3 times XLA's time of dense layers, 0.2 to 2.5 times of convolutions.
SLOW_PER_EXAMPLE = ("Conv2D",)
# Through which XLA maps no products of a sparse matrix at once, and is refused: the gradient of a slice is another
# operation there. In reverse mode, the padding that is a slice's gradient elsewhere tells of it. All others were compiled.
UNMAPPED_REVERSE = ("Pad",)
UNMAPPED = ("ConcatV2", "Pad", "PadV2", "Slice")

# Programs that XLA compiles, for one transform and for all: TensorFlow keeps each until the process ends, 0.4 MiB for the
# smallest function.
PROGRAMS, ALL_PROGRAMS = 64, 1000
# Signatures of a transform's arguments whose programs are kept, 0.2 MiB for the smallest function; one that is not is
# traced and compiled anew.
SIGNATURES = 64

# A Hessian's rows are computed so many at once that their largest tensors stay in the processor's cache, but not fewer
# than start operations without much to do.
HESSIAN_CACHED = 2**20  # bytes of the largest tensor
HESSIAN_ROWS = 32
# A packed Hessian by factors is put together from strips of rows, each of so many elements or this share of the matrix.
STRIP, STRIP_SHARE = 2**22, 10

# Examples in a chunk of a clipped gradient: smaller chunks cost more time than their memory is worth.
CLIPPED_EXAMPLES = 256
# A pass over the whole batch may take so many times the memory of a gradient: chunks hold the sums over examples twice.
# And a chunk may take so many times the layers' results, as a gradient does: with what comes after them, and the
# cotangents of one layer.
CLIPPED_WHOLE, CLIPPED_ROOM = 1.3, 1.5
# Elements of a filter: up to here, a convolution with one filter for each gathers patches faster than copying does.
# Copying took 2.3 to 8 times as long up to 72, as long at 144, and a third at 400.
GATHERED = 100
# Products with so many vectors go through a data set at once.
VECTORS = 8

# Entries above which a colouring tries one order alone, and columns in a row beyond which the row orders nothing.
COLOURED_QUICKLY, COLOURED_ROW = 300_000, 64
# Operations of all turns of a loop that a pattern follows: beyond, the loop's result is taken to depend on all of it.
LOOP_OPERATIONS = 50_000
