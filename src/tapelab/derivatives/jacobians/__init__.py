"""Jacobians, of a function and of each example of a batch."""
