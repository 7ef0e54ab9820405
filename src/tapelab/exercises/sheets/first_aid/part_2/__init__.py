"""An error message."""
