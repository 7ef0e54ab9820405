"""What `tapelab.graphs.operations` says of operations, tried out: each fact that is asked for, by a property."""

import contextlib
import functools
import inspect
import operator

from tapelab.derivatives import value_and_gradient
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.rules import RULES
from tapelab.graphs.operations import KERNELS, OPERATIONS, WRONG, known, with_fact
from tapelab.runtime import tf

import numpy as np
import pytest

COUNT = 4  # examples


def numbers(*shape, phase=0.0):
    """Numbers from 0.1 to 0.9 in no particular relation, the same in every run."""
    return 0.5 + 0.4 * np.cos(1.0 + phase + 1.7 * np.arange(np.prod(shape))).reshape(shape)


X, Y = numbers(COUNT, 3), numbers(COUNT, 3, phase=0.4)
WHOLE = np.arange(COUNT * 3, dtype=np.int32).reshape(COUNT, 3)
TRUE = X > 0.5
SQUARE, OTHER = numbers(COUNT, 3, 3), numbers(COUNT, 3, 3, phase=0.4)
IMAGES, VOLUMES = numbers(COUNT, 4, 4, 2), numbers(COUNT, 4, 4, 4, 2)
ROWS, SEGMENTS = [[0], [2], [3]], [0, 0, 1, 2]
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
BITS = {"x": WHOLE, "y": WHOLE.T.reshape(WHOLE.shape)}
DRAWN = {"shape": [9], "dtype": tf.float64}


def convolution(kind, images, filters, channels, version=""):
    window = {"strides": [1] * images.ndim, "padding": "SAME"}
    above = {"out_backprop": numbers(*images.shape[:-1], channels), **window}
    return {
        kind: {"input": images, "filter": filters, **window},
        f"{kind}BackpropFilter{version}": {"input": images, "filter_sizes": filters.shape, **above},
        f"{kind}BackpropInput{version}": {"input_sizes": images.shape, "filter": filters, **above},
    }


