"""How long a notebook takes is counted: words, open cells, exercises."""

from tapelab.collection.publishing import times

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

WORDS = "word " * 225  # a minute
EXERCISE = f"### Exercise: one (5 min)\n\n{WORDS * 4}"


def of(*cells):
    return times.of(nbformat.v4.new_notebook(cells=list(cells)))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([], (1, 0, 0)),
        ([new_markdown_cell(WORDS * 3)], (3, 0, 0)),
        ([new_markdown_cell(WORDS), *[new_code_cell("f(x)") for _ in range(5)]], (4, 0, 0)),
        ([new_markdown_cell(WORDS * 2), new_markdown_cell(WORDS * 9, metadata={"tags": ["catalogue"]})], (2, 0, 0)),
        ([new_markdown_cell(WORDS * 2), new_code_cell("", metadata={"tags": ["check"]})], (2, 0, 0)),
        ([new_markdown_cell(f"## 2. Going further: more\n\n{WORDS * 5}")], (1, 5, 0)),
        ([new_markdown_cell(f"## Going further\n\n{WORDS * 5}"), new_markdown_cell(f"## Recap\n{WORDS}")], (1, 5, 0)),
        ([new_markdown_cell(f"{WORDS * 2}\n\n{EXERCISE}"), new_code_cell("...")], (2, 0, 5)),
        ([new_markdown_cell("### Exercise: one (5 min)"), new_markdown_cell("### Exercise: two (7 min)")], (1, 0, 12)),
    ],
)  # fmt: skip
def test_minutes(cells, expected):
    found = of(*cells)
    assert (found.core, found.further, found.exercises) == expected
    assert found.reading == found.core + found.further


def test_addresses_and_rules_are_not_read():
    links = " ".join(f"[a](https://example.org/{n})" for n in range(200))
    assert of(new_markdown_cell(links)).core == 1
    assert times._words("| a | b |\n|---|---|\n| `c` | **d** |") == ["a", "b", "`c`", "d"]


def test_the_time_to_work_through_it_is_a_multiple_of_a_quarter_of_an_hour():
    assert of(new_markdown_cell(WORDS)).working == 15
    assert of(new_markdown_cell(WORDS * 25), *[new_markdown_cell(EXERCISE)] * 7).working == 105  # 1.7 * (25 + 35) = 102
