"""The Python of the README and of the site's pages runs, and prints what they say that it prints."""

import re
from pathlib import Path

import pytest
import tensorflow as tf
import yaml

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "site").glob("*.md")))
FOUND = {path.name: path.read_text(encoding="utf-8") for path in PAGES}
PHRASES = ("cheat_sheet.md", "phrasebook.md")  # tests/test_phrases.py runs these
GENERATED = re.compile(
    r"<!-- (\w+): generated.*?<!-- \1: end -->", re.DOTALL
)  # tests/test_explain_*.py run what is there
BLOCKS = [
    (name, *block)
    for name, text in FOUND.items()
    if name not in PHRASES
    for block in re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", GENERATED.sub("", text), flags=re.DOTALL)
]


def test_there_is_python_in_them():
    assert [name for name, _, _ in BLOCKS] == [
        "README.md",
        *["derivatives_by_task.md"] * 9,
        *["gradient_is_nan_or_zero.md"] * 2,
        *["gradient_is_none.md"] * 7,
        "index.md",
        "retracing.md",
        *["which_derivative.md"] * 4,
    ]


def test_tensorflows_start_up_log_is_not_the_first_that_a_reader_sees():
    """Where tapelab is imported first, it holds TensorFlow's back (`tests/test_runtime.py`)."""
    both = [code for _, code, _ in BLOCKS if "import tensorflow" in code and "from tapelab" in code]
    assert len(both) > 10
    assert [code for code in both if code.index("from tapelab") > code.index("import tensorflow")] == []


# Once each: the README shows two blocks of the pages.
@pytest.mark.dear(keep=3)
@pytest.mark.parametrize(("code", "expected"), dict.fromkeys((code, expected) for _, code, expected in BLOCKS))
def test_it_runs_and_prints_what_it_says(fresh, code, expected):
    assert fresh(code, name="program.py") == expected


def test_the_readme_is_short():
    """What is open when it is opened: the parts after the first are folded."""
    first, *folded = re.findall(r"<details( open)?>(.*?)</details>", FOUND["README.md"], flags=re.DOTALL)
    assert first[0]
    assert len(folded) == 4
    assert not any(is_open for is_open, _ in folded)
    shown = re.sub(r"<details>.*?</details>|\]\([^)]*\)|<[^>]*>", "", FOUND["README.md"], flags=re.DOTALL)
    assert len(re.findall(r"\w[\w.'-]*", shown)) <= 700
    assert "colab-badge" not in FOUND["README.md"]


def test_links_to_files_lead_to_files():
    for path in PAGES:
        for target in re.findall(r"\]\((?!\w+:|#)([^)#]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


NAMED = {"first aid": ["28"], "hard cases": ["29"]}


def test_a_notebooks_number_or_name_links_to_that_notebook():
    """A renamed notebook takes its links with it, and a link to the wrong one leads somewhere, too."""
    seen = 0
    for path in PAGES:
        for text, number in re.findall(r"\[([^\]]*)\]\((?:\.\./)?notebooks/(\d\d)_", path.read_text(encoding="utf-8")):
            named = NAMED.get(text.lower(), re.findall(r"^(?:Notebook )?(\d\d)\b", text, re.IGNORECASE))
            assert not named or named == [number], f"{path.name}: [{text}] leads to {number}"
            seen += len(named)
    assert seen > 20


def test_the_picture_of_a_tape_shows_what_a_tape_gives():
    """Its lines are a program, the boxes beside them the values, and the derivatives of the last."""
    picture = (ROOT / "site" / "_static" / "tape.svg").read_text(encoding="utf-8")
    lines = re.findall(r"<text[^>]*>(\w+ = [^<]*)</text>", picture.partition('class="code"')[2])[:4]
    made = {"tf": tf}
    with tf.GradientTape(persistent=True) as tape:
        exec("\n".join(lines), made)
    names = [line.split()[0] for line in lines]
    values = re.findall(r'class="moves value".*?<text[^>]*>([^<]*)<', picture)
    assert [float(value) for value in values] == [float(made[name]) for name in names]
    gradients = dict(re.findall(r">∂loss/∂(\w+) = ([^<]*)<", picture))
    assert {name: float(gradients[name]) for name in names} == {
        name: float(tape.gradient(made["loss"], made[name])) for name in names
    }


def test_the_readme_and_the_start_page_open_alike():
    """What it is and for whom, the picture, where to go, the program with its answer."""
    readme, start = (FOUND[name] for name in ("README.md", "index.md"))
    assert readme.split("\n\n")[1] == start.split("\n\n")[1]
    for page, picture in ((readme, "(site/_static/tape.svg)"), (start, "(_static/tape.svg)")):
        assert picture in "".join(page.split("\n\n")[2:5])
        assert "[Start with notebook 00](" in "".join(page.split("\n\n")[2:5])
    first = [next(block for name, *block in BLOCKS if name == page) for page in ("README.md", "index.md")]
    assert first[0] == first[1]


def test_the_readme_says_in_one_row_where_to_go():
    row = FOUND["README.md"].split("\n\n")[3:5]
    for where in (
        "https://tapelab.github.io/tapelab/",
        "colab-main/notebooks/00_start_here.ipynb",
        "git clone",
        "make lab",
    ):
        assert where in "".join(row)


def test_the_citation_is_that_of_the_file():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for said in (cited["title"], cited["version"], cited["authors"][0]["name"]):
        assert said in FOUND["README.md"].partition("```bibtex")[2]
