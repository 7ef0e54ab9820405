"""Tables whose rows are Python expressions, as data: `tables/*.toml` holds a row's name, and beside it what it is."""

import functools
import tomllib
from pathlib import Path

FOLDER = Path(__file__).with_name("tables")
TEXTS = Path(__file__).parent / "programs" / "processes.toml"


@functools.cache
def _read(file):
    path = FOLDER / f"{file}.toml"
    text = path.read_text("utf-8")
    lines = text.splitlines()
    return path, lines, tomllib.loads(text)


def read_table(file, name, names):
    """The rows of a table as {name of the row: value}, in the names of who asks: errors tell the line in the table."""
    path, lines, tables = _read(file)
    number, found = lines.index(f"[{name}]"), {}
    for row, expression in tables[name].items():
        number = next(i for i, line in enumerate(lines) if i > number and line.startswith((f'"{row}" =', f"{row} =")))
        first = number + expression.startswith("\n")
        found[row] = eval(compile("\n" * first + f"({expression})", str(path), "eval"), names)
    return found


def read_data(file, name):
    """A table as it stands there."""
    return _read(file)[2][name]


def read_rows(file, name, names):
    """The rows of a table without names, each evaluated in the names of who asks."""
    path, _, tables = _read(file)
    return [eval(compile(f"({expression})", str(path), "eval"), names) for expression in tables[name]]


def read_text(module, name):
    """The text of a program that a test module runs in a process of its own, or of a file that it writes."""
    return tomllib.loads(TEXTS.read_text("utf-8"))[module][name]
