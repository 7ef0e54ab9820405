"""What the fork server imports last: whether its forks are sound."""

import gc
import sys
from multiprocessing import forkserver
from pathlib import Path


def _unfit() -> str | None:
    if "tensorflow" in sys.modules:
        devices = {device.device_type for device in sys.modules["tensorflow"].config.list_physical_devices()}
        if devices != {"CPU"}:
            return f"a device other than the CPU is visible ({', '.join(sorted(devices - {'CPU'}))})"
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())  # native ones included
    return f"the imports started {threads - 1} threads" if threads != 1 else None


UNFIT = _unfit()

# A fork that asks for processes itself is to ask this server; CPython up to 3.13 would start another for it.
forkserver._forkserver.ensure_running = lambda: None


# The forks share the memory of what is imported until they write to it: the collector would.
gc.collect()
gc.freeze()
