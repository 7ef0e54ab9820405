"""Not a number."""
