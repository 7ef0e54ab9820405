"""The work in PyTorch: `torch.func`, as it is and compiled."""

import functools
import importlib
from importlib import metadata

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from works import MAX_NORM, batch, cut, direction, labels, weights


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


class _Network(torch.nn.Module):
    def __init__(self, parameters):
        super().__init__()
        self.parts = torch.nn.ParameterList(parameters)

    def forward(self, x):
        return network(list(self.parts), x)


def _product(work, operator):
    """Of curvlinops, with the same data."""
    parameters, x, _ = _tensors(work)
    model = _Network(parameters)
    data = cut(x, torch.from_numpy(labels(work)).long())
    matrix = operator(model, torch.nn.CrossEntropyLoss(), list(model.parameters()), data, check_deterministic=False)
    vector = torch.cat([torch.from_numpy(part).reshape(-1) for part in direction(work)])
    return {"curvlinops": lambda: matrix @ vector}


def run_ggn_product(work):
    return _product(work, GGNLinearOperator)


def run_hessian_product(work):
    return _product(work, HessianLinearOperator)


# A weight's axes, by their number: in PyTorch's layers, and back.
TO_LAYER = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
FROM_LAYER = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}


class _Layers(torch.nn.Module):
    """The networks above, of PyTorch's layers: Opacus knows these."""

    def __init__(self, parameters):
        super().__init__()
        parts = [part.permute(TO_LAYER[part.ndim]).contiguous() for part in parameters]
        kernels = [part for part in parts if part.ndim == 4]
        matrices = [part for part in parts if part.ndim == 2]
        kinds = (torch.nn.Conv2d, {"kernel_size": 3, "padding": 1, "bias": False}), (torch.nn.Linear, {})
        self.convolutions, self.dense = (
            torch.nn.ModuleList([kind(part.shape[1], part.shape[0], **options) for part in found])
            for (kind, options), found in zip(kinds, (kernels, matrices), strict=True)
        )
        for parameter, part in zip(self.parameters(), parts, strict=True):
            parameter.data = part

    def forward(self, x):
        if self.convolutions:
            # Opacus 1.6 assumes that channels come first in memory too; where they do not, its norms are wrong.
            x = x.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
            for layer in self.convolutions:
                x = torch.nn.functional.avg_pool2d(torch.relu(layer(x)), 2)
            x = x.permute(0, 2, 3, 1).reshape(len(x), -1)
        for layer in self.dense[:-1]:
            x = torch.tanh(layer(x))
        return self.dense[-1](x)


def run_clipped(work):
    """Opacus' ghost clipping, without noise."""
    parameters, x, _ = _tensors(work)
    y = torch.from_numpy(labels(work)).long()
    model = GradSampleModuleFastGradientClipping(_Layers(parameters), max_grad_norm=MAX_NORM, use_ghost_clipping=True)
    options = {"noise_multiplier": 0.0, "max_grad_norm": MAX_NORM, "expected_batch_size": work.batch}
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(model.parameters(), 0.1), **options)
    loss = DPLossFastGradientClipping(model, optimizer, torch.nn.CrossEntropyLoss())

    def opacus():
        loss(model(x), y).backward()
        return [part.grad.permute(FROM_LAYER[part.ndim]) for part in model.parameters()]

    return {"opacus": opacus}


def run_clipped_cnn(work):
    return run_clipped(work)


def run_sparse_jacobian(work):
    return {}


def run_sparse_hessian(work):
    return {}