# The arguments of operations, numbers as arrays; of others X and Y are enough.
BY_HAND = {
    "FakeQuantWithMinMaxArgs": {"inputs": np.float32(X)},
    "FakeQuantWithMinMaxVars": {"inputs": np.float32(X), "min": np.float32(-6), "max": np.float32(6)},
    "FakeQuantWithMinMaxVarsPerChannel": {
        "inputs": np.float32(X), "min": np.float32([-6, -5, -4]), "max": np.float32([6, 5, 4])
    },
    "BiasAdd": {"value": X, "bias": numbers(3)},
    "BitwiseAnd": BITS,
    "BitwiseOr": BITS,
    "BitwiseXor": BITS,
    "AddN": {"inputs": [X, Y, X * Y]},
    "Cast": {"x": X, "DstT": tf.float64},
    "CheckNumerics": {"tensor": X, "message": ""},
    "CheckNumericsV2": {"tensor": X, "message": ""},
    "ClipByValue": {"t": X, "clip_value_min": np.full_like(X, 0.3), "clip_value_max": np.full_like(X, 0.7)},
    "EnsureShape": {"input": X, "shape": X.shape},
    "IdentityN": {"input": [X, Y]},
    "LogicalAnd": {"x": TRUE, "y": ~TRUE},
    "LogicalNot": {"x": TRUE},
    "LogicalOr": {"x": TRUE, "y": ~TRUE},
    "Select": {"condition": TRUE, "x": X, "y": Y},
    "SelectV2": {"condition": TRUE, "t": X, "e": Y},
    "BatchToSpace": {"input": IMAGES, "crops": [[0, 0], [0, 0]], "block_size": 2},
    "BatchToSpaceND": {"input": IMAGES, "block_shape": [2], "crops": [[0, 1]]},
    "BroadcastTo": {"input": X, "shape": [2, COUNT, 3]},
    "ConcatV2": {"values": [X, Y], "axis": 1},
    "DepthToSpace": {"input": numbers(COUNT, 2, 2, 4), "block_size": 2},
    "DiagPart": {"input": numbers(3, 3)},
    "ExpandDims": {"input": X, "axis": 1},
    "Pack": {"values": [X, Y], "axis": 1},
    "Reshape": {"tensor": X, "shape": [2, 6]},
    "ReverseSequence": {"input": X, "seq_lengths": [1, 2, 3, 3], "seq_dim": 1},
    "ReverseV2": {"tensor": X, "axis": [1]},
    "Roll": {"input": X, "shift": [1], "axis": [1]},
    "Slice": {"input": X, "begin": [0, 1], "size": [4, 2]},
    "SpaceToDepth": {"input": IMAGES, "block_size": 2},
    "Split": {"axis": 1, "value": X, "num_split": 3},
    "SplitV": {"value": X, "size_splits": [1, 2], "axis": 1, "num_split": 2},
    "Squeeze": {"input": X[:, None]},
    "StridedSlice": {"input": X, "begin": [0, 2], "end": [4, 0], "strides": [1, -1]},
    "Tile": {"input": X, "multiples": [1, 2]},
    "Transpose": {"x": X, "perm": [1, 0]},
    "Unpack": {"value": X, "num": 3, "axis": 1},
    "Gather": {"params": X, "indices": [2, 0, 2]},
    "GatherNd": {"params": X, "indices": [[2, 1], [0, 0]]},
    "GatherV2": {"params": X, "indices": [2, 0, 2], "axis": 1},
    "SegmentMax": {"data": X, "segment_ids": SEGMENTS},
    "SegmentMin": {"data": X, "segment_ids": SEGMENTS},
    "UnsortedSegmentMax": {"data": X, "segment_ids": SEGMENTS, "num_segments": 3},
    "UnsortedSegmentMin": {"data": X, "segment_ids": SEGMENTS, "num_segments": 3},
    "ArgMax": {"input": X, "dimension": 1},
    "ArgMin": {"input": X, "dimension": 1},
    **{kind: {"input": TRUE, "axis": 1} for kind in ("All", "Any")},
    **{kind: {"input": X, "axis": 1} for kind in ("Max", "Mean", "Min", "Prod", "Sum")},
    "Cumprod": {"x": X, "axis": 1},
    "SoftmaxCrossEntropyWithLogits": {"features": X, "labels": Y},
    "SparseSoftmaxCrossEntropyWithLogits": {"features": X, "labels": [0, 2, 1, 1]},
    "TopKV2": {"input": X, "k": 2},
    "BatchMatMul": {"x": SQUARE, "y": OTHER},
    "BatchMatMulV2": {"x": SQUARE, "y": OTHER},
    "BatchMatMulV3": {"x": SQUARE, "y": OTHER, "Tout": tf.float64},
    "Einsum": {"inputs": [X, SQUARE], "equation": "ij,ijk->ik"},
    "MatMul": {"a": X, "b": SQUARE[0]},
    "SparseTensorDenseMatMul": {
        "a_indices": np.array([[0, 1], [2, 2]]), "a_values": numbers(2), "a_shape": np.array([3, 3]), "b": SQUARE[0]
    },
    **convolution("Conv2D", IMAGES, numbers(2, 2, 2, 3), 3),
    **convolution("Conv3D", VOLUMES, numbers(2, 2, 2, 2, 3), 3, "V2"),
    **convolution("DepthwiseConv2dNative", IMAGES, numbers(2, 2, 2, 3), 6),
    "MaxPool": {"input": IMAGES, **POOL},
    "MaxPoolV2": {"input": IMAGES, **POOL},
    "MaxPool3D": {
        "input": np.float32(VOLUMES), "ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"
    },
    "ShapeN": {"input": [X, Y]},
    "Multinomial": {"logits": X, "num_samples": 50},
    "RandomGamma": {"shape": [9], "alpha": X},
    "RandomPoissonV2": {"shape": [99], "rate": X},
    "RandomShuffle": {"value": numbers(50)},
    "RandomUniformInt": {"shape": [9], "minval": 0, "maxval": 1000},
    "RandomStandardNormal": DRAWN,
    "RandomUniform": DRAWN,
    "TruncatedNormal": DRAWN,
}  # fmt: skip
SCATTERING = {"tensor": X, "indices": ROWS, "updates": Y[:3]}


@functools.cache
def arguments(kind):
    if kind in BY_HAND:
        return BY_HAND[kind]
    parameters = inspect.signature(getattr(tf.raw_ops, kind)).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    return dict(zip(names, (X, Y, X * Y), strict=False))


