"""A pytest plugin with the collection's rules for nbval: `PYTHONPATH=ci pytest -p nbval_rules --nbval notebooks`."""

import os
import sys

from tapelab.collection import forkserver
from tapelab.collection.running import variables


def pytest_configure(config):
    """Fork the notebooks' kernels from a process that has imported TensorFlow, as `tapelab run` does, where it can be.

    Each of xdist's workers has such a process of its own. They share the cores, as the runs of a batch do.
    """
    os.environ.update(variables.threads(getattr(config, "workerinput", {"workercount": 1})["workercount"]))
    if sys.platform == "linux":
        os.environ[forkserver.DEFAULT] = forkserver.PROVISIONER
        config.option.nbval_current_env, config.option.nbval_kernel_name = False, "python3"


def pytest_collectstart(collector):
    """Leave out of the comparison what depends on the machine: stderr, of which none is stored, and drawn pixels."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
        # nbval leaves image/png out by itself; a picture that moves is within HTML.
        collector.sanitize_patterns["data:image/[a-z]+;base64,[A-Za-z0-9+/=]+"] = "PICTURE"
