"""A number, and the wrong one."""
