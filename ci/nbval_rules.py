"""A pytest plugin with the collection's rules for nbval: `PYTHONPATH=ci pytest -p nbval_rules --nbval notebooks`."""


def pytest_collectstart(collector):
    """Leave stderr out of the comparison: what libraries write there depends on the machine, and none is stored."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
