"""What a held transformation compiled for: arguments as they were given, the context; and updates that happen once."""

import dataclasses
import decimal
import enum
import itertools
from collections import OrderedDict, defaultdict, namedtuple

from tapelab.derivatives import (
    hessian,
    hvp,
    jvp,
    value_and_gradient,
    vjp,
)
from tapelab.runtime import tf

import numpy as np
import pytest
from transformations import EVERY, TRANSFORMATIONS

KERAS = tf.keras
LAYERS = KERAS.layers
ONE = tf.constant(1.0)


# Arguments.


class Labelled(list):
    scale = 1.0


class Pair(namedtuple("Pair", "left right")):
    """A named tuple with a method."""

    def swapped(self):
        return self.right, self.left


def moved():
    items = OrderedDict(a=2 * ONE, z=ONE)
    items.move_to_end("a")
    return items


def labelled():
    items = Labelled([ONE, 2 * ONE])
    items.scale = 3.0
    return items


def with_default():
    items = defaultdict(lambda: 7.0, z=ONE)
    items["a"] = 2 * ONE
    return items


def weighted(values):
    return sum((place + 1) * value**2 for place, value in enumerate(values))


ARGUMENTS = {
    "a dictionary": ({"z": ONE, "b": 2 * ONE, "a": 3 * ONE}, lambda d: weighted(d.values())),
    "keys without an order": ({"b": ONE, 2: 2 * ONE}, lambda d: weighted(d.values())),
    "an ordered one": (moved(), lambda d: weighted(d.values()) + (2.0 if isinstance(d, OrderedDict) else 0.0)),
    "one with a default": (with_default(), lambda d: weighted(d.values()) * d.default_factory()),
    "a list of a class": (labelled(), lambda d: weighted(d) * d.scale + len(vars(d))),
    "a named tuple": (Pair(ONE, 2 * ONE), lambda d: weighted(d.swapped())),
    "within others": (
        [{"z": (ONE, labelled()), "a": 2 * ONE}],
        lambda d: d[0]["z"][1].scale * (5.0 if next(iter(d[0])) == "z" else 1.0) * d[0]["a"],
    ),
}


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_reach_the_function_as_they_were_given(name):
    argument, f = ARGUMENTS[name]
    value, gradient = value_and_gradient(lambda x, data: x * f(data), compile="graph")(ONE, argument)
    np.testing.assert_allclose(value, f(argument), rtol=1e-6)
    np.testing.assert_allclose(gradient, f(argument), rtol=1e-6)


@pytest.mark.dear(keep=3)
@pytest.mark.parametrize("name", ["a dictionary", "keys without an order", "an ordered one", "one with a default"])
def test_a_gradient_is_a_dictionary_of_the_same_class_and_order(name):
    source, f = ARGUMENTS[name]
    _, gradient = value_and_gradient(f, compile="graph")(source)
    assert type(gradient) is type(source)
    assert list(gradient) == list(source)
    with tf.GradientTape() as tape:
        tape.watch(list(source.values()))
        value = f(source)
    wanted = tape.gradient(value, list(source.values()))
    np.testing.assert_allclose(list(gradient.values()), wanted, rtol=1e-6)


def test_keywords_keep_their_order():
    def f(x, **items):
        return x * weighted(items.values())

    held = value_and_gradient(f)
    assert float(held(ONE, z=ONE, a=10 * ONE)[1]) == 201.0
    assert float(held(ONE, a=10 * ONE, z=ONE)[1]) == 102.0


# What is passed beside tensors.


class Colour(enum.Enum):
    RED = 1


Named = dataclasses.make_dataclass(
    "Named", [("name", str), ("k", object, dataclasses.field(compare=False))], frozen=True
)
Holder = dataclasses.make_dataclass("Holder", [("k", object)], frozen=True)
Slotted = dataclasses.make_dataclass("Slotted", [("k", object)], frozen=True, slots=True)

UNLIKE = {
    "1 and True": (1, True),
    "zeros": (0.0, -0.0),
    "numbers of two classes": (decimal.Decimal("1.0"), 1.0),
    "a field": (Holder(1), Holder(2)),
    "enumerated": (Colour.RED, 1),
    "a list and a tuple": ([ONE], (ONE,)),
    "an attribute": (Pair(ONE, Holder(1)), Pair(ONE, Holder(2))),
}


