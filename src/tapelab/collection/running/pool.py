"""The runs on this machine, several at a time."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

from tapelab.collection.reports.records import Problem
from tapelab.collection.running import environment, single_run, variables
from tapelab.collection.running.children import Children


class Local:
    """Runs jobs on this machine.

    What happens goes into a queue, as in `cluster.Cluster`: ("cell", run's name, cell's number, cells, where) when a
    cell starts, with 0 for both numbers when the run does, ("done", `Outcome`) once for each job that was started, and
    ("note", text).

    Args:
        workers: how many jobs run side by side.
        fork: whether kernels and papermill are forked from processes that have done their imports, where that is sound.
        passed: names of environment variables that kernels get beyond `variables.NAMES`.
    """

    def __init__(self, workers: int, fork: bool = True, passed: Iterable[str] = ()):
        self.workers, self._fork, self._passed = workers, fork, sorted(passed)
        self._children = None
        self._pool = ThreadPoolExecutor(workers)

    def __enter__(self) -> "Local":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def environment(self, kernel: str) -> dict:
        """What the runs will run on.

        Raises:
            LookupError: if there is no such kernel, or a variable cannot be passed.
        """
        variables.check(self._passed)
        return environment.of_kernel(kernel) | {"passed": self._passed}

    def start(self, jobs: list[single_run.Job], sources: dict[str, str], queue: Queue) -> None:
        """Begin with the jobs, the first ones first.

        Args:
            jobs: what to do.
            sources: the text of each notebook, by its name.
            queue: for what happens.
        """
        fork = self._fork and len(jobs) > 1  # for one, the imports are no shorter in another process
        own = variables.for_kernels(self.workers, self._passed)
        self._children = Children(own, fork, say=lambda line: queue.put(("note", line)))
        for job in jobs:
            self._pool.submit(self._work, job, sources, queue)

    def _work(self, job: single_run.Job, sources: dict[str, str], queue: Queue) -> None:
        def on_cell(cell: int, cells: int) -> None:
            queue.put(("cell", job.run.name, cell, cells, "here"))

        on_cell(0, 0)
        try:
            outcome = single_run.run(job, sources[job.run.notebook], children=self._children, on_cell=on_cell)
        except Exception as error:  # without an outcome the batch would wait for ever
            problem = Problem("process", f"{type(error).__name__}: {error}")
            outcome = single_run.Outcome(job.run.name, problem)
        queue.put(("done", outcome))

    def trouble(self) -> None:
        """None: this machine is there."""

    def stop(self) -> None:
        """End every run under way, start no more, and wait until each has put its outcome into the queue."""
        if self._children is not None:
            self._children.end_all()
        self._pool.shutdown(cancel_futures=True)
