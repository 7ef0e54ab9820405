"""The notebooks in a real JupyterLab: opened, run, answered, moved, by mouse and by keyboard."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
SOME = ("00_", "04_", "13_")


def pytest_generate_tests(metafunc):
    if "notebook" in metafunc.fixturenames:
        every = metafunc.config.getoption("--every")
        metafunc.parametrize("notebook", [name for name in NAMES if every or name.startswith(SOME)])


def test_a_notebook_runs_from_top_to_bottom(lab, notebook):
    opened = lab({"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}})
    opened.open(notebook)
    assert all(cell["hidden"] for cell in opened.cells() if {"setup", "check", "figure"} & set(cell["tags"]))
    opened.run_all()
    cells = opened.cells()
    for cell in cells:
        allowed = "raises-exception" in cell["tags"]
        assert allowed or all(output["output_type"] != "error" for output in cell["outputs"]), cell["source"]
        if "check" in cell["tags"]:
            assert re.search(r"✓ the text holds \(\d+ checks?\)$", opened.text_of(cell)), cell["source"]
    opened.page.wait_for_function(
        """([panel, alts]) => { const shown = [...document.querySelectorAll(panel + ' .jp-OutputArea img')];
            return shown.every(one => one.naturalWidth > 50)
                && alts.every(alt => shown.some(one => one.alt === alt)); }""",
        arg=[opened.PANEL, [cell["alt"] for cell in cells if cell["alt"]]],
    )
    assert opened.serious_in_outputs() == []
    opened.darken()
    assert opened.serious_in_outputs() == []


def test_a_link_opens_the_next_notebook(lab):
    opened = lab()
    opened.open("00_start_here")
    opened.page.locator(f"{opened.PANEL} a", has_text="Gradient tape basics").first.click()
    opened.page.wait_for_selector(".lm-TabBar-tabLabel:has-text('01_gradient_tape_basics')")


WRONG = """def loss_and_metric(tape, x):
    cube = x**3
    return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))  # the metric is recorded, too
