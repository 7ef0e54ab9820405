"""Session set-up for a notebook: seeds, float32 arithmetic, folded checks, device report.

Importing this module imports TensorFlow, quietly.
"""

import contextlib
import sys

from tapelab.process import quiet_stderr
from tapelab.process.session import alternatives, claims
from tapelab.process.tensorflow import GPUS, tf


def start(seed: int = 0) -> None:
    """Make this session repeatable: call it once, before the first operation.

    Seeds Python, NumPy, TensorFlow and Keras; switches TensorFloat-32 off, so that a GPU multiplies float32 matrices
    with float32's 24 bits and the numbers in the text hold there too; lets GPU memory grow on demand, so that several
    notebooks can share one GPU. In a notebook, cells of checks report themselves from then on, and figures have their
    alternative texts (`tapelab.process.session`).

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
    for gpu in GPUS:
        # Raises once the GPU is in use: a second call in one session leaves the setting as it is.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
    with quiet_stderr():
        tf.keras.utils.set_random_seed(seed)
        tf.zeros(())  # creates the device context, which logs


def report() -> str:
    """Return one line on what this session runs on: the device and the versions of Python, TensorFlow and Keras."""
    if GPUS:
        details = tf.config.experimental.get_device_details(GPUS[0])
        device = f"{len(GPUS)} GPU ({details.get('device_name', 'name unknown')})"
    else:
        device = "CPU"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{device} · Python {python} · TensorFlow {tf.__version__} · Keras {tf.keras.__version__}"
