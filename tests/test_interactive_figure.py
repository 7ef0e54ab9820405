"""The controls of the figures: each redraws at its ends, errors reach the caller, widgets fit their values."""

import dataclasses

from tapelab.interactive import clipping, ellipse, modes, paths, saddle

import pytest

MODULES = (clipping, ellipse, modes, paths, saddle)


def each(modules):
    return pytest.mark.parametrize("module", modules, ids=lambda module: module.__name__.rpartition(".")[2])


@pytest.mark.dear(keep=1)
@each(MODULES)
def test_at_every_end_what_has_axes_is_labelled(module):
    shown = module.figure()
    for values in shown.ends():
        axes = [ax for ax in shown.still(**values).axes if ax.axison]
        assert any(ax.get_title() for ax in axes)
        assert all(ax.get_ylabel() for ax in axes)
        assert all(ax.get_xlabel() for ax in axes)


@pytest.mark.dear(keep=2)
@each(MODULES)
def test_each_control_redraws_at_its_ends_and_an_error_while_drawing_reaches_the_caller(module, monkeypatch):
    one, drawn, shown = module.figure(), [], []
    monkeypatch.setattr("tapelab.interactive.figure.display", shown.append)

    def draw(figure, **values):
        drawn.append(values)
        if len(shown) == len(drawn):
            raise RuntimeError("cannot draw this")
        one.draw(figure, **values)

    controls, _ = dataclasses.replace(one, draw=draw).widgets()
    assert drawn == [one.start()]
    for values in one.ends():
        for name, value in values.items():
            controls[name].value = value
        assert drawn[-1] == values
    assert len(shown) == len(drawn)
    shown.append("so that the next one fails")
    name, control = next(iter(controls.items()))
    with pytest.raises(RuntimeError, match="cannot draw this"):
        control.value = next(value for value in one.controls[name].ends() if value != control.value)


def test_the_widgets_fit_their_values():
    controls, _ = modes.figure().widgets()
    assert {type(control).__name__ for control in controls.values()} == {"IntSlider"}
    assert controls["layers"].value == 24
    assert len({(control.style.description_width, control.layout.width) for control in controls.values()}) == 1
    controls, _ = paths.figure().widgets()
    assert type(controls["x"]).__name__ == "FloatSlider"
    assert controls["cut"].style.button_width == "auto"  # so that no long label is cut
