"""What the fork server imports first: it sets what libraries read while they are imported."""

import os

from tapelab.collection.forkserver import own_session

own_session()
nowhere = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(nowhere, stream)
os.close(nowhere)
# OpenBLAS starts its threads when it is loaded; a kernel sets the number that it should have.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# ipykernel reads this while it is imported. With 1 it does not watch its parent, which is a guard that watches it.
os.environ["JPY_PARENT_PID"] = "1"
# matplotlib reads this while it is imported; ipykernel sets it, too late for a fork.
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
