"""The work in PyTorch: `torch.func`, as it is and compiled; curvlinops and Opacus."""

from functools import partial

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from works import MAX_NORM, batch, cut, direction, labels, weights


def version():
    return f"PyTorch {torch.__version__}"


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


def tensors(work):
    return [torch.from_numpy(weight) for weight in weights(work)], *[torch.from_numpy(part) for part in batch(work)]


def both(f, *args):
    """A recipe as it is, and compiled."""
    compiled = torch.compile(f)
    return {"torch": lambda: f(*args), "torch compiled": lambda: compiled(*args)}


def hessian(work):
    parameters, x, y = tensors(work)
    shapes, sizes = zip(*[(part.shape, part.numel()) for part in parameters], strict=True)

    def loss(flat, x, y):
        return squared([p.reshape(s) for p, s in zip(flat.split(sizes), shapes, strict=True)], x, y)

    return both(torch.func.hessian(loss), torch.cat([part.reshape(-1) for part in parameters]), x, y)


def hvp(work):
    parameters, x, y = tensors(work)
    vector = [torch.from_numpy(part) for part in direction(work)]

    def product(vector, parameters, x, y):
        return jvp(lambda parameters: grad(squared)(parameters, x, y), (parameters,), (vector,))[1]

    return both(product, vector, parameters, x, y)


def jacobian(work):
    parameters, x, _ = tensors(work)
    make = jacfwd if work.sizes[0] < work.sizes[-1] else jacrev
    return both(make(lambda x: network(parameters, x)), x[0])


def batch_jacobian(work):
    parameters, x, _ = tensors(work)
    return both(vmap(jacrev(lambda x: network(parameters, x))), x)


def per_example(work, loss=squared):
    return both(vmap(lambda p, x, y: grad(loss)(p, x[None], y[None]), (None, 0, 0)), *tensors(work))


def laplacian(work):
    parameters, x, _ = tensors(work)
    second = torch.func.hessian(lambda x: network(parameters, x[None])[0, 0])
    return both(vmap(lambda x: torch.trace(second(x))), x)


class Layers(torch.nn.Module):
    """The networks above, of PyTorch's layers, which curvlinops and Opacus know."""

    def __init__(self, parameters):
        super().__init__()
        axes = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}  # of a weight, by their number, in PyTorch's layers
        parts = [part.permute(axes[part.ndim]).contiguous() for part in parameters]
        kernels, matrices = ([part for part in parts if part.ndim == count] for count in (4, 2))
        options = {"kernel_size": 3, "padding": 1, "bias": False}
        self.convolutions = torch.nn.ModuleList([torch.nn.Conv2d(*k.shape[1::-1], **options) for k in kernels])
        self.dense = torch.nn.ModuleList([torch.nn.Linear(*matrix.shape[::-1]) for matrix in matrices])
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


def product(work, operator):
    """Of curvlinops, whose vector has a weight's axes as the layer has them: a matrix in it is transposed."""
    parameters, x, _ = tensors(work)
    model, data = Layers(parameters), cut(x, torch.from_numpy(labels(work)).long())
    matrix = operator(model, torch.nn.CrossEntropyLoss(), list(model.parameters()), data, check_deterministic=False)
    vector = [torch.from_numpy(part) for part in direction(work)]
    flat = torch.cat([part.T.reshape(-1) if part.ndim == 2 else part for part in vector])

    def curvlinops():
        parts = (matrix @ flat).split([part.numel() for part in vector])
        shaped = zip(parts, vector, strict=True)
        return torch.cat([p.reshape(v.T.shape).T.reshape(-1) if v.ndim == 2 else p for p, v in shaped])

    return {"curvlinops": curvlinops}


def clipped(work):
    """Opacus' ghost clipping, without noise."""
    parameters, x, _ = tensors(work)
    y = torch.from_numpy(labels(work)).long()
    model = GradSampleModuleFastGradientClipping(Layers(parameters), max_grad_norm=MAX_NORM, use_ghost_clipping=True)
    options = {"noise_multiplier": 0.0, "max_grad_norm": MAX_NORM, "expected_batch_size": work.batch}
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(model.parameters(), 0.1), **options)
    loss = DPLossFastGradientClipping(model, optimizer, torch.nn.CrossEntropyLoss())
    back = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}

    def opacus():
        loss(model(x), y).backward()
        return [part.grad.permute(back[part.ndim]) for part in model.parameters()]

    return {"opacus": opacus}


def gradient(work):
    return both(grad(squared), *tensors(work))


def tiny(work):
    return both(grad(lambda x: torch.sin(x).sum()), torch.tensor([0.5, 1.5]))


per_example_cnn = partial(per_example, loss=cross_entropy)
ggn_product = partial(product, operator=GGNLinearOperator)
hessian_product = partial(product, operator=HessianLinearOperator)
clipped_cnn = clipped