def called(kind, given):
    found = getattr(tf.raw_ops, kind)(**{name: _tensors(value) for name, value in given.items()})
    return [part for part in tf.nest.flatten(found) if tf.is_tensor(part)]


def _tensors(value):
    if isinstance(value, list):
        return [_tensors(part) if isinstance(part, np.ndarray) else part for part in value]
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def results(kind, given=None):
    return [part.numpy() for part in called(kind, arguments(kind) if given is None else given)]


def _is_value(value):
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def values(kind):
    """What carries numbers: pairs of an argument's name and, of one in a list, its place there."""
    found = []
    for name, value in arguments(kind).items():
        if _is_value(value):
            found.append((name, None))
        elif isinstance(value, list):
            found += [(name, place) for place, part in enumerate(value) if _is_value(part)]
    return found


def taken(kind, where):
    name, place = where
    return arguments(kind)[name] if place is None else arguments(kind)[name][place]


def replaced(kind, new):
    """The arguments with other values: a dictionary like {("x", None): array}."""
    given = {name: list(value) if isinstance(value, list) else value for name, value in arguments(kind).items()}
    for (name, place), value in new.items():
        if place is None:
            given[name] = value
        else:
            given[name][place] = value
    return given


VARIABLES = with_fact("reads")


def kinds(names):
    return pytest.mark.parametrize("kind", sorted(set(names) - VARIABLES))


def same(found, expected):
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_each_row_of_what_is_wrong_can_be_looked_for():
    rows = [row for rows in WRONG.values() for row in rows]
    assert {row.rule for row in rows} == set(RULES)
    assert {row.needs.upper() for row in rows} <= set(Needs.__members__)
    assert {row.on for row in KERNELS} == {"xla", "graph", "noted"}


def test_questions_that_no_row_answers():
    assert known("NoSuchOperation").facts == set()
    with pytest.raises(ValueError, match="there is no fact green"):
        with_fact("green")


MAPPED = {"Roll": lambda x: tf.roll(x, 1, -1), "PadV2": lambda x: tf.pad(x, [[1, 1]], constant_values=3.0)}


@kinds(with_fact("mapped wrongly"))
def test_a_map_over_it_is_no_loop(kind):
    """The row goes when TensorFlow computes it."""
    assert not np.allclose(tf.vectorized_map(MAPPED[kind], X), tf.map_fn(MAPPED[kind], tf.constant(X)))


WITHOUT_A_KERNEL = {
    "EuclideanNorm": tf.math.reduce_euclidean_norm,
    "InvGrad": lambda x: tf.raw_ops.InvGrad(y=x, dy=x),
}


@kinds(with_fact("not compiled"))
def test_what_xla_has_no_kernel_for_is_left_to_a_graph(kind):
    operation = WITHOUT_A_KERNEL.get(kind, lambda x: getattr(tf.raw_ops, kind)(x=x))
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(operation(x))
    _, gradient = value_and_gradient(lambda x: tf.reduce_sum(operation(x)))(x)
    np.testing.assert_allclose(gradient, tape.gradient(y, x), rtol=1e-9)
    with pytest.raises(RuntimeError, match="XLA cannot compile"):
        value_and_gradient(lambda x: tf.reduce_sum(operation(x)), compile="xla")(x)


@kinds(with_fact("multiplies"))
def test_what_multiplies_is_linear_in_each_of_its_inputs(kind):
    for where in values(kind):
        first = taken(kind, where)
        second = np.flip(first) * 0.7
        given = ({where: value} for value in (first, second, (2 * first - 3 * second).astype(first.dtype)))
        for a, b, both in zip(*(results(kind, replaced(kind, new)) for new in given), strict=True):
            np.testing.assert_allclose(both, 2 * a - 3 * b, rtol=1e-9, atol=1e-9)


@kinds(with_fact("flat"))
def test_flat_means_without_a_derivative(kind):
    tensors = [tf.constant(taken(kind, where)) for where in values(kind)]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        outputs = called(kind, replaced(kind, dict(zip(values(kind), tensors, strict=True))))
        outputs = [output for output in outputs if output.dtype.is_floating]
    gradients = tape.gradient(outputs, tensors) if outputs else []
    assert all(gradient is None or not np.any(gradient) for gradient in gradients)


