"""A pytest plugin with the collection's rules for nbval: `PYTHONPATH=ci pytest -p nbval_rules --nbval notebooks`."""

import contextlib
import os

from tapelab.collection.forkserver import servers

import pytest

FORKS = pytest.StashKey[bool]()


def pytest_configure(config):
    """Fork the notebooks' kernels from one process that has imported TensorFlow, as `tapelab run` does.

    Where that cannot be, one line says why, and kernels start in the plain way.
    """
    if hasattr(config, "workerinput"):  # one of xdist's workers: it has the environment of the process that started it
        forks = config.workerinput["forks"]
    else:
        cleanup = contextlib.ExitStack()
        config.add_cleanup(cleanup.close)
        started = cleanup.enter_context(servers.starter(kernels=servers.KERNELS, processes=()))
        os.environ |= started.environment  # which leads Jupyter to a kernel that forks
        forks = config.stash[FORKS] = started.kernels is not None
    if forks:
        config.option.nbval_current_env, config.option.nbval_kernel_name = False, "python3"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell one of xdist's workers what the process that starts it has found."""
    node.workerinput["forks"] = node.config.stash[FORKS]


def pytest_collectstart(collector):
    """Leave out of the comparison what depends on the machine: stderr, of which none is stored, and drawn pixels."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
        # nbval leaves image/png out by itself; a picture that moves is within HTML.
        collector.sanitize_patterns["data:image/[a-z]+;base64,[A-Za-z0-9+/=]+"] = "PICTURE"