"""


def test_an_exercise_is_answered_wrongly_hinted_then_rightly_and_remembered(lab, server):
    opened = lab()
    opened.open("05_recording_control")
    opened.run(opened.place("# Set-up"))
    asks = re.compile(r"^exercises\.\w+\.check\(", re.MULTILINE)
    number = next(n for n, cell in enumerate(opened.cells()) if asks.search(cell["source"]))
    starter = opened.cells()[number]["source"]
    name = re.search(r"^exercises\.(\w+)\.check\(", starter, re.MULTILINE)[1]
    assert "Not attempted yet" in opened.run(number)
    opened.write(number, f"{WRONG}\n\n{starter.splitlines()[-1]}")
    assert "✗" in opened.run(number)
    assert not server[2].exists()
    opened.write(number, f"exercises.{name}.hint()")
    assert "Hint" in opened.run(number)
    opened.write(number, f"exercises.{name}.solution()")
    opened.run(number)
    (shown,) = opened.cells()[number]["outputs"]
    code = re.search(r"```python\n(.*?)```", "".join(shown["data"]["text/markdown"]), re.DOTALL)
    opened.write(number, f"{code[1]}\n\n{starter.splitlines()[-1]}")
    assert "✓" in opened.run(number)
    opened.command("kernelmenu:restart")
    opened.page.locator(".jp-Dialog button", has_text="Restart").click()
    opened.rest()
    assert f"recording_control.{name}" in json.loads(server[2].read_text())["solved"]


SLIDER, NAME = "paths.figure().show()", "x"
WIDE = """panel => [...document.querySelectorAll(panel + ' .jp-MarkdownOutput')]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent.slice(0, 80))"""
SEEN = """one => { const box = one.getBoundingClientRect(), middle = [box.x + box.width / 2, box.y + box.height / 2];
    const there = document.elementFromPoint(...middle);
    return one.contains(there) || Boolean(there?.contains(one)); }"""


def test_a_slider_moves_its_figure_by_keyboard(lab):
    """At 200 %, where text wraps and what answers a question or moves a figure is still within reach."""
    opened = lab(
        {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}},
        width=650,
        height=500,
        device_scale_factor=2,
    )
    opened.open("06_stop_gradient")
    opened.finish("application:toggle-left-area")  # the list of files is put away: at 200 % it takes half the window
    opened.run(opened.place("# Set-up"))
    opened.run(opened.place(SLIDER))
    shown = opened.page.locator(opened.PANEL)
    handle = shown.get_by_role("slider", name=NAME, exact=True)
    handle.scroll_into_view_if_needed()
    assert handle.evaluate(SEEN)
    picture = "panel => [...document.querySelectorAll(panel + ' .jp-OutputArea img')].map(one => one.src).join()"
    before = opened.page.evaluate(picture, opened.PANEL)
    handle.focus()
    opened.page.keyboard.press("ArrowRight")
    changed = f"([panel, before]) => ({picture})(panel) !== before"
    opened.page.wait_for_function(changed, arg=[opened.PANEL, before])
    assert shown.get_by_role("textbox", name=NAME, exact=True).inner_text() == "1.50"
    assert shown.get_by_role(
        "img", name="The same figure for x 1.5, cut g. As it starts: Computation graph and line plot. Left: a graph"
    ).is_visible()
    buttons = shown.get_by_role("group", name="cut", exact=True)
    buttons.get_by_role("button", name="all three", pressed=False).press("Enter")
    buttons.get_by_role("button", name="all three", pressed=True).wait_for()
    assert buttons.get_by_role("button", pressed=True).count() == 1
    assert opened.page.evaluate(WIDE, opened.PANEL) == []
    for asks in (r"^exercises\.\w+\.guess\(", r"^exercises\.\w+\.check\("):
        number = next(n for n, one in enumerate(opened.cells()) if re.search(asks, one["source"], re.MULTILINE))
        opened.select(number)
        cell = opened.page.locator(f"{opened.PANEL} .jp-Cell.jp-mod-active .cm-content")
        assert cell.evaluate(SEEN)


def test_in_the_dark_figures_have_a_white_ground(lab):
    opened = lab({"@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Dark"}})
    opened.open("06_stop_gradient")
    assert opened.page.locator("body").get_attribute("data-jp-theme-light") == "false"
    for title in ("Parameters", "Set-up"):
        opened.run(opened.place(f"# {title}"))
    opened.run(opened.place(SLIDER))
    opened.page.wait_for_function(
        """panel => { const shown = [...document.querySelectorAll(panel + ' .jp-OutputArea img')];
            return shown.length && shown.every(one => one.complete && one.naturalWidth > 50); }""",
        arg=opened.PANEL,
    )
    grounds = opened.page.evaluate(
        """panel => [...document.querySelectorAll(panel + ' .jp-OutputArea img')].map(one => {
            const drawn = document.createElement('canvas').getContext('2d');
            drawn.drawImage(one, 0, 0);
            return [...drawn.getImageData(1, 1, 1, 1).data]; })""",
        opened.PANEL,
    )
    assert grounds
    assert all(min(ground) >= 240 for ground in grounds), grounds
    assert opened.serious_in_outputs() == []


def test_by_keyboard_alone(lab):
    opened = lab()
    opened.open("01_gradient_tape_basics")
    opened.select(0)
    for _ in range(5):  # Shift+Enter runs a cell and goes on to the next
        opened.page.keyboard.press("Shift+Enter")
    opened.rest()
    assert any(cell["outputs"] for cell in opened.cells()[:6])
    number = opened.place(".guess(")
    opened.select(number)
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Control+Home")
    opened.page.keyboard.press("Control+Shift+End")
    source = opened.cells()[number]["source"]
    opened.page.keyboard.insert_text(source.replace("...", "1", 1))
    opened.page.keyboard.press("Control+Enter")
    opened.rest()
    assert "1" in opened.cells()[number]["source"]
    assert "No guess yet" not in opened.text_of(opened.cells()[number])


def test_the_steps_through_a_tape_go_by_keyboard_and_stand_whole_where_the_notebook_is_not_trusted(lab, server):
    opened = lab()
    opened.open("01_gradient_tape_basics")
    number = opened.place("step_through(tape, y, x)")
    for one in range(number + 1):
        opened.run(one)
    steps = opened.page.locator(f"{opened.PANEL} .jp-OutputArea fieldset")
    steps.locator("input").first.focus()
    for _ in range(6):
        opened.page.keyboard.press("ArrowRight")  # which JupyterLab has a use for, too
    assert steps.locator("p:visible").all_inner_texts() == ["Up: row 2 hands 5 to row 0."]
    html = opened.cells()[number]["outputs"][0]["data"]["text/html"]
    steps.evaluate("one => one.remove()")  # and its style
    opened.page.evaluate(  # an output of an untrusted notebook is rendered as this one
        """html => { const rendermime = window.jupyterapp.shell.currentWidget.content.rendermime;
            const shown = rendermime.createRenderer('text/html');
            shown.node.id = 'untrusted';
            document.body.append(shown.node);
            return shown.renderModel(rendermime.createModel({trusted: false, data: {'text/html': html}})); }""",
        "".join(html),
    )
    whole = opened.page.locator("#untrusted")
    assert not whole.locator("style").count()
    assert not whole.locator("input:visible, legend:visible").count()
    assert whole.locator("p:visible").count() == 8
    assert "; sum 9" in whole.locator("td span:visible").all_inner_texts()


def test_plain_jupyterlab_opens_an_original_and_has_nothing_to_save(plain):
    """Without `tapelab lab`, under jupytext's settings: the dot that marks a changed file does not come."""
    plain.open("05_recording_control")
    plain.rest()
    assert plain.page.evaluate("window.jupyterapp.shell.currentWidget.context.model.dirty") is False
    assert sum(cell["hidden"] for cell in plain.cells()) > 10
