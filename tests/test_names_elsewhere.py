"""What people who know another library try first is answered with what to write."""

import importlib

from tapelab import derivatives, optimize
from tapelab.process.names_elsewhere import ours
from tapelab.runtime import tf

import pytest

TABLES = {module.__name__: ours(module.__name__) for module in (derivatives, optimize)}
W = tf.Variable([1.0, 2.0])


def square(x):
    return tf.reduce_sum(x**2)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, table in TABLES.items() for name in table])
def test_a_name_from_elsewhere_is_refused_with_ours(module, name):
    room = importlib.import_module(module)
    ours = TABLES[module][name]
    assert name not in room.__all__
    assert not hasattr(room, name)
    with pytest.raises(AttributeError) as raised:
        getattr(room, name)
    assert str(raised.value) == f"{module} has no {name!r}; did you mean {ours}?"
    with pytest.raises(ImportError) as raised:
        exec(f"from {module} import {name}", {})
    assert str(raised.value) == f"{module} has no {name!r}; did you mean {ours}?"


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, table in TABLES.items() for name in table])
def test_what_is_offered_is_there(module, name):
    offered = TABLES[module][name].split("(")[0]
    room, _, attribute = offered.rpartition(".")
    assert attribute in importlib.import_module(room or module).__all__


def test_any_other_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match=r"^module 'tapelab.derivatives' has no attribute 'nothing'$") as raised:
        derivatives.nothing  # noqa: B018
    assert (raised.value.name, raised.value.obj) == ("nothing", derivatives)
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from tapelab.derivatives import nothing", {})
    exec("from tapelab.derivatives import *", {})
