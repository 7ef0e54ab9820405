"""What a function reads from outside: a change of it is noticed, or a warning at the first call names it."""

import collections
import contextvars
import dataclasses
import datetime
import enum
import functools
import importlib
import inspect
import io
import itertools
import locale
import math
import operator
import os
import pathlib
import random
import threading
import time
import types
import warnings
import weakref

from tapelab.derivatives import OutsideWarning, hessian, jacobian, value_and_gradient
from tapelab.derivatives.machinery.outside.outside import Outside
from tapelab.optimize import newton
from tapelab.runtime import tf

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

ONE = tf.constant(1.0)
FACTOR = 2.0
GRAPH = {"compile": "graph"}


class Base:
    inherited = 2.0


class Double:
    """A descriptor."""

    def __get__(self, instance, owner):
        return 2 * instance.half


class Thing(Base):
    """Everything that operations on an object may call: each gives `v`, whose name no function below has."""

    own = 2.0
    double = Double()

    def __init__(self):
        self.v, self.half = 2.0, 1.0

    def __mul__(self, x):
        return x * self.v

    __rmul__ = __mul__

    def __float__(self):
        return self.v

    def __index__(self):
        return int(self.v)

    def __len__(self):
        return int(self.v)

    def __iter__(self):
        return iter([self.v])

    def __enter__(self):
        return self.v

    def __exit__(self, *exception):
        pass

    def __getitem__(self, index):
        return self.v

    def __contains__(self, item):
        return self.v == 3.0

    def __eq__(self, other):
        return self.v == other

    __hash__ = object.__hash__

    def __call__(self, x):
        return x * self.v

    def __getattr__(self, name):
        if name != "other":
            raise AttributeError(name)
        return self.__dict__["v"]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.v, np.float32)

    def __format__(self, how):
        return str(self.v)

    @property
    def read(self):
        return self.v

    @functools.singledispatchmethod
    def dispatched(self, x):
        return x * self.v


def only(*names):
    """Make an object with these methods of a `Thing` alone: no other code names `v`."""
    parts = {name: vars(Thing)[name] for name in names}
    return lambda: type("Only", (), {"__init__": Thing.__init__, "__module__": __name__, **parts})()


class Pair:
    __match_args__ = ("v",)

    def __init__(self):
        setattr(self, "V".lower(), 2.0)


class Slots:
    __slots__ = ("v",)

    def __init__(self):
        self.v = 2.0


class Meta(type):
    @property
    def of_all(cls):
        return cls.hidden


@dataclasses.dataclass
class Data:
    v: float = 2.0


class Colour(enum.Enum):
    RED = 2.0


class Module(tf.Module):
    def __init__(self):
        super().__init__()
        self.v = tf.Variable(2.0)


class MyDict(dict):
    factor = 2.0


def of(make, f, change):
    """A case from an object: makes it, a function of it, and how it comes to give 3 for 2."""

    def case():
        thing = make()
        return functools.partial(f, thing), lambda: change(thing)

    return case


def on(read, make=Thing, change=lambda thing: setattr(thing, "v", 3.0)):
    """A case of a closure over an object, multiplied with what is read from it."""

    def case():
        thing = make()
        return lambda x: x * read(thing), lambda: change(thing)

    return case


def with_statement(thing):
    with thing as v:
        return v


def matched(thing):
    match thing:
        case Pair(found):
            return found


def within(thing):
    return 3.0 if "it" in thing else 2.0


def nested():
    thing = types.SimpleNamespace(parts=[{"inner": Thing()}])
    return lambda x: x * float(thing.parts[0]["inner"]), lambda: setattr(thing.parts[0]["inner"], "v", 3.0)


def closures():
    v = 2.0

    def inner():
        def innermost():
            return v

        return innermost()

    def change():
        nonlocal v
        v = 3.0

    return lambda x: x * inner(), change


def defaults():
    def f(x, factors=[2.0]):  # noqa: B006
        return x * factors[0]

    return f, lambda: f.__defaults__[0].__setitem__(0, 3.0)


def function_attribute():
    def f(x):
        return x * f.factor

    f.factor = 2.0
    return f, lambda: setattr(f, "factor", 3.0)


def cached():
    @functools.lru_cache
    def table():
        return thing.v

    thing = Thing()

    def change():
        thing.v = 3.0
        table.cache_clear()

    return lambda x: x * table(), change


