"""What is public is taught: in a notebook, or on a page of the site, by a program that a test runs."""

import inspect
import re
from pathlib import Path

from tapelab import derivatives, explain, optimize

import pytest

ROOT = Path(__file__).parents[1]
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "site").glob("*.md"))
LESSONS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.py"))
# The programs, without the words about them.
PROGRAMS = "\n".join(
    [*re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL), re.sub(r"(?m)^#.*\n", "", LESSONS)],
)
PUBLIC = [(room, name) for room in (derivatives, explain, optimize) for name in room.__all__]
FUNCTIONS = [(room, name) for room, name in PUBLIC if inspect.isfunction(getattr(room, name))]
OTHERS = [(room, name) for room, name in PUBLIC if room is derivatives and (room, name) not in FUNCTIONS]


def _named(pair):
    room, name = pair
    return f"{room.__name__.split('.')[-1]}.{name}"


@pytest.mark.parametrize("pair", FUNCTIONS, ids=_named)
def test_a_public_function_is_used_in_a_program(pair):
    assert re.search(rf"\b{pair[1]}\(", PROGRAMS)


@pytest.mark.parametrize("pair", OTHERS, ids=_named)
def test_what_a_derivative_returns_or_raises_is_named(pair):
    assert re.search(rf"`{pair[1]}[`(]", PAGES)


def test_nothing_is_public_in_two_rooms():
    names = [name for _, name in PUBLIC]
    assert len(names) == len(set(names))
