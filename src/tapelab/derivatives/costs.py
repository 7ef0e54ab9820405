"""What decides speed: up to which size XLA pays, how much goes through at once, and when a search stops.

None of these numbers changes a result. Where one was measured, it is said what was found; where nothing is said, no
measurement is on record. They were found on processors: another machine may have others.
"""

# XLA is tried first where it is expected to win. It saves the start of each operation, and fuses what lies between
# products; its own matrix products and convolutions are slower.

# Bytes of the largest tensor of a derivative of one pass: a call is mostly its own start, half as long under XLA.
XLA_ONE_PASS = 2**14
# Elements of a Jacobian by rows: beyond, starting operations no longer counts. Its forward mode is slower under XLA.
XLA_JACOBIAN = 1_000_000
# Elements of the sources of a Hessian: beyond, XLA's matrix products are the slower ones.
XLA_HESSIAN = 1000
# Bytes of the largest channel of an operator. Up to here XLA, which joins elementwise operations, saves more on them
# than it loses on matrix products: 10 to 60 % of the time in networks of width 64 to 512.
XLA_OPERATOR = 2**23
# Bytes of the largest tensor for all colours of a sparse matrix: below, starting operations costs more than what they
# do.
XLA_SPARSE = 2**22

# Types of operations through which XLA is slower than TensorFlow; of the first two lists, how their names start.
# A backward pass through a backward pass has many operations between its products: XLA took 0.3 to 1.07 of the time on
# a dozen networks. But where there was max pooling, it took one and a half times.
SLOW_HVP = ("MaxPool",)
# Networks of dense layers and normalisation took 0.56 to 0.92 of the time, small ones 0.6 to 1.2. With convolutions it
# was 0.85 to 1.27.
SLOW_GGN = ("Conv", "DepthwiseConv", "MaxPool")
# A convolution's filter gradients are many small batches of products, which XLA computes one by one.
SLOW_PER_EXAMPLE = ("Conv2D",)
# Under XLA the gradient of a slice is an operation that is not vectorised; and that of concatenation is a slice.
SLOW_SPARSE_REVERSE = ("Slice",)
SLOW_SPARSE = ("ConcatV2", "Pad", "PadV2", "Slice")

# Programs that XLA compiles, for one transform and for all: TensorFlow keeps each until the process ends, some 0.3 MB
# for the smallest function.
PROGRAMS, ALL_PROGRAMS = 64, 1000
# Signatures of a transform's arguments whose programs are kept; one that is not is traced and compiled anew.
SIGNATURES = 64

# A Hessian's rows are computed so many at once that their largest tensors stay in the processor's cache, but not fewer
# than start operations without much to do. Found by measuring, on networks with batches of 64 and 512.
HESSIAN_CACHED = 2**20  # bytes of the largest tensor
HESSIAN_ROWS = 32
# A packed Hessian by factors is put together from strips of rows, each of so many elements or this share of the matrix.
# Found by measuring: thinner ones took more memory on a first call, and more time.
STRIP, STRIP_SHARE = 2**22, 10

# Examples in a chunk of a clipped gradient: smaller chunks cost more time than their memory is worth. For 256 examples
# two passes took a third more time than one.
CLIPPED_EXAMPLES = 256
# A pass over the whole batch may take so many times the memory of a gradient: chunks hold the sums over examples twice.
# And a chunk may take so many times the layers' results, as a gradient does: with what comes after them, and the
# cotangents of one layer.
CLIPPED_WHOLE, CLIPPED_ROOM = 1.3, 1.5
# Elements of a filter: up to here, a convolution with one filter for each gathers patches faster than copying does.
GATHERED = 32
# Products with so many vectors go through a data set at once.
VECTORS = 8

# Entries above which a colouring tries one order alone, and columns in a row beyond which the row orders nothing.
COLOURED_QUICKLY, COLOURED_ROW = 300_000, 64
# Operations of all turns of a loop that a pattern follows: beyond, the loop's result is taken to depend on all of it.
LOOP_OPERATIONS = 50_000
