"""One recipe in a process of its own: `worker.py FRAMEWORK RECIPE WORK FILE`.

The first line that it writes tells of the first call: {"version", "first seconds", "net peak"}, or {"failure": why}.
The result is stored in FILE. Then each line on stdin is a number of seconds, and is answered with the median time of
the calls of a turn that is about so long.
"""

import dataclasses
import importlib
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path

import numpy as np
import works


def resident():
    """Read the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_call(framework, make, recipe, work):
    """Make a recipe and call it once. Returns it, its result, and what that took: seconds and bytes."""
    if work.memory:  # what is compiled first loads the compiler, whose memory is not the work's
        small = dataclasses.replace(work, sizes=tuple(min(size, 8) for size in work.sizes), batch=min(work.batch, 128))
        framework.wait(make(small)[recipe]())
    seen, done = [resident()], threading.Event()

    def watch():  # the kernel's own high-water mark cannot be reset everywhere
        while not done.wait(0.001):
            seen.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        run = make(work)[recipe]
        result = run()
        framework.wait(result)
        took = time.perf_counter() - start
    finally:
        done.set()
        watcher.join()
    return run, result, {"first seconds": took, "net peak": max(seen) - seen[0]}


def turn(framework, run, seconds):
    """Time calls for so long; the first, which meets other recipes' data in the caches, does not count."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 2:
        start = time.perf_counter()
        framework.wait(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints goes to stderr
    name, recipe, work, file = sys.argv[1:]
    work = next(each for each in works.WORKS if each.name == work)
    try:
        framework = importlib.import_module(f"with_{name}")
        run, result, told = first_call(framework, getattr(framework, work.kind), recipe, work)
        np.savez(file, *framework.to_numpy(result))
        told["version"] = framework.version()
    except Exception as error:  # a recipe that this machine cannot run is left out, and said to be
        run, told = None, {"failure": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"}
    print(json.dumps(told), file=answers, flush=True)
    for line in sys.stdin if run else ():
        print(turn(framework, run, float(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
