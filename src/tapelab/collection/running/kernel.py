"""The kernel of one run, and the connection to it: private, complete, and gone with the run."""

import os
import signal
from pathlib import Path
from typing import Any

import click
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

SET_UP_SECONDS = 30  # in which a kernel that answers must have taken the code below
# A kernel whose outputs are read more slowly than it writes drops some, without a word, as soon as a thousand wait:
# ZeroMQ's high-water mark. With this option it waits for its reader instead. The socket belongs to a thread of its own.
# On Linux the kernel also ends with the process that started it, whatever it is doing (1 is PR_SET_PDEATHSIG): its own
# look at its parent needs Python's lock, which a long match of a regular expression holds.
SET_UP = f"""
def set_up(thread):
    import ctypes, sys, zmq
    thread.schedule(lambda: thread.socket.setsockopt(zmq.XPUB_NODROP, 1))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})
try:
    set_up(get_ipython().kernel.iopub_thread)
finally:
    del set_up
"""


class KernelError(click.ClickException, LookupError):
    """No kernel of that name is installed. The message says which are."""


class Client(AsyncKernelClient):
    """A connection to a kernel that waits for its reader, so that no output can be lost."""

    async def wait_for_ready(self, timeout: float | None = None) -> None:
        """Wait until the kernel answers, and set it up.

        Raises:
            RuntimeError: if it is not ipykernel, and so cannot be told to wait.
        """
        await super().wait_for_ready(timeout=timeout)
        answer = self.execute(SET_UP, silent=True, store_history=False, reply=True, timeout=SET_UP_SECONDS)
        if (await answer)["content"]["status"] != "ok":
            raise RuntimeError("it is not ipykernel, and might lose outputs without a word")


class Kernel(AsyncKernelManager):
    """Starts the kernel where no other machine can reach it, and remembers how it ended.

    Attributes:
        folder: for its sockets; each run's own.
        status: its exit status, once it has ended, negative for a signal.
    """

    folder: Path
    current = None

    def __init__(self, **kwargs: Any):
        if os.name == "posix":
            # Sockets in this run's own folder: no port is opened, and none can be taken twice. The names are short,
            # since a socket's path may have some hundred characters.
            names = {"ip": str(self.folder / "k"), "connection_file": str(self.folder / "k.json")}
            kwargs |= names | {"transport": "ipc"}
        super().__init__(client_factory=Client, **kwargs)
        self.status = None
        Kernel.current = self

    async def is_alive(self) -> bool:
        if self.has_kernel:
            self.status = await self.provisioner.poll()
        return await super().is_alive()
