"""Zero."""
