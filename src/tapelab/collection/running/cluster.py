"""The runs on a Dask cluster. Dask schedules them, and repeats those whose worker died; this submits and listens.

The notebooks' texts and the progress of the runs travel once for each worker, by a plugin; jobs are small, and executed
notebooks come back as the jobs' results. The workers need tapelab, and no file of this machine.
"""

import contextlib
import json
import logging
import multiprocessing
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from queue import Queue
from typing import Any
from urllib.parse import urlsplit

from tapelab.collection.reports.records import Problem
from tapelab.collection.running import environment, single_run, variables
from tapelab.collection.running.children import GRACE_SECONDS, Children, for_each

import click
from distributed import Client, Future, KilledWorker, Worker, WorkerPlugin, get_worker

CONNECT_SECONDS = 20
EMPTY_SECONDS = 60  # without any worker, after which the batch gives up
TELL_SECONDS = 0.5  # between two messages from one run about its current cell
MOST_BLAMED = 10  # times that a job may have been waiting on a worker that others killed


class ClusterError(click.ClickException, LookupError):
    """The cluster cannot be used. The message says why."""


class _Share(WorkerPlugin):
    """What a worker holds for a batch: the notebooks' texts, the processes of its runs, and what starts them."""

    def __init__(
        self,
        name: str,
        sources: Mapping[str, str],
        threads_of_host: Mapping[str, int],
        fork: bool,
        passed: Iterable[str] = (),
    ):
        self.name, self.sources, self._threads_of_host = name, sources, threads_of_host
        self._fork, self._passed = fork, passed

    def setup(self, worker: Worker) -> None:
        host = urlsplit(worker.address).hostname
        sharing = max(self._threads_of_host.get(host, 0), worker.state.nthreads)
        self._worker, self._environment = worker, variables.for_kernels(sharing, self._passed)
        self._running, self._ending = {}, False
        # Dask makes its workers daemons, to which Python allows no processes; ours end with their worker all the same.
        multiprocessing.current_process()._config.pop("daemon", None)

    @contextlib.contextmanager
    def children(self) -> Iterator[Children]:
        """The `Children` of a job, for the time that it takes."""
        variables.check(self._passed)  # here: an error in `setup` would keep the worker from joining the cluster
        key, own = self._worker.get_current_task(), Children(self._environment, self._fork, self._say)
        self._running[key] = own
        if self._ending:
            own.end_all()
        try:
            yield own
        finally:
            del self._running[key]

    def _say(self, text: str) -> None:
        self._worker.log_event(self.name, ("note", text))

    def transition(self, key: str, start: str, finish: str, **_: Any) -> None:
        """Call a run off when nobody waits for it any more: a client has gone that was killed or lost its network."""
        # A task that ends by itself goes to another state, such as "memory".
        if (start, finish) == ("executing", "released") and key in self._running:
            threading.Thread(target=self._running[key].end_all).start()

    def end_all(self) -> None:
        """End every run under way, and each that would start."""
        self._ending = True
        for_each(Children.end_all, list(self._running.values()))

    def teardown(self, worker: Worker) -> None:
        self.end_all()


def work(job: single_run.Job, batch: str) -> single_run.Outcome:
    """Do one job on a worker. Returns its `Outcome`."""
    worker = get_worker()
    share = worker.plugins[batch]
    told = 0.0

    def on_cell(cell: int, cells: int) -> None:
        nonlocal told
        if time.monotonic() - told > TELL_SECONDS:
            told = time.monotonic()
            worker.log_event(batch, ("cell", job.run.name, cell, cells, worker.address))

    worker.log_event(batch, ("cell", job.run.name, 0, 0, worker.address))
    source = share.sources[job.run.notebook]
    with share.children() as children:
        outcome = single_run.run(job, source, children=children, on_cell=on_cell)
    outcome.where = worker.address
    return outcome


def _end_children(batch: str, dask_worker: Worker) -> None:
    dask_worker.plugins[batch].end_all()


