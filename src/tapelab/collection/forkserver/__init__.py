"""Start processes by forking others that have imported already what takes long to import.

Importing TensorFlow takes most of the time that a short notebook runs. A fork server imports it once; each kernel is a
copy of the server, which takes a fraction of a second. A second, small server does the same for papermill.

A fork copies one thread. TensorFlow's thread pools, and CUDA, do not survive that, but neither exists before the first
operation runs. So a server runs none, and it forks only while it has a single thread: a copy of such a process is
complete. Where that cannot hold (a visible GPU, an operating system other than Linux) or anything else stands in the
way, processes start in the plain way and one line says why.

- `servers`: what a runner uses, `Shared` or `starter`, and the servers as it sees them.
- `process`: the process that it gets, and the provisioner that Jupyter calls.
- `server`: the process that forks.
"""

from tapelab.collection.forkserver.process import (
    ForkedProcess,
    ForkError,
    ForkProvisioner,
    PlainProcess,
    ServerGoneError,
)
from tapelab.collection.forkserver.servers import Shared, Starter, starter

__all__ = [
    "ForkError",
    "ForkProvisioner",
    "ForkedProcess",
    "PlainProcess",
    "ServerGoneError",
    "Shared",
    "Starter",
    "starter",
]
