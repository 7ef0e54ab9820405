"""TensorFlow, imported quietly: ``from tapelab.process.tensorflow import tf``.

The native libraries write to file descriptor 2 while they load, and ``TF_CPP_MIN_LOG_LEVEL`` no longer silences them,
so the descriptor itself is held back for that time.
"""

import os
from collections.abc import Sequence
from typing import TypeAlias

from tapelab.process.stderr import quiet_stderr

# What TensorFlow's C++ code logs, such as XLA at its first compilation, is about the machine; what is wrong with a
# program, it raises. Errors are logged still, and before TensorFlow 2.21 what XLA says of its first compilation.
# Whoever wants more sets the variable first.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

with quiet_stderr():
    import tensorflow as tf

    # The first listing of devices has a start-up log of its own.
    GPUS = tf.config.list_physical_devices("GPU")

Tensors: TypeAlias = Sequence[tf.Tensor]

__all__ = ["GPUS", "Tensors", "tf"]
