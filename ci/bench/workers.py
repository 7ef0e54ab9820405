"""The frameworks' processes as run.py sees them: one that dies or takes too long is started anew, without the cause."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
from pathlib import Path

import works

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class Failure(Exception):
    """A command that failed; its message says why."""


class Gone(Failure):
    """The process died, or took too long and was ended."""


def environment():
    path = [str(ROOT / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in path if part), "TF_CPP_MIN_LOG_LEVEL": "3"}


class Worker:
    """A framework's process. Raises Gone if it does not start."""

    def __init__(self, framework):
        self.framework = framework
        self._process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self.version = self._answer(None)["version"]

    def _answer(self, limit):
        with selectors.DefaultSelector() as selector:  # an answer is one line, read whole: none waits in a buffer
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                self.kill()
                raise Gone(f"not ready after {limit:g} s")
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise Gone(f"{self.framework}'s process died; `python ci/bench/worker.py {self.framework}` shows why")
        return json.loads(line)

    def ask(self, limit=None, **command):
        """Return the answer to a command. Raises Failure, or Gone if there is none, or none within so many seconds."""
        with contextlib.suppress(BrokenPipeError):  # it has died: reading its answer says so
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        answer = self._answer(limit)
        if "failure" in answer:
            raise Failure(answer["failure"])
        return answer

    def kill(self):
        self._process.kill()
        self.close()

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


class Framework:
    """A framework, whose process may have to be started more than once.

    Attributes:
        version: its name and version, or why there is none.
    """

    def __init__(self, name, limit):
        self.name, self._limit = name, limit
        self._closed, self._slow = False, {}
        self._start()

    def _start(self):
        if self._closed:
            self._worker = None
            return
        try:
            self._worker = Worker(self.name)
            self.version = self._worker.version
        except Gone as gone:
            self._worker, self.version = None, f"{self.name} not measured: {gone}"

    def prepare(self, index, folder):
        """Call each recipe of a work once. Return the names of those that are ready, and why the others are not.

        What took too long for one size is not tried for another: compiling takes about as long for each.
        """
        kind = works.WORKS[index].kind
        failures = {name: f"{why}, at another size" for (of, name), why in self._slow.items() if of == kind}
        while self._worker:
            try:
                return self._first_calls(index, folder, failures), failures
            except Gone:
                self._start()  # all recipes have to be made anew, but for those among the failures
        return [], failures

    def _first_calls(self, index, folder, failures):
        whole = f"all of {self.name}"
        if whole in failures:
            return []
        ready = []
        try:
            names = self._worker.ask(prepare=index)["recipes"]
        except Failure as failure:
            failures[whole] = str(failure)
            if isinstance(failure, Gone):
                raise
            return []
        for name in names:
            if name in failures:
                continue
            try:
                self._worker.ask(self._limit, first=name, folder=str(folder))
                ready.append(name)
            except Failure as failure:
                failures[name] = str(failure)
                if isinstance(failure, Gone):
                    self._slow[works.WORKS[index].kind, name] = str(failure)
                    raise
        return ready

    def time(self, name, seconds):
        """Return the least and the median time of a prepared recipe's calls. Raises Failure."""
        try:
            return self._worker.ask(self._limit, time=name, seconds=seconds)
        except Gone:
            self._start()
            raise

    def close(self):
        """End the process, also while another thread waits for it."""
        self._closed = True
        if self._worker:
            self._worker.kill()
