"""Start kernels by forking a process that has imported TensorFlow already.

Importing TensorFlow takes most of the time that a short notebook runs. The fork server imports it once; each kernel,
and each papermill process, is a copy of the server, which takes a fraction of a second.

A fork copies one thread. TensorFlow's thread pools, and CUDA, do not survive that, but neither exists before the first
operation runs. So the server runs none, and it forks only while it has a single thread: a copy of such a process is
complete. Where that cannot hold (a visible GPU, an operating system other than Linux) or anything else stands in the
way, everything starts in the plain way and one line says why.

- `client`: what a runner uses (`starter`), the process that it gets, and the provisioner that Jupyter calls.
- `server`: the process that forks.
"""

from tapelab.collection.forkserver.client import (
    ForkedProcess,
    ForkError,
    ForkProvisioner,
    ServerGoneError,
    Starter,
    starter,
)

__all__ = ["ForkError", "ForkProvisioner", "ForkedProcess", "ServerGoneError", "Starter", "starter"]
