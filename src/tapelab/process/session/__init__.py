"""Whether a person sits in front of the kernel, or a batch run such as papermill, nbval or `tapelab run`.

- `claims`, `alternatives`: what a person sees of cells of checks, and hears of figures.
- `bar`: a bar of progress, where one watches.
"""

import sys


def attended() -> bool:
    """Return True if someone is at the keyboard.

    A front-end that could put a question to its user says so with every cell (`allow_stdin` in Jupyter's messaging
    protocol, "execute_request"): JupyterLab, Colab and VS Code do, nbclient (so papermill) and nbval do not. A Python
    process without a kernel, such as a test, is not attended.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", False))
