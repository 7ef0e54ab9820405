"""The figure of forward against reverse mode: its cost model, its drawing at the sliders' ends, its callbacks."""

from itertools import pairwise

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


def test_only_reverse_mode_holds_more_with_each_layer():
    held = {mode: [modes.held_bytes(mode, 8, 8, layers) for layers in (1, 2, 8, 64)] for mode in ("forward", "reverse")}
    assert len(set(held["forward"])) == 1
    assert all(fewer < more for fewer, more in pairwise(held["reverse"]))


def test_it_starts_where_passes_and_memory_disagree():
    start = FIGURE.start()
    inputs, outputs = 2 ** start["log_inputs"], 2 ** start["log_outputs"]
    both = ("forward", "reverse")
    assert modes.winner(*(modes.passes(mode, inputs, outputs) for mode in both)) == "reverse"
    assert modes.winner(*(modes.held_bytes(mode, inputs, outputs, start["layers"]) for mode in both)) == "forward"


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("values", FIGURE.ends(), ids=str)
def test_it_is_drawn_at_both_ends_of_every_slider(values):
    plane, counts, memory = FIGURE.still(**values).axes
    inputs, outputs, layers = 2 ** values["log_inputs"], 2 ** values["log_outputs"], values["layers"]
    (point,) = (line for line in plane.lines if line.get_marker() == "o")
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (inputs, outputs)
    assert [bar.get_height() for bar in counts.patches] == [inputs, outputs]
    assert [bar.get_height() for bar in memory.patches] == [1 + inputs, layers + outputs]  # a KiB for each tensor
