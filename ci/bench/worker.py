"""One framework in one process: reads commands from stdin, a JSON object a line, and answers each with one.

{"prepare": work's index, "folder": where results go}   -> {"recipes": {name: null or why not}}
{"time": recipe, "seconds": about how long}             -> {"seconds": of one call, the least of several}
{"memory": recipe}                                      -> {"bytes": net peak of a first call}
"""

import importlib
import json
import os
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
    return getattr(framework, f"run_{work.kind}")(work)


def prepare(framework, work, folder):
    recipes, answers = {}, {}
    for name, run in make(framework, work).items():
        if name == "guide" and work.name in works.TOO_SLOW_FOR_THE_GUIDE:
            continue
        try:
            result = run()
            if result is not None:
                framework.wait(result)
        except Exception as error:  # a recipe that this machine cannot run is left out, and said to be
            answers[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            continue
        recipes[name] = run
        answers[name] = None
        if result is not None:
            np.savez(Path(folder) / f"{name}.npz", *framework.to_numpy(result))
    return recipes, answers


def measure(framework, run, seconds):
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        result = run()
        if result is not None:  # the memory-write floor has none
            framework.wait(result)
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return best


def peak(framework, work, name):
    # Compiling something small first loads the compiler. The large call is its process's first: what a call has freed,
    # the process may keep, and would not have to ask for again.
    framework.wait(make(framework, works.WORKS[0])[name]())
    run = make(framework, work)[name]
    seen, done = [resident()], threading.Event()

    def watch():  # the kernel's own high-water mark cannot be reset everywhere
        while not done.wait(0.001):
            seen.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    framework.wait(run())
    done.set()
    watcher.join()
    return max(seen) - seen[0]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a framework prints goes to stderr
    framework = importlib.import_module(sys.argv[1])
    recipes = {}
    print(json.dumps({"version": framework.version()}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "prepare" in command:
            recipes, failures = prepare(framework, works.WORKS[command["prepare"]], command["folder"])
            answer = {"recipes": failures}
        elif "time" in command:
            answer = {"seconds": measure(framework, recipes[command["time"]], command["seconds"])}
        else:
            answer = {"bytes": peak(framework, works.MEMORY, command["memory"])}
        print(json.dumps(answer), file=answers, flush=True)


main()
