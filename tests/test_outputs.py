"""No output of a notebook is lost between its kernel and what is kept, or the verdict says so."""

import asyncio
import os

from tapelab.collection.running import execution, kernel

import nbformat
import psutil
import pytest
import zmq
from nbclient.exceptions import CellTimeoutError

MESSAGES = 4000  # ZeroMQ keeps some 2000 for a reader that is slow, and ipykernel's thread some more
# Prints more than is kept, and says when it has gone on to its end.
PRINTS = f"""
for i in range({MESSAGES}):
    print(i, flush=True)
open("through", "w")
"""


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("forked", [False, True])
def test_a_kernel_waits_for_a_slow_reader(forked, tmp_path, monkeypatch, wait_for, light_kernels, request):
    if forked:
        request.getfixturevalue("forked_kernels")
    monkeypatch.setattr(kernel.Kernel, "folder", tmp_path, raising=False)
    monkeypatch.chdir(tmp_path)

    async def lines():
        manager = kernel.Kernel(kernel_name="python3")
        await manager.start_kernel(env=dict(os.environ))
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=120)
            asked = client.execute(PRINTS)
            # A kernel that drops messages comes through without a reader. One that does not comes to a rest.
            worker, spent, resting = psutil.Process(manager.provisioner.pid), None, 0
            while not (tmp_path / "through").exists() and resting < 10:
                await asyncio.sleep(0.1)
                resting = resting + 1 if worker.cpu_times() == spent else 0
                spent = worker.cpu_times()
            texts, reader = [], zmq.Socket.shadow(client.iopub_channel.socket.underlying)
            reader.rcvtimeo = 30_000
            while True:
                _, frames = client.session.feed_identities(reader.recv_multipart())
                message = client.session.deserialize(frames)
                if message["parent_header"].get("msg_id") == asked:
                    texts.append(message["content"].get("text", ""))
                    if message["content"].get("execution_state") == "idle":
                        return "".join(texts).split()
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)

    assert asyncio.run(lines()) == [str(i) for i in range(MESSAGES)]


def test_a_kernel_that_cannot_be_told_to_wait_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel.Kernel, "folder", tmp_path, raising=False)
    monkeypatch.setattr(kernel, "SET_UP", "get_ipython().of_another_kernel")
    monkeypatch.chdir(tmp_path)

    async def start():
        manager = kernel.Kernel(kernel_name="python3")
        await manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=120)
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)

    with pytest.raises(RuntimeError, match="it is not ipykernel"):
        asyncio.run(start())


def test_outputs_that_do_not_arrive_are_named(monkeypatch):
    def late(*_, **__):
        raise CellTimeoutError.error_from_timeout_and_cell("late", 60, nbformat.v4.new_code_cell("1"))

    monkeypatch.setattr(execution.papermill, "execute_notebook", late)
    problem = execution.execute({"parameters": {}, "kernel": "python3", "folder": os.curdir}, execution.Hooks(print))
    assert problem["kind"] == "outputs lost"
    assert problem["message"] == "the cell has ended, but its outputs had not all arrived 60 s later"
