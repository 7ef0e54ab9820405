"""The rules: what each operation does to channels.

A rule takes the interpreter, the operation, its inputs with their channels, and their values; it returns the outputs.
At least one input has channels where a rule is asked.
"""

from collections.abc import Callable, Sequence

from tapelab.derivatives.operators.taylor_mode import composed, elementwise
from tapelab.derivatives.operators.taylor_mode.algebras import Algebra, Derivatives, bilinear_of, combination, unary_of
from tapelab.derivatives.operators.taylor_mode.bilinear import Einsum, Lanewise, MatMul, Product
from tapelab.derivatives.operators.taylor_mode.by_derivatives import along, by_derivatives
from tapelab.derivatives.operators.taylor_mode.values import Channel, NoRule, Val, full, over_lanes, padded, times
from tapelab.graphs.operations import linear_in, of_family, with_fact
from tapelab.graphs.operations.operation import EACH, ELEMENTWISE, JOINTLY
from tapelab.graphs.program import reissue
from tapelab.process.tensorflow import Tensors, tf

Rule = Callable[[Algebra, tf.Operation, Sequence[Val], Tensors], list[Val]]


def _require_real(v: tf.Tensor) -> None:
    if v.dtype.is_complex:
        raise NoRule("of complex numbers, whose gradients TensorFlow conjugates")


