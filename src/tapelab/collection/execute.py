"""Batch execution: every notebook through papermill, one process each, several at a time."""

import os


def default_workers():
    """As many as there are cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ParameterError(ValueError): ...
