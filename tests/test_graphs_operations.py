"""What the rows of `tapelab.graphs.operations` say, tried out: one call for each, and each fact by a property."""

import contextlib
import functools
import operator

from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.rules import RULES
from tapelab.graphs.operations import KERNELS, OPERATIONS, WRONG, known, linear_in, of_family, operation, with_fact
from tapelab.graphs.operations.operation import (
    BLOCK,
    EACH,
    ELEMENTWISE,
    FACTS,
    FIRST,
    JOINTLY,
    LAST,
    LOOKUP,
    MOVING,
    RANDOM,
    REDUCING,
    SCANNING,
    SCATTERING,
    SHAPE,
    STENCIL,
)
from tapelab.runtime import tf

import numpy as np
import pytest
from operation_calls import CALLS, EXAMPLES, INDEXED, SQUARE, WITHOUT, indexed

CHANGED = 2  # the example that is another one


def called(kind, arguments):
    found = getattr(tf.raw_ops, kind)(**{name: _tensors(value) for name, value in arguments.items()})
    return [part for part in tf.nest.flatten(found) if tf.is_tensor(part)]


def _tensors(value):
    if isinstance(value, list):
        return [_tensors(part) if isinstance(part, np.ndarray) else part for part in value]
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def results(kind, arguments):
    return [part.numpy() for part in called(kind, arguments)]


def _is_value(value):
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"


def values(arguments):
    """What carries numbers: pairs of an argument's name and, of one in a list, its place there."""
    found = []
    for name, value in arguments.items():
        if _is_value(value):
            found.append((name, None))
        elif isinstance(value, list):
            found += [(name, place) for place, part in enumerate(value) if _is_value(part)]
    return found


def taken(arguments, where):
    name, place = where
    return arguments[name] if place is None else arguments[name][place]


def replaced(arguments, new):
    """The arguments with other values: a dictionary like {("x", None): array}."""
    arguments = {name: list(value) if isinstance(value, list) else value for name, value in arguments.items()}
    for (name, place), value in new.items():
        if place is None:
            arguments[name] = value
        else:
            arguments[name][place] = value
    return arguments


def other(array, at=slice(None)):
    """An array that is another one at some places."""
    array = array.copy()
    array[at] = 0.83 * array[at] + 0.04
    return array


def rows(names):
    return pytest.mark.parametrize("kind", sorted(set(names) & set(CALLS)))


def same(found, expected):
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(found, expected, strict=True))


def test_each_row_has_a_call_or_is_known_to_have_none():
    assert set(OPERATIONS) >= WITHOUT
    assert len(WITHOUT) <= 29, "a new row needs a call in operation_calls.py"
    assert set(OPERATIONS) == set(CALLS) | WITHOUT


def test_a_row_says_what_rows_can_say():
    for kind, row in OPERATIONS.items():
        assert row.family in operation.FAMILIES, kind
        assert row.linear in ("", JOINTLY, EACH, FIRST, LAST), kind
        assert set(row.facts.split(", ")) - {""} <= set(FACTS), kind
        assert bool(row.axes) == (row.family == BLOCK), kind
        assert not row.examples or row.family == STENCIL, kind


def test_each_row_of_what_is_wrong_can_be_looked_for():
    rows = [row for rows in WRONG.values() for row in rows]
    assert {row.rule for row in rows} == set(RULES)
    assert {row.needs.upper() for row in rows} <= set(Needs.__members__)
    assert {row.on for row in KERNELS} == {"xla", "graph", "noted"}


def test_questions_that_no_row_answers():
    assert known("NoSuchOperation").family == ""
    with pytest.raises(ValueError, match="no row can say 'green'"):
        with_fact("green")


def _examples_of(kind):
    row, arguments = OPERATIONS[kind], CALLS[kind]
    if row.family == STENCIL:
        return [(name, None) for name in row.examples]
    return [where for where in values(arguments) if np.shape(taken(arguments, where))[:1] == (EXAMPLES,)]


