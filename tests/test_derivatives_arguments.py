"""What may be passed to the transformations: structures, shapes, dtypes, variables; what is refused; what is cached."""

import collections
import gc
import inspect
import os
import re
import subprocess
import sys
import weakref

from tapelab import derivatives
from tapelab.derivatives import (
    MemoryLimitError,
    NotFiniteError,
    UnconnectedSourceError,
    costs,
    hessian,
    jacobian,
    jvp,
    laplacian,
    pack,
    set_memory_limit,
    unpack,
    value_and_gradient,
)
from tapelab.derivatives.arguments import flatten, names
from tapelab.runtime import tf

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from process_texts import read_text

TRANSFORMATIONS = [
    name
    for name in derivatives.__all__
    if inspect.isfunction(make := getattr(derivatives, name))
    and getattr(inspect.signature(make).return_annotation, "__name__", "") == "Transform"
]

Point = collections.namedtuple("Point", "x y")

shapes = st.sampled_from([(), (1,), (3,), (0,), (2, 2), (1, 3, 0), (2, 1)])
dtypes = st.sampled_from([np.float32, np.float64])
arrays = st.builds(
    lambda shape, dtype: np.arange(1, 1 + np.prod(shape), dtype=dtype).reshape(shape) / 7, shapes, dtypes
)
structures = st.recursive(
    arrays,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
        st.builds(Point, inner, inner),
    ),
    max_leaves=4,
)


def quick(examples):
    """The same examples every time, and no search for a smaller one: compiling for each would take minutes."""
    own = {"derandomize": True, "phases": [Phase.explicit, Phase.generate]}
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], **own)


def cubes(structure):
    """The sum of all elements' cubes, in float64."""
    return tf.add_n([tf.cast(tf.reduce_sum(leaf**3), tf.float64) for leaf in tf.nest.flatten(structure)])


@quick(20)
@given(structures)
def test_unpack_is_the_inverse_of_pack(structure):
    structure = tf.nest.map_structure(lambda leaf: leaf.astype(np.float64), structure)
    vector = pack(structure)
    assert vector.shape == (sum(leaf.size for leaf in tf.nest.flatten(structure)),)
    tf.nest.map_structure(np.testing.assert_array_equal, unpack(vector, structure), structure)


@quick(8)
@given(structures)
def test_results_have_the_structure_shapes_and_dtypes_of_the_sources(structure):
    _, gradient = value_and_gradient(cubes)(structure)
    tf.nest.map_structure(lambda g, x: np.testing.assert_allclose(g, 3 * x**2, rtol=1e-5), gradient, structure)
    tf.nest.map_structure(
        lambda g, x: np.testing.assert_equal(g.dtype.as_numpy_dtype, x.dtype.type), gradient, structure
    )
    blocks = hessian(cubes, compile="eager")(structure)
    leaves, found = [], []
    labels = names(flatten(structure, leaves), "")
    assert names(flatten(blocks, found), "") == [first + second for first in labels for second in labels]
    pairs = [(x, other) for x in leaves for other in leaves]
    for block, (x, other) in zip(found, pairs, strict=True):
        assert block.shape == x.shape + other.shape
        wanted = np.diag(6 * x.ravel()) if x is other else np.zeros((x.size, other.size))
        np.testing.assert_allclose(tf.reshape(block, wanted.shape), wanted, rtol=1e-5)


@pytest.mark.thorough(keep=4, dear=2)
@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize(("ins", "outs"), [((), ()), ((2,), ()), ((0,), (2,)), ((2,), (0,))])
def test_jacobians_of_scalars_and_of_nothing(mode, ins, outs):
    found = jacobian(lambda x: tf.broadcast_to(tf.reduce_sum(x**2), outs), mode=mode)(tf.fill(ins, 3.0))
    np.testing.assert_allclose(found, tf.fill(outs + ins, 6.0))


def test_static_arguments_keywords_and_numbers():
    traces = []

    def f(x, power, *, scale=1.0):
        traces.append(power)
        return scale * x**power

    gradient = value_and_gradient(f)
    assert float(gradient(2.0, 3)[1]) == 12.0
    assert float(gradient(2.0, 3, scale=2.0)[1]) == 24.0
    count = len(traces)
    assert float(gradient(5.0, 3)[1]) == 75.0
    assert len(traces) == count


def test_a_variable_as_argument_and_as_wrt():
    v = tf.Variable([1.0, 2.0], name="v")
    assert value_and_gradient(lambda x: tf.reduce_sum(x**2))(v)[1].numpy().tolist() == [2.0, 4.0]
    gradient = value_and_gradient(lambda a: a * tf.reduce_sum(v**2), wrt={"v": v})
    assert gradient(3.0)[1]["v"].numpy().tolist() == [6.0, 12.0]
    v.assign([0.0, 1.0])
    assert gradient(3.0)[1]["v"].numpy().tolist() == [0.0, 6.0]


