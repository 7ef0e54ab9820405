"""A zero, and a wrong number."""