@rows(of_family(ELEMENTWISE, REDUCING, SCANNING, BLOCK, STENCIL) - {"L2Loss"})
def test_examples_stay_apart(kind):
    arguments, others = CALLS[kind], np.arange(EXAMPLES) != CHANGED
    batched = _examples_of(kind)
    if OPERATIONS[kind].family == STENCIL and not batched:
        return
    changed = replaced(arguments, {where: other(taken(arguments, where), CHANGED) for where in batched})
    # What is no row for each example is a note for the backward pass, of a shape that depends on the kernel.
    both = zip(results(kind, arguments), results(kind, changed), strict=True)
    pairs = [pair for pair in both if np.shape(pair[0])[:1] == (EXAMPLES,)]
    assert pairs
    assert same([a[others] for a, _ in pairs], [b[others] for _, b in pairs])
    if batched and not OPERATIONS[kind].has("flat"):
        assert not same(*zip(*pairs, strict=True)), "the change shows nowhere: this tests nothing"


@rows(of_family(ELEMENTWISE) - with_fact("valueless"))
def test_elements_stay_apart(kind):
    arguments, at = CALLS[kind], (CHANGED, 1)
    changed = {where: other(taken(arguments, where), at) for where in _examples_of(kind)}
    for before, after in zip(results(kind, arguments), results(kind, replaced(arguments, changed)), strict=True):
        elsewhere = np.ones(before.shape, bool)
        elsewhere[at] = False
        assert np.array_equal(before[elsewhere], after[elsewhere])


@rows(of_family(SCANNING))
def test_a_scan_sees_what_comes_before(kind):
    x = CALLS[kind]["x"]
    before, after = results(kind, CALLS[kind])[0], results(kind, CALLS[kind] | {"x": other(x, (CHANGED, 1))})[0]
    assert np.array_equal(before[:, 0], after[:, 0])
    assert (before[CHANGED, 1:] != after[CHANGED, 1:]).all()


@rows(of_family(REDUCING))
def test_a_reduction_sees_all_of_its_axes(kind):
    (where,) = values(CALLS[kind]) or [("input", None)]
    base = np.full((EXAMPLES, 3), kind == "All") if kind in ("All", "Any") else taken(CALLS[kind], where)
    before = results(kind, replaced(CALLS[kind], {where: base}))

    def sees(column):
        changed = [base.copy() for _ in range(2)]
        for array, extreme in zip(changed, (0, 1), strict=True):
            array[CHANGED, column] = extreme
        return any(not same(results(kind, replaced(CALLS[kind], {where: array})), before) for array in changed)

    assert all(map(sees, range(3)))


@rows(of_family(BLOCK))
def test_a_block_is_of_so_many_axes(kind):
    """Elements of one block depend on each other; with one axis less they would not."""
    (where, *_), axes = values(CALLS[kind]), OPERATIONS[kind].axes
    x = taken(CALLS[kind], where)
    assert x.ndim == axes + 1
    first, last = (CHANGED, *[0] * axes), (CHANGED, *[-1] * axes)
    before = results(kind, CALLS[kind])
    after = [results(kind, replaced(CALLS[kind], {where: other(x, at)})) for at in (first, last)]
    assert any(not same(before, one) for one in after)


@rows(kind for kind in of_family(BLOCK) & set(CALLS) if np.shape(CALLS[kind].get("input")) == SQUARE.shape)
def test_what_is_spectral_gives_the_same_values_however_a_matrix_is_turned(kind):
    turn = np.linalg.qr(SQUARE)[0]
    turned = turn @ np.diag([1.0, 2.0, 3.0]) @ turn.transpose(0, 2, 1)
    found = results(kind, CALLS[kind] | {"input": turned.astype(CALLS[kind]["input"].dtype)})[0]
    spectrum = found.shape == (EXAMPLES, 3) and np.allclose(np.sort(found.real), [1, 2, 3])
    assert spectrum == OPERATIONS[kind].has("spectral")


def _numbered(arguments, start):
    """Values that are all different: where an element comes from can be read from it."""
    new = {}
    for where in values(arguments):
        shape = np.shape(taken(arguments, where))
        new[where] = np.arange(start, start + np.prod(shape, dtype=int)).reshape(shape).astype(np.float64)
        start += np.prod(shape, dtype=int)
    return replaced(arguments, new)


@rows(of_family(MOVING, LOOKUP))
def test_elements_only_move(kind):
    one, two = (results(kind, _numbered(CALLS[kind], start)) for start in (1, 1001))
    for a, b in zip(one, two, strict=True):
        moved = a != 0
        assert moved.any()
        assert np.array_equal(b[moved], a[moved] + 1000)
        assert not b[~moved].any()