class Cluster:
    """Runs jobs on the workers of a Dask cluster, as `pool.Local` does on this machine: one for each of their threads.

    Args:
        address: the scheduler's, such as ``tcp://10.0.0.1:8786``, or a scheduler file's name, ending in ``.json``.
        fork: as for `pool.Local`; each worker has a fork server of its own, until it ends.
        passed: names of environment variables, as for `pool.Local`. Each worker passes its own: no value travels.
        work: what a worker does with a job and the batch's name.

    Raises:
        ClusterError: if there is no scheduler, or no worker joins it in time.
    """

    def __init__(
        self,
        address: str,
        fork: bool = True,
        passed: Iterable[str] = (),
        work: Callable[[single_run.Job, str], single_run.Outcome] = work,
    ):
        self._address = address
        # It would tell of a lost scheduler by a traceback; `trouble` does it in a sentence.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        place = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
        try:
            self._client = Client(**place, timeout=CONNECT_SECONDS, set_as_default=False, name="tapelab")
        except (OSError, ValueError) as error:
            raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error
        try:
            self._client.wait_for_workers(1, timeout=EMPTY_SECONDS)
        except TimeoutError:
            self._client.close()
            raise ClusterError(f"the Dask cluster at {address} has no worker") from None
        self.workers = sum(self._client.nthreads().values())
        self._batch, self._fork, self._passed, self._work = f"tapelab-{uuid.uuid4().hex}", fork, passed, work
        self._futures, self._begun, self._blamed = {}, {}, Counter()
        self._stopping = self._lost = False

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def environment(self, kernel: str) -> dict:
        """What the workers run on, which must be the same for all.

        Raises:
            LookupError: if there is no such kernel, the workers differ, or one lacks a variable that is to be passed.
        """
        self._client.run(variables.check, self._passed)
        found = self._client.run(environment.of_kernel, kernel)
        groups = {}
        for address, described in found.items():
            groups.setdefault(json.dumps(described, sort_keys=True), []).append(address)
        if len(groups) > 1:
            first, second = (json.loads(text) for text in list(groups)[:2])
            flat, other = (one_.pop("packages", {}) | one_ for one_ in (first, second))
            differing = sorted(name for name in flat | other if flat.get(name) != other.get(name))
            places = "; ".join(", ".join(addresses) for addresses in groups.values())
            raise ClusterError(
                f"the workers' environments differ in {', '.join(differing)}: {places}. Install the same on each"
            )
        return next(iter(found.values())) | {"passed": sorted(self._passed)}

    def start(self, jobs: list[single_run.Job], sources: dict[str, str], queue: Queue) -> None:
        """Submit the jobs, the first ones first. The arguments are those of `pool.Local.start`."""
        hosts = Counter()
        for address, threads in self._client.nthreads().items():
            hosts[urlsplit(address).hostname] += threads
        self._queue = queue
        self._client.subscribe_topic(self._batch, self._tell)
        share = _Share(self._batch, sources, dict(hosts), self._fork, self._passed)
        self._client.register_plugin(share, name=self._batch)
        for place, job in enumerate(jobs):
            self._submit(job, -place)

    def _submit(self, job: single_run.Job, priority: int) -> None:
        name = job.run.name
        key = f"{name}-{self._batch}-{self._blamed[name]}"
        future = self._client.submit(self._work, job, self._batch, key=key, priority=priority, pure=False)
        self._futures[name] = future
        future.add_done_callback(lambda future: self._take(future, job, priority))

    def _tell(self, event: tuple[Any, tuple[Any, ...]]) -> None:
        _, (kind, *values) = event
        if kind == "cell":
            self._begun[values[0]] = values[-1]
        self._queue.put((kind, *values))

    def _take(self, future: Future, job: single_run.Job, priority: int) -> None:
        """Put a finished job's outcome into the queue, and let the cluster forget it."""
        name = job.run.name
        try:
            outcome = future.result(timeout=CONNECT_SECONDS)
        except KilledWorker as error:
            last = error.last_worker.address
            if self._begun.get(name) != last and self._blamed[name] < MOST_BLAMED:
                # Dask blames all that a dead worker was to do. This job had not begun there: it starts anew.
                self._blamed[name] += 1
                self._submit(job, priority)
                return
            message = f"{error.allowed_failures + 1} workers died while running it, the last was {last}"
            outcome = single_run.Outcome(name, Problem("worker died", message))
        except CancelledError:  # by `stop`, or the client has lost the scheduler, and with it every job
            self._lost = not self._stopping
            return
        except Exception as error:
            if self._stopping:
                return
            problem = Problem("process", f"on the cluster: {type(error).__name__}: {error}")
            outcome = single_run.Outcome(name, problem)
        self._queue.put(("done", outcome))
        future.release()

    def trouble(self) -> str | None:
        """Why the rest of the jobs cannot be done, or None."""
        if self._lost or self._client.status not in ("running", "connecting"):
            return f"the Dask scheduler at {self._address} is gone"
        return None

    def stop(self) -> None:
        """End every run under way, start no more, and wait a while for the outcomes of those that had begun."""
        if self._stopping or not self._futures or self._client.status != "running":
            return
        self._stopping = True
        left = {name: future for name, future in self._futures.items() if not future.done()}
        self._client.cancel([future for name, future in left.items() if name not in self._begun], force=True)
        asked = threading.Thread(
            target=self._client.run, args=(_end_children, self._batch), kwargs={"on_error": "ignore"}
        )
        asked.start()
        asked.join(GRACE_SECONDS * 3)
        until = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < until and not all(left[name].done() for name in left if name in self._begun):
            time.sleep(0.1)
        time.sleep(0.2)  # the last outcomes pass through the callbacks' thread
        self._client.unregister_worker_plugin(self._batch)
