"""Exit with 1 unless TensorFlow sees a GPU; the GPU pipeline begins with this."""

import sys

from tapelab import runtime

if not runtime.tf.config.list_physical_devices("GPU"):
    sys.exit(f"TensorFlow sees no GPU here: {runtime.report()}")
print(runtime.report())