@rows(of_family(SCATTERING) - {"DynamicPartition", "MirrorPadGrad"})
def test_rows_go_where_numbers_say(kind):
    arguments = CALLS[kind]
    name, places = ("data", "segment_ids") if "Segment" in kind else ("updates", "indices")
    rows_of = np.ravel(arguments[places])
    for row, place in enumerate(rows_of):
        new = arguments[name].copy()
        new[row] = 0.99 if "Min" not in kind else 0.01
        before, after = results(kind, arguments)[0], results(kind, arguments | {name: new})[0]
        assert {int(k) for k in np.flatnonzero((before != after).any(1))} == {place}


def _combined(kind, wheres):
    """The results of two values, and of a combination of them, in these inputs."""
    arguments = CALLS[kind]
    first = {where: taken(arguments, where) for where in wheres}
    second = {where: np.flip(value) * 0.7 for where, value in first.items()}
    mixed = {where: (2 * first[where] - 3 * second[where]).astype(first[where].dtype) for where in wheres}
    return [results(kind, replaced(arguments, new)) for new in (first, second, mixed)]


def _ways(kind):
    found = values(CALLS[kind])
    return {
        JOINTLY: [found],
        EACH: [[where] for where in found],
        FIRST: [found[:1]],
        LAST: [found[-1:]],
    }[OPERATIONS[kind].linear]


@rows(linear_in(JOINTLY, EACH, FIRST, LAST) - {"MaxPoolGrad", "MaxPool3DGrad"})
def test_linear_means_linear(kind):
    for wheres in _ways(kind):
        for a, b, both in zip(*_combined(kind, wheres), strict=True):
            tolerance = 1e-3 if both.dtype in (np.float32, np.complex64) else 1e-9
            np.testing.assert_allclose(both, 2 * a - 3 * b, rtol=tolerance, atol=tolerance)


# NextAfter is, but for the last bit.
@rows(set(CALLS) - linear_in(JOINTLY, EACH, FIRST, LAST) - of_family(SHAPE, RANDOM) - with_fact("flat") - {"NextAfter"})
def test_what_is_not_said_to_be_linear_is_not(kind):
    found = values(CALLS[kind])
    results_of = _combined(kind, found)
    assert not all(np.allclose(both, 2 * a - 3 * b, rtol=1e-4) for a, b, both in zip(*results_of, strict=True))


@functools.cache
def _gradients(kind):
    """The gradient of all results by each of the values."""
    arguments = CALLS[kind]
    found = values(arguments)
    tensors = [tf.constant(taken(arguments, where)) for where in found]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        outputs = called(kind, replaced(arguments, dict(zip(found, tensors, strict=True))))
        outputs = [output for output in outputs if output.dtype.is_floating or output.dtype.is_complex]
    return [tape.gradient(outputs, tensor) if outputs else None for tensor in tensors]


@rows(with_fact("flat"))
def test_no_derivative_means_none(kind):
    assert all(gradient is None or not np.any(gradient) for gradient in _gradients(kind))


@rows(kind for kind, row in OPERATIONS.items() if row.flat_in)
def test_some_inputs_have_no_derivative(kind):
    gradients = _gradients(kind)
    for index, gradient in enumerate(gradients):
        none = gradient is None or not np.any(gradient)
        assert none == (index in OPERATIONS[kind].flat_in)


@rows(kind for kind, row in OPERATIONS.items() if row.transposed_by)
def test_what_transposes_an_input_is_an_attribute(kind):
    for (name, _), attribute in zip(values(CALLS[kind]), OPERATIONS[kind].transposed_by, strict=True):
        turned = CALLS[kind] | {name: np.swapaxes(CALLS[kind][name], -1, -2), attribute: True}
        np.testing.assert_allclose(results(kind, turned)[0], results(kind, CALLS[kind])[0], rtol=1e-12)


@rows(with_fact("passes"))
def test_what_passes_keeps_elements_and_order(kind):
    (name, place), *_ = values(CALLS[kind])
    assert np.array_equal(results(kind, CALLS[kind])[0].ravel(), taken(CALLS[kind], (name, place)).ravel())


@rows(with_fact("adds"))
def test_what_adds_is_a_sum(kind):
    parts = [taken(CALLS[kind], where) for where in values(CALLS[kind])]
    np.testing.assert_allclose(results(kind, CALLS[kind])[0], functools.reduce(np.add, parts), rtol=1e-12)


@rows(with_fact("parts"))
def test_parts_are_parts(kind):
    numbered = _numbered(CALLS[kind], 1)
    whole = taken(numbered, values(numbered)[0])
    assert all(np.isin(part, whole).all() for part in results(kind, numbered))


