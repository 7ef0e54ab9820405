"""Which runs a command line asks for: parameters, sweeps, and names that stay in their folder."""

import json
import re

from tapelab.collection import catalogue
from tapelab.collection.running import sweep
from tapelab.process.files import write_whole

import nbformat
import pytest

TWO = {
    "00_one": ["seed = 0\nrate = 0.1\nname = 'x'\nfast = True\nsizes = [1, 2]"],
    "01_two": ["seed = 1\ndepth: int = 3"],
}
HOSTILE = [
    "__import__('os').system('touch owned')",
    '"""\nimport os\n"""',
    "../../etc/passwd",
    "..",
    "{seed.__class__}",
    "tab\tnewline\nreturn\r",
    "ünï-cødé ∇ 🙂",
    "x" * 5000,
    "",
    "<script>alert(1)</script>",
    "a,b=c",
]


@pytest.fixture
def collection(tmp_path, make_collection):
    return make_collection(tmp_path / "notebooks", TWO)


def runs(collection, given=(), sweeps=()):
    return sweep.expand(collection, collection.notebooks, given, sweeps)


def test_without_parameters_each_notebook_runs_once_under_its_own_name(collection):
    assert [(run.name, run.notebook, run.parameters) for run in runs(collection)] == [
        ("00_one", "00_one", {}),
        ("01_two", "01_two", {}),
    ]


def test_a_parameter_goes_to_the_notebooks_that_have_it_and_becomes_a_value_of_its_type(collection):
    given = [("seed", "7"), ("rate", "1"), ("name", "y"), ("fast", "False")]
    one, two = runs(collection, given)
    assert one.parameters == {"seed": 7, "rate": 1.0, "name": "y", "fast": False}
    assert [type(value) for value in one.parameters.values()] == [int, float, str, bool]
    assert two.parameters == {"seed": 7}


def test_sweeps_give_every_combination_and_no_run_twice(collection):
    planned = runs(collection, [("depth", "4")], [("seed", "0..2"), ("rate", "0.1,0.01")])
    assert [run.name for run in planned] == [
        "00_one__seed=0,rate=0.1",
        "00_one__seed=0,rate=0.01",
        "00_one__seed=1,rate=0.1",
        "00_one__seed=1,rate=0.01",
        "00_one__seed=2,rate=0.1",
        "00_one__seed=2,rate=0.01",
        "01_two__depth=4,seed=0",
        "01_two__depth=4,seed=1",
        "01_two__depth=4,seed=2",
    ]
    assert planned[-1].parameters == {"depth": 4, "seed": 2}


def test_ranges_include_both_ends_and_mix_with_values(collection):
    planned = runs(collection, (), [("seed", "-2..1,5")])
    assert [run.parameters["seed"] for run in planned if run.notebook == "01_two"] == [-2, -1, 0, 1, 5]


@pytest.mark.parametrize(
    ("given", "sweeps", "message"),
    [
        ([("sed", "1")], [], "no chosen notebook has a parameter 'sed'; known: depth, fast, name, rate, seed, sizes"),
        ([("seed", "one")], [], "parameter seed is 'one'; expected a value of type int, like its default, 0"),
        ([("seed", "9" * 5000)], [], "expected a value of type int"),
        ([("rate", "fast")], [], "expected a value of type float"),
        ([("fast", "maybe")], [], "expected a value of type bool"),
        (
            [("sizes", "[3]")],
            [],
            "parameter sizes has the default [1, 2]: a list cannot be given from outside, only bool, ",
        ),
        ([("rate", "nan")], [], "expected a value of type float, like its default, 0.1, and a finite one"),
        ([("name", "\udcff")], [], "parameter name is"),
        ([("seed", "1"), ("seed", "2")], [], "parameter seed is given twice"),
        ([("seed", "1")], [("seed", "2,3")], "parameter seed is given twice"),
        ([], [("seed", "1,2,1")], "has a value twice"),
        ([], [("seed", "1,,2")], "parameter seed is ''"),
        ([], [("seed", "5..1")], "the smaller end first"),
        ([], [("seed", "0..99999999999")], "at most 1000000 values"),
        ([], [("seed", "0..9999"), ("depth", "0..999")], "these are 10010000 runs"),
    ],
)
def test_what_cannot_be_is_refused(collection, given, sweeps, message):
    with pytest.raises(sweep.ParameterError, match=re.escape(message)):
        runs(collection, given, sweeps)


