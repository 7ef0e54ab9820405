"""A number that cannot be right."""
