"""The work in PyTorch: `torch.func`, as it is and compiled."""

import functools
import importlib
from importlib import metadata

import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from works import batch, direction, weights


def version():
    try:
        jet = f"torch-jet {metadata.version('jet-for-pytorch')}"
    except metadata.PackageNotFoundError:
        jet = "torch-jet not installed"
    return f"PyTorch {torch.__version__}, {jet}"


def wait(result):
    """Nothing to wait for: a CPU has computed the result when the call returns."""


def to_numpy(result):
    return [part.detach().numpy() for part in (result if isinstance(result, (list, tuple)) else [result])]


def network(parameters, x):
    for matrix, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = torch.tanh(x @ matrix + bias)
    return x @ parameters[-2] + parameters[-1]


def convolutional(parameters, x):
    """As TensorFlow's, which has the channels last; the kernels are brought into PyTorch's order."""
    x = x.permute(0, 3, 1, 2)
    for kernel in parameters[:2]:
        x = torch.relu(torch.nn.functional.conv2d(x, kernel.permute(3, 2, 0, 1), padding=1))
        x = torch.nn.functional.avg_pool2d(x, 2)
    return x.permute(0, 2, 3, 1).reshape(-1, parameters[2].shape[0]) @ parameters[2] + parameters[3]


def squared(parameters, x, y):
    return ((network(parameters, x) - y) ** 2).mean()


def cross_entropy(parameters, x, y):
    return torch.nn.functional.cross_entropy(convolutional(parameters, x), y.long())


def _tensors(work):
    return [torch.from_numpy(weight) for weight in weights(work)], *[torch.from_numpy(part) for part in batch(work)]


def _both(f, *args):
    compiled = torch.compile(f)
    return {"torch": lambda: f(*args), "torch compiled": lambda: compiled(*args)}


def run_hessian(work):
    parameters, x, y = _tensors(work)
    shapes = [part.shape for part in parameters]
    sizes = [part.numel() for part in parameters]
    flat = torch.cat([part.reshape(-1) for part in parameters])

    def loss(flat, x, y):
        return squared([p.reshape(s) for p, s in zip(flat.split(sizes), shapes, strict=True)], x, y)

    return _both(hessian(loss), flat, x, y)


def run_gradient(work):
    return _both(grad(squared), *_tensors(work))


def run_hvp(work):
    parameters, x, y = _tensors(work)
    vector = [torch.from_numpy(part) for part in direction(work)]

    def product(vector, parameters, x, y):
        return jvp(lambda parameters: grad(squared)(parameters, x, y), (parameters,), (vector,))[1]

    return _both(product, vector, parameters, x, y)


def run_jacobian(work):
    parameters, x, _ = _tensors(work)
    make = jacfwd if work.sizes[0] < work.sizes[-1] else jacrev
    return _both(make(lambda x: network(parameters, x)), x[0])


def run_batch_jacobian(work):
    parameters, x, _ = _tensors(work)
    return _both(vmap(jacrev(lambda x: network(parameters, x))), x)


def run_per_example(work, loss=squared):
    def example(parameters, x, y):
        return grad(loss)(parameters, x[None], y[None])

    return _both(vmap(example, (None, 0, 0)), *_tensors(work))


def run_per_example_cnn(work):
    return run_per_example(work, cross_entropy)


def _laplacian(parameters):
    """Of one example."""
    trace = hessian(lambda x: network(parameters, x[None])[0, 0])
    return lambda x: torch.trace(trace(x))


def _by_coordinate(parameters, x):
    """The Laplacian of a batch as training by residuals usually has it: the gradient, then each coordinate's own."""
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(network(parameters, x).sum(), x, create_graph=True)
    second = [torch.autograd.grad(gradient[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(x.shape[1])]
    return torch.stack(second).sum(0)


def _jets(operator, parameters, x):
    """An operator of torch-jet, by collapsed Taylor mode, as its own benchmarks call it; as it is and compiled."""

    @functools.cache
    def made():
        try:
            jet = importlib.import_module("jet")
        except ImportError:
            raise RuntimeError("torch-jet is not installed: it needs Python 3.12") from None
        # A sum of one element: torch-jet has no rule for taking an element.
        one = getattr(jet, operator)(lambda x: network(parameters, x[None]).sum(), (x[0],))
        graph, _ = jet.capture_graph(one, (x[0],))
        jet.common_subexpression_elimination(graph.graph)
        graph.recompile()
        return vmap(graph)

    compiled = functools.cache(lambda: torch.compile(made()))
    return {"torch-jet": lambda: made()(x), "torch-jet compiled": lambda: compiled()(x)}


def run_laplacian(work):
    parameters, x, _ = _tensors(work)
    each = _both(vmap(_laplacian(parameters)), x)
    return each | {"torch autograd": lambda: _by_coordinate(parameters, x)} | _jets("laplacian", parameters, x)


def run_residual(work):
    parameters, x, _ = _tensors(work)
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]

    def usual():
        return torch.autograd.grad((_by_coordinate(leaves, x) ** 2).mean(), leaves, materialize_grads=True)

    each = _both(grad(lambda parameters: (vmap(_laplacian(parameters))(x) ** 2).mean()), parameters)
    return each | {"torch autograd": usual}


def run_biharmonic(work):
    parameters, x, _ = _tensors(work)
    trace = hessian(_laplacian(parameters))
    return _both(vmap(lambda x: torch.trace(trace(x))), x) | _jets("bilaplacian", parameters, x)


def run_tiny(work):
    return _both(grad(lambda x: torch.sin(x).sum()), torch.tensor([0.5, 1.5]))