@kinds(kind for kind, row in OPERATIONS.items() if row.transposed_by)
def test_what_transposes_an_input_is_an_attribute(kind):
    for (name, _), attribute in zip(values(kind), OPERATIONS[kind].transposed_by, strict=True):
        turned = arguments(kind) | {name: np.swapaxes(arguments(kind)[name], -1, -2), attribute: True}
        np.testing.assert_allclose(results(kind, turned)[0], results(kind)[0], rtol=1e-12)


@kinds(with_fact("passes"))
def test_what_passes_keeps_elements_and_order(kind):
    assert np.array_equal(results(kind)[0].ravel(), taken(kind, values(kind)[0]).ravel())


@kinds(with_fact("adds"))
def test_what_adds_is_a_sum(kind):
    parts = [taken(kind, where) for where in values(kind)]
    np.testing.assert_allclose(results(kind)[0], functools.reduce(np.add, parts), rtol=1e-12)


@kinds(with_fact("parts", "chooses") - {"TensorScatterMax", "TensorScatterMin"})
def test_parts_and_what_is_chosen_are_elements_of_the_input(kind):
    (where,) = values(kind)
    assert all(np.isin(part, taken(kind, where)).all() for part in results(kind) if _is_value(part))


@pytest.mark.parametrize(("kind", "choose"), [("TensorScatterMax", np.maximum), ("TensorScatterMin", np.minimum)])
def test_what_scatters_a_choice_takes_one_or_the_other(kind, choose):
    rows = np.ravel(ROWS)
    np.testing.assert_array_equal(results(kind, SCATTERING)[0][rows], choose(X[rows], Y[:3]))


@kinds(with_fact("selects"))
def test_what_selects_takes_one_or_the_other(kind):
    condition, first, second = arguments(kind).values()
    assert np.array_equal(results(kind)[0], np.where(condition, first, second))


