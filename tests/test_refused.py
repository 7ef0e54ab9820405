"""What is refused is data: `refused.toml` holds programs, the kind of the error and a word of its message."""

import functools
import tomllib
from pathlib import Path

from tapelab import derivatives, explain, optimize
from tapelab.runtime import tf

import numpy as np
import pytest

TABLES = tomllib.loads(Path(__file__).with_name("refused.toml").read_text("utf-8"))
NAMES = {name: getattr(room, name) for room in (derivatives, optimize, explain) for name in room.__all__}
ROWS = [(table, row) for table in TABLES for row in TABLES[table]["refused"]]


@functools.cache
def names_of(table):
    names = NAMES | {"tf": tf, "np": np}
    exec(TABLES[table]["given"], names)
    return names


@pytest.mark.dear(keep=60)
@pytest.mark.parametrize(("table", "row"), ROWS, ids=[row["program"].strip().splitlines()[-1] for _, row in ROWS])
def test_what_is_refused_is_told(table, row):
    ((error, word),) = [(key, told) for key, told in row.items() if key != "program"]
    with pytest.raises(Exception) as raised:  # noqa: PT011 (its kind and a word are looked at below)
        exec(row["program"], dict(names_of(table)))
    assert error in [kind.__name__ for kind in raised.type.__mro__], raised.value
    assert word in str(raised.value)
