"""Session set-up for a notebook: quiet import of TensorFlow, seeds, float32 arithmetic, folded checks, device report.

Importing this module imports TensorFlow. The native libraries write to file descriptor 2 while they load, and
``TF_CPP_MIN_LOG_LEVEL`` no longer silences them, so the descriptor itself is held back for that time.
"""

import contextlib
import os
import sys

from tapelab.process import quiet_stderr
from tapelab.session import alternatives, claims

# What TensorFlow's C++ code logs, such as XLA at its first compilation, is about the machine; what is wrong with a
# program, it raises. Errors are logged still, and before TensorFlow 2.21 what XLA says of its first compilation.
# Whoever wants more sets the variable first.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with quiet_stderr():
    import tensorflow as tf

    # The first listing of devices has a start-up log of its own.
    _GPUS = tf.config.list_physical_devices("GPU")


def start(seed: int = 0) -> None:
    """Make this session repeatable: call it once, before the first operation.

    Seeds Python, NumPy, TensorFlow and Keras; switches TensorFloat-32 off, so that a GPU multiplies float32 matrices
    with float32's 24 bits and the numbers in the text hold there too; lets GPU memory grow on demand, so that several
    notebooks can share one GPU. In a notebook, cells of checks report themselves from then on
    (`tapelab.session.claims`), and figures have their alternative texts (`tapelab.session.alternatives`).

    Args:
        seed: an integer from 0 to 2**32 - 1.

    Raises:
        ValueError: if ``seed`` is anything else.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}; expected an integer from 0 to 2**32 - 1")
    claims.watch()
    alternatives.watch()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in _GPUS:
        # Raises once the GPU is in use: a second call in one session leaves the setting as it is.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
    with quiet_stderr():
        tf.keras.utils.set_random_seed(seed)
        tf.zeros(())  # creates the device context, which logs


def report() -> str:
    """Return one line on what this session runs on: the device and the versions of Python, TensorFlow and Keras."""
    if _GPUS:
        details = tf.config.experimental.get_device_details(_GPUS[0])
        device = f"{len(_GPUS)} GPU ({details.get('device_name', 'name unknown')})"
    else:
        device = "CPU"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{device} · Python {python} · TensorFlow {tf.__version__} · Keras {tf.keras.__version__}"