def of_one_number(kind, x):
    """The value and the derivative of a function of one number."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        (found,) = called(kind, {next(iter(arguments(kind))): x})
    return found.numpy(), tape.gradient(found, x).numpy()


@kinds(with_fact("saturates"))
def test_what_saturates_has_a_small_derivative_far_out(kind):
    slopes = np.abs(of_one_number(kind, tf.constant([-60.0, 60.0], tf.float64))[1])
    near = np.abs(of_one_number(kind, tf.constant([-0.5, 0.5], tf.float64))[1])
    assert slopes.min() < 1e-3 < near.min()


@kinds(with_fact("underflows"))
def test_what_underflows_makes_zeros_of_small_numbers(kind):
    """And it makes none of other numbers."""
    for number, is_lost in ((-200.0 if kind == "Exp" else 1e-30, True), (0.5, False)):
        small = {name: np.full(np.shape(arguments(kind)[name]), number, "float32") for name, _ in values(kind)}
        rest = {"Cast": {"DstT": tf.float16}, "Pow": {"y": np.float32(3.0)}}.get(kind, {})
        assert (np.array(results(kind, arguments(kind) | small | rest)[0]) == 0).any() == is_lost


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "@": operator.matmul}
SIGNS["**"] = operator.pow
# Of several operations with one name in Python, the one that Python makes now.
MADE_NOW = {"Add": "AddV2", "Select": "SelectV2", "BatchMatMul": "BatchMatMulV2", "BatchMatMulV3": "BatchMatMulV2"}


@pytest.mark.parametrize(("kind", "word"), [(kind, word) for kind, row in OPERATIONS.items() for word in row.words])
def test_words_are_what_makes_an_operation(kind, word):
    function = SIGNS.get(word) or next(getattr(one, word) for one in (tf, tf.math, tf.linalg) if hasattr(one, word))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 2, 2) if kind.startswith("Batch") else (2, 2))
        for given in ((x,), (x, x), (x > 0, x, x)):
            with contextlib.suppress(TypeError, ValueError, NotImplementedError):
                function(*given)
    assert MADE_NOW.get(kind, kind) in {one.type for one in graph.get_operations()}


@kinds(with_fact("keeps zeros") | with_fact("passes") - with_fact("flat"))
def test_what_keeps_zeros_and_signs(kind):
    for where in values(kind):
        zero = replaced(kind, {where: np.zeros_like(taken(kind, where))})
        assert any((result == 0).any() for result in results(kind, zero))
    assert set(np.sign(results(kind)[0]).ravel()) in ({1}, {-1})


@kinds(with_fact("keeps positive"))
def test_what_keeps_positive_makes_no_zero(kind):
    assert all(taken(kind, where).min() > 0 for where in values(kind))
    assert all(result.min() > 0 for result in results(kind) if _is_value(result))


@kinds(with_fact("positive"))
def test_what_is_positive_has_no_other_values(kind):
    x = np.array([[-3.0, -1e-2, 0.0, 1e-2, 3.0]])
    assert results(kind, {next(iter(arguments(kind))): x})[0].min() > 0


@kinds(with_fact("crosses", "one at its bend", "positive") - {"Softmax"})
def test_what_crosses_zero_there_and_what_bends_at_one(kind):
    """And what is positive does neither, but for the hyperbolic cosine."""
    below, at, above = of_one_number(kind, tf.constant([-1e-2, 0.0, 1e-2], tf.float64))[0]
    assert ((below < 0 == at) and at < above) == OPERATIONS[kind].has("crosses")
    bends = at == 1 and max(abs(above - at), abs(below - at)) < 1e-3
    assert bends == OPERATIONS[kind].has("one at its bend")


@kinds(kind for kind, row in OPERATIONS.items() if row.mirror)
def test_a_mirror_does_to_negated_values_what_the_operation_does_to_values(kind):
    mirror = OPERATIONS[kind].mirror
    negated = replaced(kind, {where: -taken(kind, where) for where in values(kind)})
    assert same(results(kind), [-result for result in results(mirror, negated)])


@kinds(with_fact("cuts"))
def test_beyond_a_bound_the_derivative_is_zero(kind):
    name, first = next(iter(arguments(kind).items()))
    x = tf.constant(np.where(np.arange(first.size).reshape(first.shape) % 2, 40, -40).astype(first.dtype))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = called(kind, arguments(kind) | {name: x})[0]
    assert 0 in tape.gradient(y, x).numpy()


@kinds(with_fact("unit"))
def test_units_are_activations_of_keras(kind):
    x = np.float32([-2.0, -0.3, 0.4, 7.0])
    activation = tf.keras.activations.get({"LeakyRelu": "leaky_relu"}.get(kind, kind.lower()))
    np.testing.assert_allclose(results(kind, {next(iter(arguments(kind))): x})[0], activation(x), rtol=1e-5)


@kinds(with_fact("cross entropy"))
def test_cross_entropies_are_losses_of_logits(kind):
    labels = arguments(kind)["labels"]
    labels = np.eye(3)[labels] if isinstance(labels, list) else labels
    expected = -(labels * tf.nn.log_softmax(arguments(kind)["features"])).numpy().sum(1)
    np.testing.assert_allclose(results(kind)[0], expected, rtol=1e-6)


@kinds(with_fact("valueless"))
def test_valueless_means_that_values_do_not_matter(kind):
    changed = {where: 0.83 * taken(kind, where) + 0.04 for where in values(kind)}
    assert same(results(kind), results(kind, replaced(kind, changed)))


@kinds(with_fact("random"))
def test_random_means_random(kind):
    assert not same(results(kind), results(kind))


@pytest.mark.parametrize("kind", sorted(VARIABLES))
def test_what_reads_takes_a_variable(kind):
    variable = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    more = {"ReadVariableOp": {"dtype": tf.float32}, "ResourceGather": {"indices": [1], "dtype": tf.float32}}
    more["ResourceGatherNd"] = {"indices": [[1, 0]], "dtype": tf.float32}
    name = "input" if kind == "VariableShape" else "resource"
    found = getattr(tf.raw_ops, kind)(**{name: variable.handle}, **more.get(kind, {}))
    expected = {"ReadVariableOp": variable, "ResourceGather": [[3.0, 4.0]], "ResourceGatherNd": [3.0]}
    np.testing.assert_array_equal(found, expected.get(kind, [2, 2] if kind == "VariableShape" else True))
