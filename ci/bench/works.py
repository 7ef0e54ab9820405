"""The work that `make bench` times: sizes, data and weights, the same for every framework. NumPy only."""

from dataclasses import dataclass

import numpy as np

DATA_BATCH = 256  # a product with a curvature matrix goes through its data in batches
STEPS = 40  # of Lanczos's method
MAX_NORM = 1.0  # to which examples' gradients are clipped
CHUNK = 256  # rows of a Hessian, or examples of a Laplacian divided by 4

PLAIN = ("tensorflow/tapelab", "tensorflow/guide", "jax/jax", "torch/torch", "torch/torch compiled")
PRODUCT = ("tensorflow/tapelab", "tensorflow/gradient", "jax/jax", "torch/curvlinops")
CLIPPED = ("tensorflow/tapelab", "tensorflow/gradient", "jax/jax", "torch/opacus")
RECIPES = {
    "laplacian": (*PLAIN, "jax/folx"),
    "spectrum": ("tensorflow/tapelab",),
    **dict.fromkeys(("ggn_product", "hessian_product"), PRODUCT),
    **dict.fromkeys(("clipped", "clipped_cnn"), CLIPPED),
}


@dataclass(frozen=True)
class Work:
    """One derivative at one size.

    Attributes:
        name: for the table.
        kind: the function of a framework's module that makes its recipes.
        sizes: of the network's layers, or of the images and channels.
        batch: how many examples.
        dtype: of data, weights and results.
        recipes: which are measured, each as "framework/recipe"; by default those of the kind.
        memory: whether the first call alone is measured, with its peak of memory.
    """

    name: str
    kind: str
    sizes: tuple[int, ...]
    batch: int
    dtype: str = "float32"
    recipes: tuple[str, ...] = ()
    memory: bool = False

    def measured(self) -> tuple[str, ...]:
        return self.recipes or RECIPES.get(self.kind, PLAIN)


WITHOUT_GUIDE = tuple(recipe for recipe in PLAIN if "guide" not in recipe)  # whose plain recipe takes minutes a call
IN_CHUNKS = ("tensorflow/tapelab", "tensorflow/tapelab chunks", "jax/jax", "torch/torch")
WORKS = [
    Work("hessian, n = 102", "hessian", (5, 8, 6), 64),
    Work("hessian, n = 518", "hessian", (8, 16, 16, 6), 64),
    Work("hessian, n = 1996", "hessian", (16, 32, 32, 12), 64),
    Work("hessian, n = 4042", "hessian", (24, 48, 48, 10), 64, recipes=WITHOUT_GUIDE),
    Work("hessian, n = 1996, batch 512", "hessian", (16, 32, 32, 12), 512, recipes=WITHOUT_GUIDE),
    Work("gradient, 784-256-256-10", "gradient", (784, 256, 256, 10), 128),
    Work("hvp, 784-256-256-10", "hvp", (784, 256, 256, 10), 128),
    Work("jacobian, tall", "jacobian", (8, 256, 2048), 1),
    Work("jacobian, wide", "jacobian", (2048, 256, 8), 1),
    Work("batch Jacobian, batch 64", "batch_jacobian", (32, 64, 64, 32), 64),
    Work("batch Jacobian, batch 256", "batch_jacobian", (32, 64, 64, 32), 256),
    Work("batch Jacobian, batch 1024", "batch_jacobian", (32, 64, 64, 32), 1024),
    Work("per-example, MLP, batch 64", "per_example", (784, 128, 10), 64),
    Work("per-example, MLP, batch 256", "per_example", (784, 128, 10), 256, recipes=WITHOUT_GUIDE),
    Work("per-example, CNN, batch 64", "per_example_cnn", (16, 8, 16, 10), 64),
    Work("per-example, CNN, batch 256", "per_example_cnn", (16, 8, 16, 10), 256, recipes=WITHOUT_GUIDE),
    Work("Laplacian, D = 2", "laplacian", (2, 64, 64, 64, 64, 1), 512),
    Work("Laplacian, D = 50", "laplacian", (50, 256, 256, 128, 1), 256),
    Work("Laplacian, D = 50, float64", "laplacian", (50, 256, 256, 128, 1), 256, "float64"),
    Work("tiny function", "tiny", (2,), 1),
    Work("GGN product, n = 301066", "ggn_product", (64, 512, 512, 10), 1024),
    Work("Hessian product, n = 301066", "hessian_product", (64, 512, 512, 10), 1024),
    Work("clipped gradients, MLP, batch 256", "clipped", (784, 256, 256, 10), 256),
    Work("clipped gradients, CNN, batch 64", "clipped_cnn", (28, 16, 32, 10), 64),
    Work("hessian, n = 8070, memory", "hessian", (32, 72, 72, 6), 64, "float32", IN_CHUNKS, True),
    Work(
        "Laplacian, D = 50, batch 2048, memory", "laplacian", (50, 256, 256, 128, 1), 2048, "float32", IN_CHUNKS, True
    ),
    Work("spectrum, n = 1000567, 40 steps", "spectrum", (64, 963, 963, 10), 1024, memory=True),
    Work("clipped gradients, 784-1024-1024-10, memory", "clipped", (784, 1024, 1024, 10), 1024, memory=True),
]


def weights(work):
    """Return the weights: matrices and biases by turns; for a CNN two kernels, a matrix and a bias."""
    generator = np.random.default_rng(1)
    if work.kind.endswith("_cnn"):
        side, first, second, classes = work.sizes
        shapes = [(3, 3, 1, first), (3, 3, first, second), ((side // 4) ** 2 * second, classes), (classes,)]
    else:
        pairs = zip(work.sizes, work.sizes[1:], strict=False)
        shapes = [shape for pair in pairs for shape in (pair, pair[1:])]
    return [
        (generator.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]) or 1)).astype(work.dtype) for shape in shapes
    ]


def batch(work):
    """Return the inputs, and the targets of the loss: numbers for the MLP, classes for the CNN."""
    generator = np.random.default_rng(2)
    if work.kind.endswith("_cnn"):
        side, classes = work.sizes[0], work.sizes[-1]
        x = generator.standard_normal((work.batch, side, side, 1))
        return x.astype(work.dtype), generator.integers(0, classes, work.batch).astype(np.int32)
    x = generator.standard_normal((work.batch, work.sizes[0])).astype(work.dtype)
    return x, generator.standard_normal((work.batch, work.sizes[-1])).astype(work.dtype)


def direction(work):
    """Return a vector for each weight, for Hessian-vector products."""
    generator = np.random.default_rng(3)
    return [generator.standard_normal(weight.shape).astype(work.dtype) for weight in weights(work)]


def labels(work):
    """Return the class of each example, int32, for a loss of classes."""
    targets = batch(work)[1]
    return targets if targets.ndim == 1 else targets.argmax(1).astype(np.int32)


def cut(*arrays):
    """Return the batches of a data set: tuples of as many parts as there are arrays."""
    starts = range(0, len(arrays[0]), DATA_BATCH)
    return [tuple(array[start : start + DATA_BATCH] for array in arrays) for start in starts]
