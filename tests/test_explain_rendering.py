"""Explanations as text and Markdown, and the learner's lines in them, also in notebooks."""

from tapelab import runtime
from tapelab.explain import CAUSES, REMARKS, VALUES, ExplainTape, explain
from tapelab.explain.ground.lines import Line

import pytest
import tensorflow as tf
from process_texts import read_text

runtime.start(seed=0)


def rounded():
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        y = tf.round(x) if x.shape[0] < 9 else x  # a line with a < in it
    return explain(tape, y, x)


def test_text_has_the_answer_the_line_and_the_fix():
    explanation = rounded()
    number = rounded.__code__.co_firstlineno + 3
    assert str(explanation).splitlines() == [
        "d y / d x is None: not_differentiable",
        "Round passes no gradient on to what depends on x.",
        f"test_explain_rendering.py, line {number}: y = tf.round(x) if x.shape[0] < 9 else x  # a line with a < in it",
        "Hint:",
        "    # replace Round by a smooth counterpart, or give it a gradient of your own with tf.custom_gradient",
    ]
    assert repr(explanation) == "<Explanation: d y / d x is None: not_differentiable>"


def test_markdown_escapes_text_and_fences_code():
    text = rounded()._repr_markdown_()
    assert "**d y / d x is None: not\\_differentiable**" in text
    assert "`y = tf.round(x) if x.shape[0] < 9 else x  # a line with a < in it`" in text
    assert "```python\n# replace Round" in text
    assert text.count("```") == 2


def test_several_sources_are_told_in_markdown_as_in_text():
    x, y = tf.Variable(1.0), tf.constant(2.0)
    with ExplainTape() as tape:
        z = x * y
    explanations = explain(tape, z, [x, y])
    text = explanations._repr_markdown_()
    assert text.startswith("**d z / d y is None: not\\_watched**\n\n")
    assert "```python\ntape.watch(y)" in text
    assert text.endswith("\n\n1 of 2 gradients is healthy: x.")
    assert repr(explanations) == "<Explanations: d z / d x exists; d z / d y is None: not_watched>"


def test_of_several_sources_the_sick_come_first_by_cause_and_the_healthy_are_counted():
    fine = [tf.Variable([2.0], name=f"fine_{i}") for i in range(8)]
    sick, unused = [tf.Variable([0.0]), tf.Variable([0.0])], [tf.Variable(1.0), tf.Variable(2.0)]
    with ExplainTape(persistent=True) as tape:
        z = tf.reduce_sum(tf.sqrt(sick[0] + sick[1])) + tf.add_n([one * one for one in fine])
        w = tf.reduce_sum(tf.gather(fine[0], [0]) + fine[1])
        hinge = tf.reduce_sum(tf.maximum(0.0, 1.0 - fine[0] - fine[1]))
    paragraphs = str(explain(tape, z, [*fine, *sick, *unused])).split("\n\n")
    assert [one.splitlines()[0].split(": ")[-1] for one in paragraphs] == [
        "unused_variable",
        "root_at_zero",
        "8 of 12 gradients are healthy.",
    ]
    assert [one.splitlines()[-1].rstrip(".").split(" ")[:3] for one in paragraphs[:2]] == [["And", "1", "other"]] * 2
    words = str(explain(tape, w, fine[:2]))
    assert words.startswith("All 2 gradients are healthy: fine_0, fine_1.\nNote on fine_0 (indexed_slices): ")
    words = str(explain(tape, hinge, fine[:2]))
    assert "\nNote on fine_0, fine_1 (hinge_inactive, test_explain_rendering.py, line " in words


def test_a_probable_answer_says_so():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = tf.constant(3.0) * (lambda value: value**0.5)((x * x).numpy())
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.certain) == ("left_tensorflow", False)
    assert str(explanation).startswith("d y / d x is None: left_tensorflow (probable)")


def test_remarks_are_shown():
    x = tf.Variable([1.0, 2.0])
    with ExplainTape() as tape:
        y = tf.gather(x, [1])
    assert "Note (indexed_slices): The gradient of a lookup" in str(explain(tape, y, x))


def test_every_cause_is_documented():
    for cause in (*CAUSES.values(), *REMARKS.values(), *VALUES.values()):
        assert cause.code.isidentifier()
        assert cause.title, cause.code
        assert cause.meaning.endswith((".", ".)")), cause.code
        assert cause.sentence or cause.code in REMARKS, cause.code
        assert cause.example, cause.code
        cause.fix.format(source="x", target="y", op="Round", watchable="x", of="x")
        assert cause.code in cause._repr_markdown_()


def test_a_line_knows_its_text_and_its_place():
    line = Line(__file__, 1)
    assert line.text.startswith('"""Explanations as text')
    assert line.place == "test_explain_rendering.py, line 1"
    assert Line("/no/such/file.py", 3).text == ""
    assert str(Line("/no/such/file.py", 3)) == "file.py, line 3"


IN_A_CELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("import tapelab.explain as te, tensorflow as tf", store_history=True)
shell.run_cell("x = tf.Variable(2.0)\\nwith te.ExplainTape() as tape:\\n    y = tf.round(x)", store_history=True)
print(shell.run_cell("str(te.explain(tape, y, x))", store_history=True).result)
"""


def test_in_a_notebook_the_place_is_the_cell(fresh):
    printed = fresh(IN_A_CELL)
    assert "cell In[2], line 3: y = tf.round(x)" in printed


# IPython 7 with ipykernel 6, as in Colab: a cell's file is named after its source, and nothing says its number.
AS_IN_COLAB = """
from IPython.core import compilerop
compilerop.CachingCompiler.get_code_name = lambda self, raw, code, number: f"/tmp/ipykernel_7/{hash(raw)}.py"
del compilerop.CachingCompiler.format_code_name
"""


@pytest.mark.parametrize(("before", "line"), [("", 3), ("%timeit -n 1 -r 1 1\\n", 4), ("# a comment\\n\\n", 5)])
def test_in_colab_the_place_is_the_cell(fresh, before, line):
    program = AS_IN_COLAB + IN_A_CELL.replace("x = tf.Variable", before + "x = tf.Variable")
    printed = fresh(program)
    assert f"cell In[2], line {line}: y = tf.round(x)" in printed


def test_a_cell_that_is_not_kept_is_this_notebook(fresh):
    program = AS_IN_COLAB + IN_A_CELL.replace("store_history=True", "store_history=False")
    printed = fresh(program)
    assert "this notebook, line 3: y = tf.round(x)" in printed


WITHOUT_A_SYMBOL = read_text("explain_rendering", "WITHOUT_A_SYMBOL")


def test_a_tensorflow_without_the_private_symbols_has_a_working_tape(fresh):
    printed = fresh(WITHOUT_A_SYMBOL)
    assert "d y / d x could not be explained: blind" in printed
    assert "execute_with_callbacks" in printed
    assert printed.endswith("4.0\n")


AFTER_THE_IMPORT = read_text("explain_rendering", "AFTER_THE_IMPORT")


def test_the_import_leaves_the_device_settings_open(fresh):
    printed = fresh(AFTER_THE_IMPORT)
    assert printed == "settled\n"