@pytest.mark.parametrize(
    "cell",
    [
        *("seed = 2 * 3", "import os", "%matplotlib inline", "seed =", "a.b = 1", "seed", "x = 1; x += 2", "x: int"),
        *("x = {[1]: 2}", "a, b = 1, 2", "a[0] = 1", "(x := 1)", "x = f'{1}'", "x = inf", "'text'", "x = 1\x00"),
        *("x = " + "[" * 5000 + "]" * 5000, "x = " + "-" * 50_000 + "1", "x = " + "9" * 5000, "def f(): pass"),
    ],
)
def test_a_cell_of_parameters_with_more_than_literals_is_refused(tmp_path, cell, make_collection):
    with pytest.raises(sweep.ParameterError, match="must hold lines 'name = literal' only") as refused:
        runs(make_collection(tmp_path / "n", {"00_one": [cell]}))
    assert len(str(refused.value)) < 3000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no .*00_one.ipynb; make it with"),
        ("{", "00_one.ipynb is not a notebook: "),
        ("{}", "00_one.ipynb is not a notebook: "),
        ("[]", "00_one.ipynb is not a notebook: "),
        ("[" * 100_000, "00_one.ipynb is not a notebook: "),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [7]}', "00_one.ipynb is not a notebook: "),
        ('{"nbformat": 99, "nbformat_minor": 5, "metadata": {}, "cells": []}', "is not a notebook: "),
        ("\ufeff{}", "is not a notebook: "),
    ],
)
def test_a_missing_or_damaged_notebook_is_named(collection, content, message):
    path = collection.folder / "00_one.ipynb"
    path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    with pytest.raises(catalogue.NotebookError, match=message):
        runs(collection)


# What may stand in a notebook's cell of parameters, or in its file, and what is said about it.
ODD = {
    "tags that are null": ({"tags": None}, "at cells/0/metadata/tags, None is not of type 'array'"),
    "tags in words": ({"tags": "parameters"}, "at cells/0/metadata/tags, 'parameters' is not of type 'array'"),
    "a tag that is a number": ({"tags": ["parameters", 7]}, "at cells/0/metadata/tags/1, 7 is not of type 'string'"),
    "metadata that are null": (None, "The notebook is invalid"),
}


@pytest.mark.parametrize(("metadata", "message"), ODD.values(), ids=ODD)
def test_a_notebook_that_is_not_valid_is_refused(collection, metadata, message):
    path = collection.folder / "00_one.ipynb"
    data = json.loads(path.read_text())
    data["cells"][0]["metadata"] = metadata
    path.write_text(json.dumps(data))
    with pytest.raises(catalogue.NotebookError, match=re.escape(f"{path} is not a notebook: {message}")):
        runs(collection)


@pytest.mark.parametrize("kinds", [["code", "code"], ["markdown"], ["markdown", "code"]])
def test_values_must_have_one_place_to_go(collection, kinds):
    new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}
    cells = [new[kind]("seed = 0", metadata={"tags": ["parameters"]}) for kind in kinds]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), collection.folder / "00_one.ipynb")
    with pytest.raises(sweep.ParameterError, match="expected one code cell tagged 'parameters', and found these: "):
        runs(collection)


def test_a_long_name_and_many_parameters_make_a_file_name_that_fits(tmp_path, make_collection):
    name = "00_" + "漢" * 32
    collection = make_collection(tmp_path / "n", {name: ["\n".join(f"parameter_{n} = ''" for n in range(30))]})
    (run,) = runs(collection, [(f"parameter_{n}", "漢" * 80) for n in range(30)])
    write_whole(tmp_path / f"{run.name}.ipynb", b"")


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_makes_a_harmless_name(collection, value):
    one, two = runs(collection, [("name", value)])
    assert one.parameters == {"name": value}
    assert re.fullmatch(r"00_one__[a-z0-9._+=,~-]*", one.name)
    assert ".." not in one.name
    assert len(one.name) < 200
    assert two.name == "01_two"


def test_one_value_with_separators_is_not_two_values(tmp_path, make_collection):
    collection = make_collection(tmp_path / "n", {"00_one": ["a = ''\nb = ''"]})
    names = {
        runs(collection, [("a", "1,b=2")])[0].name,
        runs(collection, [("a", "1"), ("b", "2")])[0].name,
        runs(collection, [("a", "1"), ("b", "2,")])[0].name,
    }
    assert len(names) == 3
