"""A pytest plugin with the collection's rules for nbval: `PYTHONPATH=ci pytest -p nbval_rules --nbval notebooks`."""

import os
import sys

from tapelab.collection import forkserver
from tapelab.collection.running import variables

# The notebooks that take longest. They come first: no worker is then left with one of them when the others have ended.
LONGEST = (
    "18_error_bars_for_a_network",
    "24_an_equation_and_no_data",
    "19_derivative_of_a_solution",
    "27_generative_model_from_a_trace",
    "23_learn_the_start",
    "28_small_transformer",
    "20_edge_of_stability",
    "22_differentiate_the_optimiser",
    "14_without_the_matrix",
    "25_control_and_the_horizon_of_chaos",
    "12_forward_mode",
    "16_what_derivatives_cost",
)


def pytest_configure(config):
    """Fork the notebooks' kernels from a process that has imported TensorFlow, as `tapelab run` does, where it can be.

    Each of xdist's workers has such a process of its own. They share the cores, as the runs of a batch do.
    """
    os.environ.update(variables.threads(getattr(config, "workerinput", {"workercount": 1})["workercount"]))
    if sys.platform == "linux":
        os.environ[forkserver.DEFAULT] = forkserver.PROVISIONER
        config.option.nbval_current_env, config.option.nbval_kernel_name = False, "python3"
    config.option.loadscopereorder = False  # xdist would begin with the notebooks of most cells


def pytest_collection_modifyitems(items):
    """Put the longest notebooks first, and leave the others in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collectstart(collector):
    """Leave out of the comparison what depends on the machine: stderr, of which none is stored, and drawn pixels."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
        # nbval leaves image/png out by itself; a picture that moves is within HTML.
        collector.sanitize_patterns["data:image/[a-z]+;base64,[A-Za-z0-9+/=]+"] = "PICTURE"