def dispatched():
    @functools.singledispatch
    def factor(x):
        return 2.0

    return lambda x: x * factor(1), lambda: factor.register(int, lambda x: 3.0)


def meta():
    kind = Meta("Kind", (), {"hidden": 2.0, "__module__": __name__})
    return lambda x: x * kind.of_all, lambda: setattr(kind, "hidden", 3.0)


def local():
    store = threading.local()
    store.v = 2.0
    return lambda x: x * store.v, lambda: setattr(store, "v", 3.0)


def context():
    variable = contextvars.ContextVar("v", default=2.0)
    return lambda x: x * variable.get(), lambda: variable.set(3.0)


def environment(read):
    def case():
        os.environ["TAPELAB_FACTOR"] = "2"
        return lambda x: x * float(read()), lambda: os.environ.update(TAPELAB_FACTOR="3")

    return case


def appears_later():
    thing = types.SimpleNamespace()
    return lambda x: x * getattr(thing, "late", 2.0), lambda: setattr(thing, "late", 3.0)


def another_dictionary():
    thing = Thing()
    return lambda x: x * thing.v, lambda: setattr(thing, "__dict__", {"v": 3.0})


def another_class():
    thing = Data()
    kind = type("Other", (Data,), {"v3": property(lambda self: 3.0), "__module__": __name__})
    return lambda x: x * getattr(thing, "v3", 2.0), lambda: setattr(thing, "__class__", kind)


def special_method_replaced():
    kind = type("Kind", (Thing,), {"__module__": __name__})
    thing = kind()
    return lambda x: thing * x, lambda: setattr(kind, "__mul__", lambda self, x: x * 3.0)


def variable_of_a_module():
    module = Module()
    f = lambda x: x * tf.add_n(module.trainable_variables)  # noqa: E731
    return f, lambda: setattr(module, "v", tf.Variable(3.0))


def item(thing, key, value=3.0):
    thing[key] = value