@pytest.mark.thorough(keep=7, dear=3)
@pytest.mark.parametrize("name", UNLIKE)
def test_values_of_two_types_or_that_are_not_equal_are_told_apart(name):
    seen = []

    def f(x, static):
        seen.append(static)
        return x**2

    held = value_and_gradient(f, compile="graph")
    for value in UNLIKE[name]:
        seen.clear()
        held(ONE, value)
        assert seen, "the other value's program was taken"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Named("a", float("nan")),
        lambda: Holder((1, "b", None, 2.5)),
        lambda: Colour.RED,
        lambda: tf.TensorShape([1, None]),
        lambda: {"b": Holder(1), 2: [Slotted(2)]},
        labelled,
    ],
)
def test_values_that_are_alike_share_a_program(make):
    seen = []

    def f(x, static):
        seen.append(static)
        return x**2

    held = value_and_gradient(f, compile="graph")
    held(ONE, make())
    seen.clear()
    held(ONE, make())
    assert not seen


def test_lists_that_modules_track_come_as_plain_ones():
    module, layer = tf.Module(), LAYERS.Layer()
    for owner in (module, layer):
        owner.items, owner.named = [ONE, (ONE, 2.0)], {"z": ONE, "a": 2 * ONE}
    module.ordered = moved()
    kinds = []

    def f(x, *data):
        kinds[:] = [type(part) for part in data]
        return x * weighted(data[1].values())

    for data in ((module.items, module.named, module.ordered), (layer.items, layer.named)):
        assert float(value_and_gradient(f)(ONE, *data)[1]) == 9.0
        assert kinds == [list, dict, dict][: len(data)]


# One tensor in two places.


def product(a, b):
    return a * b * b


def untraceable_product(a, b):
    return a * b * b if a.numpy() > 0 else a


POINT = tf.constant(3.0, tf.float64)
TWICE = {
    "source and data": (lambda f, o: value_and_gradient(f, **o)(POINT, POINT)[1], [9.0]),
    "closed over": (lambda f, o: value_and_gradient(lambda a: f(a, POINT), **o)(POINT)[1], [9.0]),
    "jvp": (lambda f, o: jvp(f, **o)(POINT, POINT, tangents=POINT)[1], [27.0]),
    "vjp": (lambda f, o: vjp(f, argnums=(0, 1), **o)(POINT, POINT, cotangents=POINT)[1], [27.0, 54.0]),
    "hvp": (lambda f, o: hvp(f, argnums=1, **o)(POINT, POINT, vector=POINT), [18.0]),
    "hessian": (lambda f, o: hessian(f, argnums=(0, 1), **o)(POINT, POINT), [0.0, 6.0, 6.0, 6.0]),
}


@pytest.mark.dear(keep=4)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize("name", TWICE)
@pytest.mark.parametrize(
    ("f", "options"),
    [(product, {"compile": "graph"}), (untraceable_product, {"compile": "eager"})],
    ids=["graph", "untraceable"],
)
def test_one_tensor_in_two_places(name, f, options):
    compute, wanted = TWICE[name]
    np.testing.assert_allclose(tf.nest.flatten(compute(f, options)), wanted, rtol=1e-10)


@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize("f", [product, untraceable_product])
def test_a_source_that_is_the_data_too_is_not_connected_for_it(f):
    options = {"compile": "eager"} if f is untraceable_product else {}
    with pytest.raises(ValueError, match="does not depend on argument 1"):
        value_and_gradient(lambda a, b: f(a, POINT), argnums=1, **options)(POINT, POINT)


def test_a_variable_that_is_an_argument_too():
    variable = tf.Variable(POINT)
    assert float(value_and_gradient(lambda a: product(a, variable))(variable)[1]) == 9.0
    assert float(value_and_gradient(lambda a: product(a, variable), wrt=variable)(variable)[1]) == 18.0


# The context.


