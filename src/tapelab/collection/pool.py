"""The runs on this machine, several at a time."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

from tapelab.collection import environment, forkserver, one


class Local:
    """Runs jobs on this machine.

    What happens goes into a queue, as in `cluster.Cluster`: ("cell", run's name, cell's number, cells, where) when a
    cell starts, with 0 for both numbers when the run does, ("done", `Outcome`) once for each job that was started, and
    ("note", text).

    Args:
        workers: how many jobs run side by side.
        fork: whether kernels and papermill are forked from processes that have done their imports, where that is sound.
    """

    def __init__(self, workers, fork=True):
        self.workers, self._fork = workers, fork
        self._cleanup = contextlib.ExitStack()
        self._children = one.Children()
        self._pool = ThreadPoolExecutor(workers)
        self._futures = []
        self._lock, self._starter = threading.Lock(), None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def environment(self, kernel):
        """What the runs will run on. Raises LookupError if there is no such kernel."""
        return environment.of_kernel(kernel)

    def start(self, jobs, sources, queue):
        """Begin with the jobs, the first ones first.

        Args:
            jobs: a list of `Job`.
            sources: the text of each notebook, by its name.
            queue: a `queue.Queue` for what happens.
        """
        self._fork = self._fork and len(jobs) > 1  # for one, the imports are no shorter in another process
        self._futures = [self._pool.submit(self._work, job, sources, queue) for job in jobs]

    def _begin(self, kernel, queue):
        """The `forkserver.Starter` of all jobs. The first one makes it, while others, and an interrupt, are waiting."""
        with self._lock:
            if self._starter is None:
                self._starter = forkserver.Starter(one.environment(self.workers))
                if self._fork:
                    forks = forkserver.starter(
                        self._starter.environment, kernel=kernel, say=lambda line: queue.put(("note", line))
                    )
                    self._starter = self._cleanup.enter_context(forks)
            return self._starter

    def _work(self, job, sources, queue):
        def on_cell(cell, cells):
            queue.put(("cell", job.run.name, cell, cells, "here"))

        on_cell(0, 0)
        try:
            starter = self._begin(job.kernel, queue)
            source = sources[job.run.notebook]
            outcome = one.run(job, source, children=self._children, starter=starter, on_cell=on_cell)
        except Exception as error:  # without an outcome the batch would wait for ever
            problem = one.Problem("process", one.clean(f"{type(error).__name__}: {error}"))
            outcome = one.Outcome(job.run.name, problem)
        queue.put(("done", outcome))

    def trouble(self):
        """None: this machine is there."""

    def stop(self):
        """End every run under way, start no more, and wait until each has put its outcome into the queue."""
        for future in self._futures:
            future.cancel()
        ender = threading.Thread(target=self._children.end_all)
        ender.start()
        self._pool.shutdown(cancel_futures=True)
        ender.join()
        self._cleanup.close()
