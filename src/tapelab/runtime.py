"""Session set-up for a notebook: a quiet import of TensorFlow, seeds, float32 arithmetic, a device report.

Importing this module imports TensorFlow. The native libraries write to file descriptor 2 while they load, and
``TF_CPP_MIN_LOG_LEVEL`` no longer silences them, so the descriptor itself is held back for that time.
"""

import contextlib
import os
import re
import sys
import tempfile


@contextlib.contextmanager
def _stderr_into(file):
    """Write to a file what goes to file descriptor 2 while the block runs."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextlib.contextmanager
def quiet_stderr():
    """Hold back what is written to file descriptor 2, by Python or by native code; show it if the block raises."""
    with tempfile.TemporaryFile() as held:
        try:
            with _stderr_into(held):
                yield
        except BaseException:
            held.seek(0)
            os.write(2, held.read())
            raise


# A line of the native log, "W0000 00:00:1795283470.195016 19076 op_kernel.cc:1858] …".
_LOG_LINE = re.compile(rb".*\.(cc|h):\d+\] ")


@contextlib.contextmanager
def quiet_log():
    """Hold back TensorFlow's log, Python's and the native one; show what else went to file descriptor 2 at the end."""
    logger = tf.get_logger()
    level = logger.level
    with tempfile.TemporaryFile() as held:
        logger.setLevel("ERROR")
        try:
            with _stderr_into(held):
                yield
        finally:
            logger.setLevel(level)
            held.seek(0)
            for line in held:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


with quiet_stderr():
    import tensorflow as tf

    # The first listing of devices has a start-up log of its own.
    _GPUS = tf.config.list_physical_devices("GPU")


def start(seed=0):
    """Make this session repeatable: call it once, before the first operation.

    Seeds Python, NumPy, TensorFlow and Keras; switches TensorFloat-32 off, so that a GPU multiplies float32 matrices
    with float32's 24 bits and the numbers in the text hold there too; lets GPU memory grow on demand, so that several
    notebooks can share one GPU.

    Args:
        seed: an integer from 0 to 2**32 - 1.

    Raises:
        ValueError: if ``seed`` is anything else.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed!r}; expected an integer from 0 to 2**32 - 1")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    for gpu in _GPUS:
        # Raises once the GPU is in use: a second call in one session leaves the setting as it is.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)
    with quiet_stderr():
        tf.keras.utils.set_random_seed(seed)
        tf.zeros(())  # creates the device context, which logs


def report():
    """Return one line on what this session runs on: the device and the versions of Python, TensorFlow and Keras."""
    if _GPUS:
        details = tf.config.experimental.get_device_details(_GPUS[0])
        device = f"{len(_GPUS)} GPU ({details.get('device_name', 'name unknown')})"
    else:
        device = "CPU"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{device} · Python {python} · TensorFlow {tf.__version__} · Keras {tf.keras.__version__}"