@pytest.fixture(scope="module")
def model():
    inputs = tf.keras.Input((3,))
    hidden = tf.keras.layers.Dense(4, activation="tanh", name="hidden")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(2, name="out")(hidden))


# What is refused.


SHAPELESS = tf.Variable(1.0, shape=tf.TensorShape(None))


def test_a_result_of_unknown_size_has_products_and_no_matrix():
    f = lambda x: tf.reshape(SHAPELESS, [-1]) * x  # noqa: E731
    with pytest.raises(ValueError, match=r"tf.ensure_shape.*products \(jvp"):
        jacobian(f)(3.0)
    np.testing.assert_allclose(jvp(f)(3.0, tangents=1.0)[1], [1.0])
    np.testing.assert_allclose(jacobian(lambda x: tf.ensure_shape(f(x), [1]))(3.0), [1.0])


def test_a_source_that_is_not_used_is_named(model):
    unused = tf.Variable(1.0, name="unused")
    used = tf.Variable(2.0, name="used")

    def f(x):
        return used * x

    with pytest.raises(UnconnectedSourceError, match=r"wrt\['b'\] \('unused:0'\)") as raised:
        value_and_gradient(f, wrt={"a": used, "b": unused})(3.0)
    assert "'used:0'" not in str(raised.value)
    _, gradient = value_and_gradient(f, wrt={"a": used, "b": unused}, unconnected="zero")(3.0)
    assert (float(gradient["a"]), float(gradient["b"])) == (3.0, 0.0)
    with pytest.raises(UnconnectedSourceError, match="argument 0"):
        hessian(lambda x: tf.constant(1.0))(2.0)
    assert float(hessian(lambda x: tf.constant(1.0), unconnected="zero")(2.0)) == 0.0
    with pytest.raises(UnconnectedSourceError, match="out/kernel"):
        value_and_gradient(lambda: tf.reduce_sum(model.layers[1].kernel), wrt=model.trainable_variables)()


def test_what_the_function_raises_comes_through():
    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hessian(broken)(1.0)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("make", [value_and_gradient, hessian])
def test_nan_is_reported_on_request(make):
    def f(x):
        return tf.reduce_sum(tf.sqrt(x))

    make(f)(tf.constant([0.0, 1.0]))
    with pytest.raises(NotFiniteError, match=r"[12] of [24] elements"):
        make(f, check_finite=True)(tf.constant([0.0, 1.0]))
    make(f, check_finite=True)(tf.constant([2.0, 1.0]))


# Memory.


def test_memory_is_predicted_and_refused_before_anything_is_allocated():
    def f(x):
        return tf.reduce_sum(x**3)

    x = tf.zeros(2**20)  # a Hessian of 4 TiB
    with pytest.raises(MemoryLimitError, match=r"in 1 source, .*8\.0 TiB.*limit is 4\.0 GiB.*hvp") as raised:
        hessian(f)(x)
    assert "1048576" in str(raised.value)
    with pytest.raises(MemoryLimitError, match=r"jacobian of results of shape .1048576,. by sources of shape"):
        jacobian(lambda x: x**2)(x)
    previous = set_memory_limit(2**10)
    try:
        with pytest.raises(MemoryLimitError, match=r"limit is 1\.0 KiB"):
            hessian(f)(tf.zeros(30))
        assert hessian(f, memory_limit=2**20)(tf.zeros(30)).shape == (30, 30)
    finally:
        assert set_memory_limit(None) == 2**10
    assert set_memory_limit(previous) == previous


MEASURED = read_text("derivatives_arguments", "MEASURED")


