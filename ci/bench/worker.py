"""One framework in one process: reads commands from stdin, a JSON object a line, and answers each with one.

{"prepare": work's index}                    -> {"recipes": names}
{"first": recipe, "folder": for its result}  -> {}
{"time": recipe, "seconds": about how long}  -> {"least": seconds of one call, "median": the same}
{"memory": work's index, "recipe": recipe}   -> {"bytes": net peak of a first call, "seconds": that it took}
{"allocator": true}                          -> {"allocator": what it does with memory that was freed}

A command that fails is answered with {"failure": why}.
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
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make(framework, work):
    """Return the work's recipes in this framework, by name: none where it has none."""
    return getattr(framework, f"run_{work.kind}", lambda work: {})(work)


def prepare(framework, work):
    recipes = make(framework, work)
    if work.name in works.TOO_SLOW_FOR_THE_GUIDE:
        recipes.pop("guide", None)
    return recipes


def called(framework, run):
    """Return the result of a recipe once it is computed."""
    result = run()
    if result is not None:  # a floor and a gradient that others are held against have none
        framework.wait(result)
    return result


def first(framework, run, path):
    """Call a recipe, which compiles it, and store its result."""
    result = called(framework, run)
    if result is not None:
        np.savez(path, *framework.to_numpy(result))


def measure(framework, run, seconds):
    """Time calls for so long; the first of several, which meets other recipes' data in the caches, does not count."""
    times, end = [], time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        called(framework, run)
        now = time.perf_counter()
        times.append(now - start)
        if now > end:
            counted = times[1:] or times
            return {"least": min(counted), "median": statistics.median(counted)}


def peak(framework, work, name):
    # Compiling something small first loads the compiler. The large call is its process's first: what a call has freed,
    # the process may keep, and would not have to ask for again.
    small = dataclasses.replace(work, sizes=tuple(min(size, 8) for size in work.sizes), batch=min(work.batch, 128))
    called(framework, make(framework, small)[name])
    run = make(framework, work)[name]
    seen, done = [resident()], threading.Event()

    def watch():  # the kernel's own high-water mark cannot be reset everywhere
        while not done.wait(0.001):
            seen.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        called(framework, run)
        took = time.perf_counter() - start
    finally:
        done.set()
        watcher.join()
    return {"bytes": max(seen) - seen[0], "seconds": took}


def answer(framework, recipes, command):
    if "prepare" in command:
        recipes.clear()
        recipes |= prepare(framework, works.WORKS[command["prepare"]])
        return {"recipes": list(recipes)}
    if "first" in command:
        first(framework, recipes[command["first"]], Path(command["folder"]) / f"{command['first']}.npz")
        return {}
    if "time" in command:
        return measure(framework, recipes[command["time"]], command["seconds"])
    if "memory" in command:
        return peak(framework, works.MEMORY[command["memory"]], command["recipe"])
    return {"allocator": framework.allocator(resident)}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints goes to stderr
    framework = importlib.import_module(sys.argv[1])
    recipes = {}
    print(json.dumps({"version": framework.version()}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            said = answer(framework, recipes, json.loads(line))
        except Exception as error:  # a recipe that this machine cannot run is left out, and said to be
            lines = str(error).strip().splitlines() or ["no message"]
            said = {"failure": f"{type(error).__name__}: {lines[0][:200]}"}
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main()