def test_in_a_stateless_scope_the_scopes_values_count_or_it_is_refused():
    dense = LAYERS.Dense(1, use_bias=False)
    dense.build((None, 2))
    dense.kernel.assign([[2.0], [3.0]])
    by_x = value_and_gradient(lambda x: tf.reduce_sum(dense(x)))
    by_kernel = value_and_gradient(lambda x: tf.reduce_sum(dense(x)), wrt=dense.kernel)
    in_scope = lambda held: held(tf.ones((1, 2)))[1]  # noqa: E731
    with KERAS.StatelessScope(state_mapping=[(dense.kernel, tf.ones((2, 1)))]):
        np.testing.assert_array_equal(tf.function(lambda: in_scope(by_x))(), [[1.0, 1.0]])
        for call in (lambda: in_scope(by_x), tf.function(lambda: in_scope(by_kernel))):
            with pytest.raises(RuntimeError, match="StatelessScope"):
                call()
    np.testing.assert_array_equal(in_scope(by_x), [[2.0, 3.0]])


def test_in_a_strategy_a_held_transform_is_refused_like_a_fresh_one():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    held = value_and_gradient(lambda x: x**2)
    assert float(held(ONE)[1]) == 2.0
    for call in (lambda: held(ONE), lambda: value_and_gradient(lambda x: x**2)(ONE)):
        with strategy.scope(), pytest.raises(RuntimeError, match="MirroredStrategy"):
            call()
        with pytest.raises(RuntimeError, match="MirroredStrategy"):
            strategy.run(lambda call=call: call()[0])
    assert float(held(ONE)[1]) == 2.0


@pytest.mark.thorough
def test_a_mask_of_keras_is_refused():
    rows = LAYERS.Embedding(5, 2, mask_zero=True)(tf.constant([[1, 2, 0]]))
    recurrent = LAYERS.SimpleRNN(2)
    held = value_and_gradient(lambda x, mask=None: tf.reduce_sum(recurrent(x, mask=mask)))
    with pytest.raises(ValueError, match=r"Keras mask(.|\n)*tf.identity"):
        held(rows)
    wanted = tf.reduce_sum(recurrent(rows))
    mask = tf.constant([[True, True, False]])
    np.testing.assert_allclose(held(tf.identity(rows), mask)[0], wanted, rtol=1e-5)


# Updates.


COUNT = tf.Variable(0.0)


def beside(y):
    """An update that the result does not depend on."""
    COUNT.assign_add(1.0)
    return y


def of_the_batch(y):
    """An update by a sum over the examples, as of a metric."""
    COUNT.assign_add(tf.cast(tf.size(y) > 0, tf.float32) + 0.0 * tf.reduce_sum(y))
    return y


def on_the_way(y):
    return y * (1.0 + 0.0 * COUNT.assign_add(1.0))


def in_a_function(y):
    BUMP()
    return y


BUMP = tf.function(lambda: COUNT.assign_add(1.0))
UPDATES = [beside, of_the_batch, on_the_way, in_a_function]


def updates(name, update, *, untraceable=False, **options):
    """How many updates the first call makes, and the second one."""
    f, make, arguments, *vector = EVERY[name]

    def updating(x):
        if untraceable and x.numpy().sum() > 1e9:
            return x
        return update(f(x))

    held, found = make(updating, **options), []
    for _ in range(2):
        COUNT.assign(0.0)
        held(*arguments, **dict(*vector))
        found.append(float(COUNT))
    return found


# Every kind of update in a graph, and one that the result depends on in every transformation. (A batch Jacobian
# evaluates the function for each example.)
WHOLE = [name for name in TRANSFORMATIONS if name != "batch_jacobian"]
IN_A_CALL = [
    *itertools.product(["value_and_gradient", "jacobian", "hessian"], UPDATES, ["graph"]),
    *itertools.product(WHOLE, [on_the_way], ["auto", "eager"]),
]


@pytest.mark.parametrize(("name", "update", "compile"), IN_A_CALL)
@pytest.mark.thorough(keep=6, dear=3)
def test_an_update_happens_once_in_a_call(name, update, compile):
    assert updates(name, update, compile=compile) == [1.0, 1.0]


@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize("name", ["batch_jacobian", "per_example_gradients"])
def test_what_is_given_up_changes_nothing(name):
    """Each of three examples is evaluated, and one of them before; not once more for rows that were not to be had."""
    assert updates(name, on_the_way, compile="graph") == [4.0, 4.0]