@pytest.mark.thorough
def test_the_memory_predicted_for_a_hessian_is_about_what_is_allocated():
    # TensorFlow's own count, which oneDNN's allocator keeps: resident memory also holds what is kept for later.
    # How many rows are computed side by side must not depend on the number of cores.
    threads = {"TF_NUM_INTEROP_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "2"}
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "1", **threads}
    command = [sys.executable, "-c", MEASURED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = [[int(number) for number in line.split()] for line in run.stdout.splitlines()]
    assert len(rows) == 4
    for measured, _, matrix in rows:
        assert measured >= matrix
    # Without chunks, sources' rows may be computed side by side, as many as there are threads: the peak varies.
    for (measured, predicted, _), factor in zip(rows, (2, 1.3, 2, 1.3), strict=True):
        assert measured / factor < predicted < 2 * factor * measured, rows


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("chunk_size", [1, 5, 99])
def test_chunks_change_nothing(chunk_size):
    x = tf.constant(np.linspace(0.0, 1.0, 6))

    def found(size):
        return hessian(lambda x: tf.reduce_sum(tf.sin(x) * tf.reduce_sum(x**2)), compile="graph", chunk_size=size)(x)

    np.testing.assert_allclose(found(chunk_size), found(None), atol=1e-14)


# What a call does.


def test_a_large_hessian_takes_xla_where_there_is_no_product():
    x = tf.linspace(0.1, 1.0, costs.XLA_HESSIAN + 1)
    assert hessian(lambda x: tf.reduce_sum(x[1:] * tf.sin(x[:-1]))).plan(x).compiled == "xla"
    assert hessian(lambda x: tf.reduce_sum((x[tf.newaxis] @ x[:, tf.newaxis]) ** 2)).plan(x).compiled == "graph"


def test_a_plan_does_not_compile_again():
    traces = []

    def f(x):
        traces.append(x)
        return x**2

    gradient = value_and_gradient(f)
    gradient.plan(1.0)
    count = len(traces)
    assert float(gradient(3.0)[1]) == 6.0
    assert gradient.plan(2.0).mode == "reverse"
    assert len(traces) == count


# What is kept.


def test_a_held_transform_is_compiled_once_for_each_signature():
    traces = []

    def f(x):
        traces.append(x.shape)
        return tf.reduce_sum(x**2)

    def traced(call):
        before = len(traces)
        call()
        return len(traces) > before

    held = value_and_gradient(f, compile="graph")
    assert traced(lambda: held(tf.ones(3)))
    assert not traced(lambda: held(np.zeros(3, np.float32)))
    assert traced(lambda: held(tf.ones(4)))
    assert traced(lambda: held(tf.ones(3, tf.float64)))
    assert not traced(lambda: held(tf.zeros(3)))
    assert value_and_gradient(f) is not value_and_gradient(f)
    assert vars(f) == {}


class Tag:
    """A static argument that can be watched: it lives as long as what was compiled for it."""


@pytest.mark.dear
def test_what_was_not_used_for_longest_is_compiled_anew(monkeypatch):
    assert costs.SIGNATURES == 64
    monkeypatch.setattr(costs, "SIGNATURES", 3)
    traces = []

    def f(x, tag):
        traces.append(tag)
        return x**2

    def compiled(tag):
        before = len(traces)
        gradient(1.0, tag)
        return len(traces) > before

    gradient = value_and_gradient(f, compile="graph")
    first, second = Tag(), Tag()
    gone = weakref.ref(second)
    assert [compiled(tag) for tag in (first, second, 3, first, 4)] == [True, True, True, False, True]
    traces.clear()
    del second
    gc.collect()
    assert gone() is None
    assert [compiled(tag) for tag in (first, 3, 4)] == [False, False, False]


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("transform", [jacobian, laplacian])
def test_a_derivative_as_the_argument_of_a_function_in_a_graph_is_the_derivative(transform):
    x = tf.constant([[1.0, 2.0]])
    held = transform(lambda x: tf.reduce_sum(x**3, axis=1))
    found = tf.function(lambda derivative: derivative(x))(held)
    np.testing.assert_allclose(found, held(x), rtol=1e-6)


def test_a_function_can_be_pickled_after_use_and_with_the_transforms_that_it_holds():
    power = 2

    def f(x):
        return x**power

    held = value_and_gradient(f, compile="graph")
    held(3.0)

    def user(x):
        return held(x)[1]

    for function in (f, user):
        again = cloudpickle.loads(cloudpickle.dumps(function))
        assert float(again(tf.constant(3.0))) == float(function(tf.constant(3.0)))


def test_a_function_and_what_was_compiled_for_it_go_together():
    def f(x):
        return x**2

    held = value_and_gradient(f, compile="graph")
    held(1.0)
    gone = weakref.ref(f)
    del f, held
    gc.collect()
    assert gone() is None


def test_everything_public_is_documented():
    assert all(getattr(derivatives, name).__doc__ for name in derivatives.__all__)
    for name in TRANSFORMATIONS:
        assert "see `tapelab.derivatives`" in " ".join(getattr(derivatives, name).__doc__.split()), name


def says_why_not(name, option):
    """Whether a function's docstring says that it has no such option, or refers to another one's that does."""
    doc = " ".join(getattr(derivatives, name).__doc__.split())
    referred = set(re.findall(r"as for `(\w+)`", doc)) & set(derivatives.__all__) - {name}
    return f"There is no ``{option}``" in doc or any(says_why_not(other, option) for other in referred)


def test_every_derivative_takes_variables_and_arguments_or_says_why_not():
    for name in [*TRANSFORMATIONS, "CurvatureOperator"]:
        for option in ("wrt", "argnums"):
            taken = inspect.signature(getattr(derivatives, name)).parameters
            assert option in taken or says_why_not(name, option), f"{name}: {option}"


def test_what_options_mean_is_said_once():
    """An option that several functions share is explained in the package's docstring, and has one default."""
    taken = collections.defaultdict(list)
    for name in derivatives.__all__:
        public = getattr(derivatives, name)
        if inspect.isfunction(public):
            for option in inspect.signature(public).parameters.values():
                taken[option.name].append((name, option.default))
    explained = set(re.findall(r"(?m)^``(\w+)``", derivatives.__doc__))
    shared = {option for option, users in taken.items() if len(users) >= 8}
    assert shared <= explained | {"f"}
    for option in explained & taken.keys():
        assert len({default for _, default in taken[option] if default is not inspect.Parameter.empty}) <= 1, option
