"""The cheat sheet and the phrasebook: each line runs, and gives what stands beside it."""

import ast
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[1]
SHEET = (ROOT / "site" / "cheat_sheet.md").read_text(encoding="utf-8")
NUMBERS = {  # by hand, for w = (1, 2), v = (1, -1), u = (1, 0, 2)
    "the gradient": [3, 12],
    "the gradient of what is no parameter": [3, 3],
    "0 where nothing leads to the source": [0, 0],
    "a value held constant": [1, 2],
    "a stretch that is not recorded": [27, 108],
    "a vector–Jacobian product": [2, 1 + 2 * np.cos(2)],  # noqa: RUF001
    "a Jacobian–vector product": [1, 2, -np.cos(2)],  # noqa: RUF001
    "the Jacobian, by rows": [2, 1, 2, 0, 0, np.cos(2)],
    "the Jacobian, the cheaper way": [2, 1, 2, 0, 0, np.cos(2)],
    "the gradient of a gradient": [36, 288],
    "the Hessian": [6, 0, 0, 12],
    "a Hessian–vector product": [6, -12],  # noqa: RUF001
}


@pytest.fixture(scope="module")
def phrases():
    found = importlib.util.spec_from_file_location("phrases", ROOT / "ci" / "phrases.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_each_line_of_the_cheat_sheet_gives_what_stands_beside_it(phrases):
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3)])
    loss, optimizer = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), tf.keras.optimizers.SGD(0.1)
    names, seen = {"model": model, "loss_fn": loss, "optimizer": optimizer}, 0
    for code in re.findall(r"```python\n(.*?)```", SHEET, re.DOTALL):
        lines = code.splitlines()
        for node in ast.parse(code).body:
            said = lines[node.end_lineno - 1].partition("# → ")[2]
            if not said:
                exec(compile(ast.Module([node], []), "sheet", "exec"), names)
                continue
            found, wanted = phrases.value(ast.unparse(node), names), ast.literal_eval(said)
            if isinstance(wanted, str):
                assert found == wanted
            else:
                keyed = wanted if isinstance(wanted, dict) else {None: wanted}
                for key, numbers in keyed.items():
                    np.testing.assert_allclose(found if key is None else found[key], numbers, rtol=1e-6)
            seen += 1
    assert seen > 14
    before = model.get_weights()
    loss = names["train_step"](tf.ones((4, 2)), tf.constant([0, 1, 2, 0]))
    assert loss > 0
    assert not np.allclose(before[0], model.get_weights()[0])


def test_the_sheet_prints_on_one_page():
    """Two columns of 7.5 pt on A4 hold some 190 lines: a sheet that grows beyond that is none."""
    assert len([line for line in SHEET.splitlines() if line.strip()]) < 140


def test_tensorflows_column_of_the_phrasebook_gives_the_numbers(phrases):
    """The other two are run in the bench's environment: ci/phrases.py."""
    found = phrases.results("TensorFlow")
    assert len(found) > 15
    for task, wanted in NUMBERS.items():
        np.testing.assert_allclose(found[task], np.float32(wanted), rtol=1e-5, atol=1e-6, err_msg=task)


def test_each_row_says_it_in_each_language(phrases):
    rows = {language: phrases.phrases(language)[1] for language in phrases.LANGUAGES}
    assert rows["PyTorch"].keys() == rows["JAX"].keys() == rows["TensorFlow"].keys()
    assert all(code for found in rows.values() for code in found.values())