def _table_rule(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    y = reissue(op, values)[0]
    return [unary_of(algebra, vals[0], y, elementwise.TABLES[op.type](values[0], y))]


def _by_gradient(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    _require_real(values[0])
    y, found = elementwise.by_tapes(lambda v: reissue(op, [v])[0], values[0], algebra.order)
    derivatives: Derivatives = lambda order: found[order - 1]  # noqa: E731
    return [algebra.unary(vals[0], y, derivatives)]


def _piecewise(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    _require_real(values[0])
    y, (slope,) = elementwise.by_tapes(lambda v: reissue(op, [v])[0], values[0], 1)
    return [Val(y, [times(slope, c) for c in vals[0].ch])]


def _sum_rule(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    signs = [1, -1] if op.type == "Sub" else [1] * len(vals)
    return [combination(algebra, vals, signs, reissue(op, values)[0])]


def _same(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    return [Val(y, v.ch) for y, v in zip(reissue(op, values), vals, strict=True)]


def _negative(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    return [Val(reissue(op, values)[0], [None if c is None else -c for c in vals[0].ch])]


def _bias(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    x, bias = vals
    y = reissue(op, values)[0]
    if bias.ch:
        rank = x.v.shape.rank
        last = op.get_attr("data_format") == b"NHWC" or rank == 2
        shape = [1] * rank
        shape[-1 if last else 1] = bias.v.shape[0]
        channels = [None if c is None else tf.reshape(full(c, bias.v), [c.shape[0], *shape]) for c in bias.ch]
        bias = Val(tf.reshape(bias.v, shape), channels)
    return [combination(algebra, [x, bias], [1, 1], y)]


def _linear(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    ys = reissue(op, values)
    moving = [i for i, v in enumerate(vals) if v.ch]
    zeros = [tf.zeros_like(v) if v.dtype.is_floating or v.dtype.is_complex else v for v in values]
    if op.type in ("Reshape", "ExpandDims", "Squeeze") and ys[0].shape.is_fully_defined():
        shape = ys[0].shape
        own = [None if c is None else tf.reshape(full(c, values[0]), [c.shape[0], *shape]) for c in vals[0].ch]
        return [Val(ys[0], own)]
    out: list[list[Channel]] = [[] for _ in ys]
    for k, count in enumerate(algebra.lanes):
        channels = [full(vals[i].ch[k], values[i]) for i in moving]
        if all(c is None for c in channels):
            results = [None] * len(ys)
        else:
            count = next(c.shape[0] for c in channels if c is not None)
            pairs = zip(channels, moving, strict=True)
            channels = [tf.zeros([count, *values[i].shape], values[i].dtype) if c is None else c for c, i in pairs]

            def lane(parts: Tensors) -> list[tf.Tensor]:
                inputs = list(zeros)
                for i, part in zip(moving, parts, strict=True):
                    inputs[i] = part
                return reissue(op, inputs)

            results = over_lanes(lane, channels)
        for channel, result in zip(out, results, strict=True):
            channel.append(result)
    return [Val(y, channels) for y, channels in zip(ys, out, strict=True)]


def _of_images(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Linear, image by image: the lanes are more images."""
    y = reissue(op, values)[0]

    def images(c: tf.Tensor) -> tf.Tensor:
        return reissue(op, [tf.reshape(full(c, values[0]), [-1, *values[0].shape[1:]]), values[1]])[0]

    return [Val(y, [None if c is None else tf.reshape(images(c), [c.shape[0], *y.shape]) for c in vals[0].ch])]


def _product(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    y = reissue(op, values)[0]
    a, b = vals
    if op.inputs[0] is op.inputs[1]:
        return [unary_of(algebra, a, y, elementwise.power(2)(a.v, y))]
    return [bilinear_of(algebra, Product(a.v, b.v), a, b, y)]


def _matmul(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    left, right = vals
    return [bilinear_of(algebra, MatMul(op, *values), left, right, reissue(op, values)[0])]


def _einsum(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    if len(vals) == 1:
        return _linear(algebra, op, vals, values)
    if len(vals) > 2:
        raise NoRule("more than two factors")
    left, right = vals
    b = Lanewise(lambda u, w: reissue(op, [u, w])[0]) if b"." in op.get_attr("equation") else Einsum(op)
    return [bilinear_of(algebra, b, left, right, reissue(op, values)[0])]


def _two_factors(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Linear in each of the two inputs that carry numbers; sizes, strides and places stay as they are."""
    factors = [i for i, v in enumerate(values) if v.dtype.is_floating or v.dtype.is_complex]

    def run(u: tf.Tensor, w: tf.Tensor) -> tf.Tensor:
        inputs = list(values)
        inputs[factors[0]], inputs[factors[1]] = u, w
        return reissue(op, inputs)[0]

    left, right = (vals[i] for i in factors)
    return [bilinear_of(algebra, Lanewise(run), left, right, reissue(op, values)[0])]


def _chosen(algebra: Algebra, condition: tf.Tensor, a: Val, b: Val, y: tf.Tensor) -> Val:
    """Each channel from one of two values, by a condition on the elements."""
    out: list[Channel] = []
    for ca, cb in zip(a.channels(len(algebra.lanes)), b.channels(len(algebra.lanes)), strict=True):
        if ca is None and cb is None:
            out.append(None)
            continue
        zero = tf.zeros([1] * (1 + y.shape.rank), y.dtype)
        parts = [zero if c is None else padded(c, y.shape.rank) for c in (ca, cb)]
        out.append(tf.where(condition, *parts))
    return Val(y, out)


def _select(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    condition, a, b = vals
    y = reissue(op, values)[0]
    mask = condition.v
    if op.type == "Select" and mask.shape.rank < y.shape.rank:  # a vector that chooses rows
        mask = tf.reshape(mask, [*mask.shape, *[1] * (y.shape.rank - mask.shape.rank)])
    return [_chosen(algebra, mask, a, b, y)]


def _larger(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    a, b = vals
    first = a.v >= b.v if op.type == "Maximum" else a.v <= b.v
    return [_chosen(algebra, first, a, b, reissue(op, values)[0])]


def _clip(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    x, low, high = vals
    y = reissue(op, values)[0]
    if low.ch or high.ch:
        raise NoRule("a bound that depends on the sources")
    zero = Val(tf.zeros_like(y))
    inside = tf.logical_and(values[0] >= values[1], values[0] <= values[2])
    return [_chosen(algebra, inside, x, zero, y)]


def _chosen_by_value(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Largest ones, of an axis or a window: linear in pieces, so that every channel goes alike."""
    x = values[0]

    def lane(parts: Tensors) -> list[tf.Tensor]:
        return along(lambda tensors: reissue(op, [*tensors, *values[1:]]), [x], [parts])[0]

    out = [None if c is None else over_lanes(lane, [full(c, x)])[0] for c in vals[0].ch]
    return [Val(reissue(op, values)[0], out)]


def _top(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    y, indices = reissue(op, values)
    out = []
    for c in vals[0].ch:
        c = full(c, values[0])
        at = None if c is None else tf.broadcast_to(indices[None], [c.shape[0], *indices.shape])
        out.append(None if c is None else tf.gather(c, at, axis=-1, batch_dims=y.shape.rank))
    return [Val(y, out), Val(indices)]


def _batch_norm(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """In inference: a scale and a shift for each channel of the image."""
    x, *statistics = vals
    if op.get_attr("is_training") or any(v.ch for v in statistics):
        raise NoRule("in training, or with statistics that depend on the sources")
    y, *rest = reissue(op, values)
    factor = values[1] * tf.math.rsqrt(values[4] + op.get_attr("epsilon"))
    if op.get_attr("data_format") == b"NCHW":
        factor = tf.reshape(factor, [-1, 1, 1])
    factor = tf.cast(factor, y.dtype)
    return [Val(y, [times(factor, c) for c in x.ch]), *[Val(part) for part in rest]]


RULES: dict[str, Rule] = {
    # Of several that fit, the last: rules of one operation's own come after those for what is said of many.
    # Channels go through what is linear one by one. Inputs that do not depend on the sources count as zero.
    **dict.fromkeys(linear_in(JOINTLY) - with_fact("reads"), _linear),
    # tf.vectorized_map does not take lanes of products with a sparse matrix; `by_derivatives` needs none.
    **dict.fromkeys(linear_in(EACH) - {"SparseTensorDenseMatMul"}, _two_factors),
    **dict.fromkeys(elementwise.BY_GRADIENT, _by_gradient),
    **dict.fromkeys(elementwise.PIECEWISE, _piecewise),
    **dict.fromkeys(elementwise.TABLES, _table_rule),
    **dict.fromkeys(with_fact("adds") | {"Sub"}, _sum_rule),
    **dict.fromkeys(with_fact("passes") & of_family(ELEMENTWISE) - with_fact("reads") - {"Cast"}, _same),
    **dict.fromkeys(["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul"], _matmul),
    # Their gradients, and those of their gradients, are ours (`tapelab.derivatives.wrong.cures.products`).
    **dict.fromkeys(["Cumprod", "Prod", "UnsortedSegmentProd"], by_derivatives),
    **dict.fromkeys(["Div", "DivNoNan", "RealDiv"], composed.quotient),
    **dict.fromkeys(["Inv", "Reciprocal"], composed.fixed_power(-1)),
    **dict.fromkeys(["Log", "Log1p"], composed.logarithm),
    **dict.fromkeys(["LogSoftmax", "Softmax"], composed.softmax),
    **dict.fromkeys(["Max", "MaxPool", "MaxPool3D", "Min"], _chosen_by_value),
    **dict.fromkeys(["Maximum", "Minimum"], _larger),
    **dict.fromkeys(["MulNoNan", "Xdivy", "Xlog1py", "Xlogy"], composed.dominated),
    **dict.fromkeys(["Select", "SelectV2"], _select),
    "BiasAdd": _bias,
    "ResizeBicubic": _of_images,
    "ClipByValue": _clip,
    "Einsum": _einsum,
    "EuclideanNorm": composed.euclidean_norm,
    "FusedBatchNormV3": _batch_norm,
    "Mul": _product,
    "Neg": _negative,
    "Pow": composed.power_rule,
    "Rsqrt": composed.fixed_power(-0.5),
    "Sqrt": composed.fixed_power(0.5),
    "SquaredDifference": composed.squared_difference,
    "TopKV2": _top,
}