@rows(with_fact("chooses") - {"TensorScatterMax", "TensorScatterMin"})
def test_what_chooses_takes_elements(kind):
    (where,) = values(CALLS[kind])
    assert np.isin(results(kind, CALLS[kind])[0], taken(CALLS[kind], where)).all()
    moved = replaced(CALLS[kind], {where: np.flip(taken(CALLS[kind], where), 0)})
    assert np.isin(results(kind, moved)[0], taken(CALLS[kind], where)).all()


@rows(with_fact("selects"))
def test_what_selects_takes_one_or_the_other(kind):
    condition, first, second = CALLS[kind].values()
    assert np.array_equal(results(kind, CALLS[kind])[0], np.where(condition, first, second))


def _derivatives(kind, x, order):
    """The value and the derivatives of a function of one number, up to an order."""
    if order == 0:
        return [called(kind, {next(iter(CALLS[kind])): x})[0]]
    with tf.GradientTape() as tape:
        tape.watch(x)
        found = _derivatives(kind, x, order - 1)
        last = tf.reduce_sum(found[-1])
    return [*found, tape.gradient(last, x, unconnected_gradients="zero")]


@pytest.mark.dear(keep=10)
@rows(with_fact("smooth"))
def test_smooth_is_differentiated_as_often_as_needed(kind):
    x, h = tf.constant([1.2, 1.7, 2.3] if kind == "Acosh" else [0.2, 0.45, 0.7], tf.float64), 1e-6
    for order in (1, 2, 3):
        up, down = (_derivatives(kind, x + step, order - 1)[-1] for step in (h, -h))
        np.testing.assert_allclose(_derivatives(kind, x, order)[-1], (up - down) / (2 * h), rtol=1e-5, atol=1e-5)


@rows(with_fact("pieces"))
def test_pieces_are_linear(kind):
    x = tf.constant([-2.3, -0.4, 0.6, 2.9, 7.3], tf.float64)
    low, middle, high = (_derivatives(kind, x + step, 0)[0] for step in (-0.1, 0.0, 0.1))
    np.testing.assert_allclose(low + high, 2 * middle, atol=1e-12)


@rows(with_fact("saturates"))
def test_what_saturates_has_a_small_derivative_far_out(kind):
    slopes = np.abs(_derivatives(kind, tf.constant([-60.0, 60.0], tf.float64), 1)[1])
    near = np.abs(_derivatives(kind, tf.constant([-0.5, 0.5], tf.float64), 1)[1])
    assert slopes.min() < 1e-3 < near.min()


@rows(with_fact("underflows"))
def test_what_underflows_makes_zeros_of_small_numbers(kind):
    """And it makes none of other numbers."""
    for number, is_lost in ((-200.0 if kind == "Exp" else 1e-30, True), (0.5, False)):
        small = {name: np.full(np.shape(CALLS[kind][name]), number, "float32") for name, _ in values(CALLS[kind])}
        rest = {"Cast": {"DstT": tf.float16}, "Pow": {"y": np.float32(3.0)}}.get(kind, {})
        assert (np.array(results(kind, CALLS[kind] | small | rest)[0]) == 0).any() == is_lost


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "@": operator.matmul}
SIGNS["**"] = operator.pow
# Of several operations with one name in Python, the one that Python makes now.
MADE_NOW = {"Add": "AddV2", "Select": "SelectV2", "BatchMatMul": "BatchMatMulV2", "BatchMatMulV3": "BatchMatMulV2"}


@pytest.mark.parametrize(("kind", "word"), [(kind, word) for kind, row in OPERATIONS.items() for word in row.words])
def test_words_are_what_makes_an_operation(kind, word):
    function = SIGNS.get(word) or next(getattr(one, word) for one in (tf, tf.math, tf.linalg) if hasattr(one, word))
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (2, 2, 2) if kind.startswith("Batch") else (2, 2))
        for arguments in ((x,), (x, x), (x > 0, x, x)):
            with contextlib.suppress(TypeError, ValueError, NotImplementedError):
                function(*arguments)
    assert MADE_NOW.get(kind, kind) in {one.type for one in graph.get_operations()}