NEW = {
    "__mul__": on(lambda thing: 1.0 * thing, only("__rmul__")),
    "__float__": on(float, only("__float__")),
    "__index__": on(operator.index, only("__index__")),
    "__len__": on(len, only("__len__")),
    "__iter__": on(lambda thing: next(iter(thing)), only("__iter__")),
    "unpacked": on(lambda thing: next(iter(thing)), only("__iter__")),
    "__enter__": on(with_statement, only("__enter__", "__exit__")),
    "__getitem__": on(lambda thing: thing[0], only("__getitem__")),
    "__contains__": on(within, only("__contains__")),
    "__eq__": on(lambda thing: 3.0 if thing == 3.0 else 2.0, only("__eq__", "__hash__")),
    "__call__": on(lambda thing: thing(1.0), only("__call__")),
    "__getattr__": on(lambda thing: thing.other, only("__getattr__")),
    "__array__": on(np.asarray, only("__array__")),
    "__format__": on(lambda thing: float(f"{thing}"), only("__format__")),
    "property": on(lambda thing: thing.read),
    "descriptor": on(lambda thing: thing.double, change=lambda thing: setattr(thing, "half", 1.5)),
    "singledispatchmethod": on(lambda thing: thing.dispatched(1.0)),
    "class pattern": on(matched, Pair),
    "getattr, a computed name": on(lambda thing: getattr(thing, "V".lower()), only()),
    "vars": on(lambda thing: next(iter(vars(thing).values())), only()),
    "__dict__": on(lambda thing: next(iter(thing.__dict__.values())), only()),
    "attrgetter": on(lambda thing: operator.attrgetter("V".lower())(thing), only()),
    "astuple": on(lambda thing: dataclasses.astuple(thing)[0], Data),
    "an equal dataclass": on(lambda thing: 3.0 if thing == Data(3.0) else 2.0, Data),
    "__slots__": on(lambda thing: thing.v, Slots),
    "__slots__, a computed name": on(lambda thing: getattr(thing, "V".lower()), Slots),
    "namespace": on(lambda thing: float(repr(thing)[-4:-1]), lambda: types.SimpleNamespace(v=2.0)),
    "class attribute": on(
        lambda thing: thing.own, lambda: type("Kind", (Thing,), {}), lambda kind: setattr(kind, "own", 3.0)
    ),
    "inherited": on(
        lambda thing: thing.inherited, lambda: type("Kind", (Thing,), {})(),
        lambda thing: setattr(type(thing), "inherited", 3.0),
    ),
    "UserDict": on(lambda d: d["a"], lambda: collections.UserDict(a=2.0), lambda d: item(d, "a")),
    "UserList": on(lambda d: d[0], lambda: collections.UserList([2.0]), lambda d: item(d, 0)),
    "ChainMap": on(lambda d: d["a"], lambda: collections.ChainMap({}, {"a": 2.0}), lambda d: item(d.maps[1], "a")),
    "deque": on(lambda d: d[0], lambda: collections.deque([2.0]), lambda d: item(d, 0)),
    "OrderedDict": on(
        lambda d: next(iter(d)), lambda: collections.OrderedDict({2: 1, 3: 1}), lambda d: d.move_to_end(2)
    ),
    "mapping proxy": on(
        lambda d: d[0]["a"], lambda: ((lambda d: (types.MappingProxyType(d), d))({"a": 2.0})),
        lambda d: item(d[1], "a"),
    ),
    "dict subclass": on(lambda d: d.factor, MyDict, lambda d: setattr(d, "factor", 3.0)),
    "bytearray": on(lambda d: float(d[0]), lambda: bytearray([2]), lambda d: item(d, 0, 3)),
    "a set's object": on(lambda d: float(next(iter(d))), lambda: {Thing()}, lambda d: setattr(next(iter(d)), "v", 3.0)),
    "a tuple's object": on(lambda d: float(d[0]), lambda: (Thing(),), lambda d: setattr(d[0], "v", 3.0)),
    "array": on(lambda d: d[0], lambda: np.array([2.0], "f"), lambda d: item(d, 0)),
    "array of objects": on(lambda d: d[0].v, lambda: np.array([Data()]), lambda d: setattr(d[0], "v", 3.0)),
    "enum": on(
        lambda d: d.value, lambda: enum.Enum("E", {"A": 2.0}, module=__name__).A,
        lambda d: setattr(d, "_value_", 3.0),
    ),
    "weak reference": on(
        lambda d: float(d[0]()), lambda: (lambda thing: (weakref.ref(thing), thing))(Thing()),
        lambda d: setattr(d[1], "v", 3.0),
    ),
    "partial": of(Thing, lambda thing, x: x * float(thing), lambda thing: setattr(thing, "v", 3.0)),
    "bound method": on(lambda append: append()[0], lambda: [2.0].copy, lambda copy: item(copy.__self__, 0)),
    "nested": nested,
    "closures": closures,
    "defaults": defaults,
    "function attribute": function_attribute,
    "lru_cache": cached,
    "singledispatch": dispatched,
    "metaclass": meta,
    "threading.local": local,
    "ContextVar": context,
    "os.environ": environment(lambda: os.environ["TAPELAB_FACTOR"]),
    "os.getenv": environment(lambda: os.getenv("TAPELAB_FACTOR")),
    "os.environ.get": environment(lambda: os.environ.get("TAPELAB_FACTOR")),
    "appears later": appears_later,
    "another dictionary": another_dictionary,
    "another class": another_class,
    "special method replaced": special_method_replaced,
    "variables of a tf.Module": variable_of_a_module,
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment_as_it_was(monkeypatch):
    monkeypatch.setenv("TAPELAB_FACTOR", "2")


@pytest.mark.parametrize("name", NEW)
def test_a_change_is_noticed_and_not_warned_of(name):
    f, change = NEW[name]()
    held = value_and_gradient(f, **GRAPH)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        assert float(held(ONE)[1]) == 2.0
        change()
        assert float(held(ONE)[1]) == 3.0


# What cannot be watched.


def generator():
    yield from itertools.repeat(2.0)


def scaler():
    """An object of a library."""
    made = StandardScaler()
    made.scale_ = 2.0
    return made


class Counter:
    def __init__(self):
        self.count = 1.0

    def __call__(self):
        self.count += 1.0
        return self.count


def import_inside(x):
    import random as r

    return x * r.random()


def alias(x):
    numbers = np.random
    return x * numbers.uniform()


def held(make, read):
    def case():
        thing = make()
        return lambda x: x * read(thing)

    return case


def in_an_attribute():
    thing = Thing()
    thing.parts = {"scaler": scaler()}
    return lambda x: x * thing.parts["scaler"].scale_


WARNED = {
    "next": (held(lambda: itertools.repeat(2.0), next), "thing.*another item"),
    "generator": (held(generator, next), "thing.*another item"),
    "list iterator": (held(lambda: iter([2.0] * 9), next), "thing.*another item"),
    "time.time": (lambda: lambda x: x * time.time(), r"time\.time.*clock"),
    "datetime.now": (lambda: lambda x: x * datetime.datetime.now().year, r"datetime\.datetime\.now.*clock"),
    "date.today": (lambda: lambda x: x * datetime.date.today().year, "today.*clock"),
    "random.random": (lambda: lambda x: x * random.random(), r"random\.random.*tf\.random"),
    "imported inside": (lambda: import_inside, r"random\.random|r\.random"),
    "np.random": (lambda: lambda x: x * np.random.rand(), r"np\.random\.rand \(.*line \d+\) draws"),
    "an alias": (lambda: alias, "uniform.* draws"),
    "a method": (held(lambda: np.random.rand, lambda rand: rand()), "draws"),
    "np.random.Generator": (held(lambda: np.random.default_rng(0), lambda rng: rng.random()), "thing.*draws"),
    "random.Random": (held(random.Random, lambda rng: rng.random()), "thing.*draws"),
    "no seed": (lambda: lambda x: x * np.random.default_rng().random(), "default_rng.*draws"),
    "open": (lambda: lambda x: x * len(open(__file__).read()), "open.*files"),  # noqa: PTH123, SIM115
    "Path.read_text": (lambda: lambda x: x * len(pathlib.Path(__file__).read_text()), "read_text.*files"),
    "an open file": (held(lambda: io.StringIO("2" * 99), lambda file: float(file.read(1))), "thing.*files"),
    "locale": (lambda: lambda x: x * len(locale.localeconv()), "localeconv.*machine"),
    "globals": (lambda: lambda x: x * globals()["FACTOR"], "globals.*computed name"),
    "eval": (lambda: lambda x: x * eval("FACTOR"), "eval.*computed name"),
    "importlib": (lambda: lambda x: x * importlib.import_module("math").pi, "import_module.*computed name"),
    "frames": (lambda: lambda x: x * inspect.currentframe().f_back.f_lineno, "currentframe.*computed name"),
    "an object of a library": (held(scaler, lambda scaler: scaler.scale_), "thing.*Scaler of the library sklearn"),
    "in an attribute": (in_an_attribute, r"thing\.parts\['scaler'\].*Scaler"),
    "a large array": (held(lambda: np.ones(20_000, "f"), lambda array: array[0]), "thing.*large"),
    "a long list": (held(lambda: [2.0] * 1001, lambda values: values[0]), "thing.*1000 items"),
    "what it changes itself": (held(Counter, lambda counter: counter()), "count.*changed by the function"),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_cannot_be_watched_is_named_once_at_the_callers_line(name):
    make, words = WARNED[name]
    derivative = value_and_gradient(make(), **GRAPH)
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(OutsideWarning, match=rf"value_and_gradient\(.*\n- .*{words}") as caught:
        derivative(ONE)
    told = [warning for warning in caught if warning.category is OutsideWarning]
    assert [(warning.filename, warning.lineno) for warning in told] == [(__file__, line)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        derivative(ONE)
        derivative(tf.constant([1.0, 2.0])[0])


def test_a_minimisation_warns_at_the_line_that_asked_for_it():
    w = tf.Variable(0.0)
    with pytest.warns(OutsideWarning, match=r"np\.random\.rand") as caught:
        newton(lambda: (w - np.random.rand()) ** 2, wrt=w, iterations=1)
    assert {warning.filename for warning in caught if warning.category is OutsideWarning} == {__file__}


def test_what_runs_in_every_call_is_not_warned_of():
    numbers = iter([2.0, 3.0])
    eager = value_and_gradient(lambda x: x * (next(numbers, 4.0) if x > 0 else 0.0), compile="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        assert len({float(eager(ONE)[1]) for _ in range(3)}) > 1


# Ordinary functions.


class Trainer:
    """Beside its loss it has what no loss reads."""

    def __init__(self):
        self.weight, self.rng, self.data = tf.Variable(2.0), np.random.default_rng(0), iter([1.0])
        self.scaler, self.step, self.history = scaler(), 0, []

    def loss(self, x):
        return self.weight * x**2

    def train(self):
        self.history.append((time.time(), self.rng.random(), next(self.data), self.scaler.scale_))


def keras_model():
    layers, keras = tf.keras.layers, tf.keras
    model = keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(4, "gelu", kernel_regularizer="l2"),
            layers.Dropout(0.5),
            layers.BatchNormalization(),
            layers.Dense(1, kernel_initializer=keras.initializers.RandomNormal(seed=1)),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    return lambda x: tf.reduce_sum(model(tf.ones((2, 3)) * x, training=True)) + tf.add_n(model.losses)


FROZEN = np.ones(20_000, "f")
FROZEN.flags.writeable = False
TEN = tf.random.Generator.from_seed(1)

ORDINARY = {
    "numbers": lambda: lambda x: x * math.pi * np.pi * FACTOR + np.float32(2),
    "a fixed generator": lambda: lambda x: x * np.random.default_rng(3).random(),
    "TensorFlow's random numbers": lambda: lambda x: x * tf.random.uniform([]) * TEN.uniform([]),
    "a frozen array": lambda: lambda x: x * FROZEN[0],
    "a long tuple": held(lambda: (1.0,) * 5000, lambda values: values[0]),
    "an optimiser and a metric": held(
        lambda: (tf.keras.optimizers.Adam(), tf.keras.metrics.Mean(), tf.keras.losses.Huber()),
        lambda parts: parts[2](tf.zeros(1), tf.ones(1)),
    ),
    "Python's functions": lambda: lambda x: x * sum(map(float, range(3))) + functools.reduce(operator.mul, [x, x]),
    "a Keras model": keras_model,
    "a method beside others": lambda: Trainer().loss,
    "a tf.function": lambda: tf.function(lambda x: x * FACTOR),
    "a derivative": lambda: (lambda g: lambda x: g(x)[1] * x)(value_and_gradient(lambda x: x**2)),
    "a path and an enum": held(lambda: (pathlib.Path("a"), Colour.RED), lambda both: len(both[0].name) * both[1].value),
    "a named tuple": held(lambda: collections.namedtuple("Pair", "a b")(2.0, tf.sin), lambda pair: pair.b(pair.a)),
    "a trace counter": held(list, lambda traces: traces.append(1) or 1.0),
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("make", [value_and_gradient, hessian, jacobian])
def test_ordinary_functions_are_not_warned_of(name, make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        make(ORDINARY[name](), unconnected="zero", **GRAPH)(ONE)


def test_what_no_code_can_read_causes_no_trace():
    trainer, traces = Trainer(), []
    derivative = value_and_gradient(lambda x: traces.append(x) or trainer.loss(x), **GRAPH)
    derivative(ONE)
    count = len(traces)
    trainer.step += 1
    trainer.history.append(1.0)
    derivative(ONE)
    assert len(traces) == count


# Keras.


def test_a_regulariser_s_attribute_and_another_loss_are_noticed():
    x = tf.constant([[1.0, 2.0]])
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_regularizer="l2")])
    model.compile(loss="mse")

    def loss():
        return model.compute_loss(x, tf.ones((1, 1)), model(x))

    gradient = value_and_gradient(loss, wrt=model.trainable_variables, **GRAPH)
    changes = [
        lambda: None,
        lambda: model.compile(loss="mae"),
        lambda: setattr(model.layers[0].kernel.regularizer, "l2", 9.0),
        lambda: setattr(model.layers[0].kernel, "regularizer", tf.keras.regularizers.L1(3.0)),
    ]
    values = []
    for change in changes:
        change()
        values.append(float(gradient()[0]))
        np.testing.assert_allclose(values[-1], loss(), rtol=1e-5)
    assert len(set(values)) == 4


def test_a_thread_has_its_own_values():
    store, found = threading.local(), []
    store.v = 2.0
    gradient = value_and_gradient(lambda x: x * store.v, **GRAPH)
    gradient(ONE)

    def work():
        store.v = 5.0
        found.append(float(gradient(ONE)[1]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [5.0]
    assert float(gradient(ONE)[1]) == 2.0


def test_a_thousand_objects_are_compared_and_more_are_named(monkeypatch):
    monkeypatch.setattr("tapelab.derivatives.machinery.outside.reach._OBJECTS", 5)
    things = [Thing() for _ in range(9)]
    assert "first 5 objects" in " ".join(Outside(lambda: things).unseen.values())
