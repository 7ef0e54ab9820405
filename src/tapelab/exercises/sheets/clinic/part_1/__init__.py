"""No path."""