@rows(with_fact("keeps zeros") | with_fact("passes") - with_fact("flat"))
def test_what_keeps_zeros_and_signs(kind):
    arguments = CALLS[kind]
    for where in values(arguments):
        zero = replaced(arguments, {where: np.zeros_like(taken(arguments, where))})
        assert any((result == 0).any() for result in results(kind, zero))
    signs = set(np.sign(results(kind, arguments)[0]).ravel())
    assert signs in ({1}, {-1})


@rows(with_fact("smooth") - {"Acosh"})
def test_what_crosses_zero_there_and_what_bends_at_one(kind):
    """And no other does."""
    below, at, above = _derivatives(kind, tf.constant([-1e-2, 0.0, 1e-2], tf.float64), 0)[0].numpy()
    assert ((below < 0 == at) and at < above) == OPERATIONS[kind].has("crosses")
    bends = at == 1 and max(abs(above - at), abs(below - at)) < 1e-3
    assert bends == OPERATIONS[kind].has("one at its bend")


@rows(kind for kind, row in OPERATIONS.items() if row.mirror)
def test_a_mirror_does_to_negated_values_what_the_operation_does_to_values(kind):
    arguments, mirror = CALLS[kind], OPERATIONS[kind].mirror
    assert OPERATIONS[mirror].mirror == kind
    negated = replaced(arguments, {where: -taken(arguments, where) for where in values(arguments)})
    assert same(results(kind, arguments), [-result for result in results(mirror, negated)])


@pytest.mark.parametrize("kind", INDEXED)
def test_an_index_out_of_range_raises_on_a_cpu(kind):
    drops = OPERATIONS[kind].has("drops")
    with tf.device("CPU:0"):
        indexed(kind, 0)
        for at in (99, -1):
            with contextlib.nullcontext() if at < 0 and drops else pytest.raises(tf.errors.InvalidArgumentError):
                indexed(kind, at)
        if drops:
            (none,), (some,) = ({abs(row).max() for row in indexed(kind, at)[0][:1].numpy()} for at in (-1, 0))
            assert none != some


@rows(with_fact("cuts"))
def test_beyond_a_bound_the_derivative_is_zero(kind):
    name, first = next(iter(CALLS[kind].items()))
    rest = {key: value for key, value in CALLS[kind].items() if key != name}
    x = tf.constant(np.where(np.arange(first.size).reshape(first.shape) % 2, 40, -40).astype(first.dtype))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = called(kind, {name: x, **rest})[0]
    assert 0 in tape.gradient(y, x).numpy()


@rows(with_fact("unit"))
def test_units_are_activations_of_keras(kind):
    name = {"LeakyRelu": "leaky_relu"}.get(kind, kind.lower())
    x = np.float32([-2.0, -0.3, 0.4, 7.0])
    np.testing.assert_allclose(
        results(kind, {next(iter(CALLS[kind])): x})[0], tf.keras.activations.get(name)(x), rtol=1e-5
    )


@rows(with_fact("cross entropy"))
def test_cross_entropies_are_losses_of_logits(kind):
    labels = CALLS[kind]["labels"]
    labels = np.eye(3)[labels] if isinstance(labels, list) else labels
    expected = -(labels * tf.nn.log_softmax(CALLS[kind]["features"])).numpy().sum(1)
    np.testing.assert_allclose(results(kind, CALLS[kind])[0], expected, rtol=1e-6)


@rows(with_fact("valueless"))
def test_valueless_means_that_values_do_not_matter(kind):
    changed = {where: other(taken(CALLS[kind], where)) for where in values(CALLS[kind])}
    assert same(results(kind, CALLS[kind]), results(kind, replaced(CALLS[kind], changed)))


@rows(of_family(RANDOM))
def test_random_means_random(kind):
    assert not same(results(kind, CALLS[kind]), results(kind, CALLS[kind]))


@pytest.mark.parametrize("kind", sorted(with_fact("reads")))
def test_what_reads_takes_a_variable(kind):
    variable = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    more = {"ReadVariableOp": {"dtype": tf.float32}, "ResourceGather": {"indices": [1], "dtype": tf.float32}}
    more["ResourceGatherNd"] = {"indices": [[1, 0]], "dtype": tf.float32}
    name = "input" if kind == "VariableShape" else "resource"
    found = getattr(tf.raw_ops, kind)(**{name: variable.handle}, **more.get(kind, {}))
    expected = {"ReadVariableOp": variable, "ResourceGather": [[3.0, 4.0]], "ResourceGatherNd": [3.0]}
    np.testing.assert_array_equal(found, expected.get(kind, [2, 2] if kind == "VariableShape" else True))
