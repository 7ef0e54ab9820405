"""Five cases, unsorted."""
