"""The help of the command, and what it says of itself."""

import re
import shlex
import tomllib
from pathlib import Path

from tapelab.collection.cli import main
from tapelab.collection.commandline import PARTS

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[1]


def told(*arguments, code=0):
    done = CliRunner().invoke(main, arguments, prog_name="tapelab")
    assert done.exit_code == code, done.output
    return done.output


def test_it_tells_its_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert told("--version") == f"tapelab, version {version}\n"


def test_the_help_has_three_parts_and_each_command_stands_in_one():
    text = told("--help")
    starts = [text.index(f"\n{part}:\n") for part in PARTS]
    found = [
        re.findall(r"^  (\w+) ", text[a:b], re.MULTILINE) for a, b in zip(starts, [*starts[1:], None], strict=True)
    ]
    assert found == [["list", "lab"], ["run", "report"], ["colab", "site", "sync"]]
    assert {name for names in found for name in names} == main.commands.keys()


@pytest.mark.parametrize("name", main.commands)
def test_the_help_cuts_no_sentence_and_gives_an_example_that_is_a_command_line(name):
    command = main.commands[name]
    shown = " ".join(told("--help").split())
    sentence = re.match(r".*?(?=\.(\s|$))", command.help, re.DOTALL)[0]
    assert f" {name} {' '.join(sentence.split())}. $ {command.example} " in f"{shown} "
    assert "..." not in shown.partition("Learn:")[2]
    program, called, *arguments = shlex.split(command.example)
    assert (program, called) == ("tapelab", name)
    command.make_context(name, arguments)
    assert f"Example: {command.example}\n" in told(name, "--help")


@pytest.mark.parametrize("option", ["-p", "--parameter"])
def test_a_parameter_as_name_equals_value_is_understood(option):
    for given in (("seed=three",), ("seed", "three")):
        assert "parameter seed is 'three'; expected a value of type int" in told("run", "05", option, *given, code=1)


def test_a_sweep_without_an_end_is_shown_the_form():
    assert "--sweep seed=0..: expected first..last, such as seed=0..9" in told(
        "run", "05", "--sweep", "seed=0..", code=1
    )


def test_who_has_a_notebook_beside_the_others_is_told_how_it_joins_them():
    joins = "A notebook of your own joins them with an entry [[notebook]] in notebooks/collection.toml"
    assert joins in told("run", "99_mine", code=1)


def test_the_version_is_told_without_what_the_command_needs(fresh):
    code = "import sys\n\nsys.modules['click'] = sys.modules['msgspec'] = None\nsys.argv = ['tapelab', '--version']\n"
    assert fresh(f"{code}from tapelab.__main__ import main\n\nmain()\n").startswith("tapelab, version 0.")
