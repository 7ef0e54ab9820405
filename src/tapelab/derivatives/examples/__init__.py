"""Derivatives of each example of a batch, and whether the examples depend on each other."""
