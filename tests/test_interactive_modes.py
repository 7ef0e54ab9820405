"""The figure of forward against reverse mode: its cost model, its drawing at the sliders' ends, its callbacks."""

from tapelab.interactive import modes

import pytest

FIGURE = modes.figure()


@pytest.mark.parametrize(
    ("mode", "passes", "tensors"),
    [("forward", 16, 1 + 16), ("reverse", 8, 24 + 8)],  # what is held: values, then one tensor for each pass
)
def test_costs_of_a_map_from_16_to_8_through_24_layers(mode, passes, tensors):
    assert modes.passes(mode, 16, 8) == passes
    assert modes.held_bytes(mode, 16, 8, 24, width=100) == 4 * 100 * tensors


@pytest.mark.parametrize("layers", [1, 2, 24])
def test_at_break_even_both_hold_the_same_and_on_either_side_one_wins(layers):
    inputs = 100
    outputs = modes.break_even(inputs, layers)

    def wins(outputs):
        return modes.winner(*(modes.held_bytes(mode, inputs, outputs, layers) for mode in ("forward", "reverse")))

    assert [wins(outputs - 1), wins(outputs), wins(outputs + 1)] == ["reverse", "neither", "forward"]


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("values", FIGURE.ends(), ids=str)
def test_it_is_drawn_at_both_ends_of_every_slider(values):
    plane, counts, memory = FIGURE.still(**values).axes
    inputs, outputs, layers = 2 ** values["log_inputs"], 2 ** values["log_outputs"], values["layers"]
    (point,) = (line for line in plane.lines if line.get_marker() == "o")
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (inputs, outputs)
    assert [bar.get_height() for bar in counts.patches] == [inputs, outputs]
    assert [bar.get_height() for bar in memory.patches] == [1 + inputs, layers + outputs]  # a KiB for each tensor
