"""The ranges of the notebooks' parameters: each number has one, its default lies within; `make ranges` tries them."""

import importlib.util
from pathlib import Path

from tapelab.collection import catalogue

import pytest

ROOT = Path(__file__).parents[1]
CATALOGUE = catalogue.load(ROOT / "notebooks")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ranges = load(ROOT / "ci" / "ranges.py")


@pytest.mark.parametrize("notebook", CATALOGUE.notebooks, ids=lambda notebook: notebook.name)
def test_each_number_has_a_range_in_its_comment_around_its_default(notebook):
    found = ranges.parameters(CATALOGUE.ipynb(notebook))
    missing = {name for name, (_, ends) in found.items() if not ends}
    assert not missing, "a comment has to say: between A and B"
    for name, (default, (low, high)) in found.items():
        assert low <= default <= high, name
        assert low < high, name


def test_both_ends_are_tried_and_one_in_between():
    assert ranges.values(0.4, 0.38, 0.44) == ["0.38", "0.4", "0.44"]
    assert ranges.values(300, 250, 400) == ["250", "300", "400"]
