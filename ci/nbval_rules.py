"""A pytest plugin with the collection's rules for nbval: `PYTHONPATH=ci pytest -p nbval_rules --nbval notebooks`."""


def pytest_collectstart(collector):
    """Leave out of the comparison what depends on the machine: stderr, of which none is stored, and drawn pixels."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("stderr",)
        # nbval leaves image/png out by itself; a picture that moves is within HTML.
        collector.sanitize_patterns["data:image/[a-z]+;base64,[A-Za-z0-9+/=]+"] = "PICTURE"
