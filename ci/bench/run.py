"""Time tapelab's derivatives beside TensorFlow's plain recipes, JAX and PyTorch: `make bench`.

First tapelab is compared with JAX on a battery of functions (battery.py). Then one process for each framework, fed the
same weights and data. A work's results are compared before it is timed: a recipe whose result differs from tapelab's is
not timed, one that fails or is not ready in time is left out, and both are said. In a round every recipe has its turn,
so that whatever else the machine does meets them all alike. A turn's time is the median of its calls, a recipe's the
median of its turns; the least is kept beside it.

Where others use the cores, before the start or while recipes are timed, the figures are printed and written to
results-busy.json, and results.json stays as it was. Prints the goals, the figures, and whether they are met; writes
build/bench/results.json and ratios.png. Ctrl-C keeps what was measured. The exit status is 1 if results disagreed.

Last, what decides speed in tapelab is measured again, the constants of `tapelab.derivatives.costs`: constants.py.

    run.py [--rounds 5] [--seconds 0.3] [--limit 90] [--only TEXT]
    run.py --constants     measure the constants alone; --only takes a part of their names
    run.py --page          put the table of the last results.json into the site's page, and why goals are missed into
                           the bench's; nothing is timed
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import busy
import goals
import numpy as np
import plots
import works
from workers import ROOT, Failure, Framework, Gone, Worker, environment

HERE = Path(__file__).parent
OUTPUT = ROOT / "build" / "bench"
SITE = ROOT / "site" / "how_it_compares.md"
PAGE = ROOT / "ci" / "bench" / "README.md"
FRAMEWORKS = ("with_tensorflow", "with_jax", "with_torch")
TOLERANCE = {"float32": 2e-4, "float64": 1e-10}  # relative to a result's largest element


def difference(reference, other):
    """Return the largest difference of a result's tensors, relative to each one's largest element.

    A tensor that is zero is compared relative to the whole result's largest element. Infinite where numbers or sizes
    of tensors do not fit.
    """
    if sorted(reference) != sorted(other) or any(reference[key].size != other[key].size for key in reference):
        return np.inf
    largest, errors = max(np.abs(wanted).max() for wanted in reference.values()), []
    for key, wanted in reference.items():
        error = np.abs(other[key].reshape(wanted.shape) - wanted).max()
        errors.append(error / (np.abs(wanted).max() or largest or 1))
    return np.max(errors)  # NaN if one of them is


def compare(folder, work):
    """Return the recipes whose stored results differ from tapelab's, and by how much. Raises Failure if all do."""
    paths = sorted(folder.glob("*.npz"))
    results = {path.stem: dict(np.load(path)) for path in paths}
    if "tapelab" not in results:
        raise Failure("tapelab has no result")
    reference, wrong = results.pop("tapelab"), {}
    for name, result in results.items():
        error = difference(reference, result)
        if not error <= TOLERANCE[work.dtype]:
            wrong[name] = f"differs from tapelab by {error:.1e} of the largest element"
    if wrong and len(wrong) == len(results):
        raise Failure(f"no result agrees with tapelab's: {wrong}")
    return wrong


def rounds_of(turns, rounds, seconds, failures):
    """Return each recipe's least and median time of every round, and the share of the cores' time that others had."""
    times = {name: [] for _, name in turns}
    before = busy.snapshot()
    for _ in range(rounds):
        for framework, name in list(turns):
            try:
                times[name].append(framework.time(name, seconds))
            except Failure as failure:
                gone = isinstance(failure, Gone)  # then what else was prepared there is gone too
                lost = [turn for turn in turns if turn[0] is framework and (gone or turn[1] == name)]
                failures |= {lost_name: str(failure) for _, lost_name in lost}
                turns = [turn for turn in turns if turn not in lost]
    return {name: times[name] for _, name in turns}, busy.others(before, busy.snapshot())


def bench(frameworks, index, rounds, seconds):
    work = works.WORKS[index]
    folder = OUTPUT / "results" / str(index)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.npz"):
        stale.unlink()
    began = time.monotonic()
    turns, failures, disagree = [], {}, {}
    pool = ThreadPoolExecutor()  # compiling takes most of the time, and frameworks can do it side by side
    try:
        prepared = list(pool.map(lambda framework: framework.prepare(index, folder), frameworks))
    except KeyboardInterrupt:
        for framework in frameworks:
            framework.close()
        raise
    finally:
        pool.shutdown()
    for framework, (ready, failed) in zip(frameworks, prepared, strict=True):
        turns += [(framework, name) for name in ready]
        failures |= failed
    try:
        disagree = compare(folder, work)
    except Failure as failure:
        turns, disagree = [], {"tapelab": str(failure)}
    prepared_in = time.monotonic() - began
    turns = [turn for turn in turns if turn[1] not in disagree]
    times, share = rounds_of(turns, rounds, seconds, failures)
    return {
        "work": work.name,
        "seconds": {name: statistics.median(turn["median"] for turn in found) for name, found in times.items()},
        "least": {name: min(turn["least"] for turn in found) for name, found in times.items()},
        "failures": failures | disagree,
        "disagree": sorted(disagree),
        "others": share,
        "prepared in": prepared_in,
        "took": time.monotonic() - began,
    }


def battery():
    """Compare tapelab with JAX, in a process of its own; end the run where they disagree."""
    print("Comparing tapelab with JAX on the battery", flush=True)
    run = subprocess.run([sys.executable, HERE / "battery.py"], env=environment(), text=True, capture_output=True)
    if run.returncode:
        raise SystemExit(f"{run.stdout}{run.stderr}\nNothing is timed before the results are right.")
    print(run.stdout, end="", flush=True)
    return run.stdout.strip()


def memory(work):
    """Return each recipe's net peak memory for a large work, in bytes, its time, and the failures. New processes."""
    peaks, seconds, failures = {}, {}, {}
    for framework, name in works.MEASURED_FOR_MEMORY[work.kind]:
        try:
            worker = Worker(framework)
            answer = worker.ask(memory=works.MEMORY.index(work), recipe=name)
            peaks[name], seconds[name] = answer["bytes"], answer["seconds"]
            worker.close()
        except Failure as failure:
            failures[name] = str(failure)
    return {
        "work": work.name,
        "bytes": peaks,
        "result bytes": works.result_bytes(work),
        "first seconds": seconds,
        "failures": failures,
    }


def colours():
    """Count the colours of sparse patterns, in a process of its own. Returns nothing where that fails."""
    run = subprocess.run([sys.executable, HERE / "colours.py"], env=environment(), text=True, capture_output=True)
    if run.returncode:
        print(f"Colours were not counted: {(run.stderr.strip().splitlines() or ['no message'])[-1]}", flush=True)
        return {}
    return json.loads(run.stdout)


def constants(only, found):
    """Measure again the constants that decide speed, whose name contains a text, in a process of its own.

    What is found of each is put into a dictionary: as far as it came, if that fails.
    """
    command = [sys.executable, HERE / "constants.py", "--only", only]
    with subprocess.Popen(command, env=environment(), text=True, stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            measured = json.loads(line)
            name = measured.pop("constant")
            found[name] = measured
            print(
                "\n".join([constant_told(name, measured), *[f"    {case}" for case in measured["cases"]]]), flush=True
            )
    if process.returncode:
        print("Not all constants were measured: see above.", flush=True)


def constant_told(name, measured):
    verdict = "holds" if measured["holds"] else "WOULD BE ANOTHER HERE"
    return f"{name} = {measured['now']}: {verdict} ({measured['told']})"


def allocator():
    """Return what TensorFlow's allocator does with memory that was freed. A new process."""
    try:
        worker = Worker("with_tensorflow")
        found = worker.ask(allocator=True)["allocator"]
    except Failure as failure:
        return f"not known: {failure}"
    worker.close()
    return found


def table(results):
    lines = [f"{'work':30} {'tapelab':>12}  time of others, as a multiple of tapelab's"]
    for result in results:
        seconds = result["seconds"]
        ours = seconds.get("tapelab", np.nan)
        others = [f"{name} {value / ours:.2f}" for name, value in seconds.items() if name != "tapelab"]
        lines.append(f"{result['work']:30} {1e3 * ours:9.3f} ms  {', '.join(others)}")
        lines += [f"{'':30} {name}: {why}" for name, why in result["failures"].items()]
    return "\n".join(lines)


def machine():
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
    }


def put_into_pages():
    try:
        report = json.loads((OUTPUT / "results.json").read_text())
    except FileNotFoundError:
        raise SystemExit("there is no build/bench/results.json yet: run `make bench` first, on idle cores") from None
    if report["busy"]:
        raise SystemExit(f"the machine was busy: {'; '.join(report['busy'])}. Run `make bench` on idle cores")
    for page, block in ((SITE, goals.markdown(report)), (PAGE, goals.bounds(report))):
        page.write_text(goals.into(page.read_text(encoding="utf-8"), block), encoding="utf-8")


def write(report):
    """Write the report and its plot. Return the paths: other ones if the machine was busy."""
    suffix = "-busy" if report["busy"] else ""
    results, ratios = OUTPUT / f"results{suffix}.json", OUTPUT / f"ratios{suffix}.png"
    results.write_text(json.dumps(report, indent=1) + "\n")
    plots.ratios(report["results"], ratios, goals.setting(report))
    return results, ratios


def show(report):
    print(f"\n{goals.setting(report)}\n")
    print(table(report["results"]))
    for measured in report["memory"]:
        peaks = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in measured["bytes"].items())
        failed = [f"{name}: {why}" for name, why in measured["failures"].items()]
        print(f"{measured['work']}: {'; '.join([peaks, *failed])}")
    for pattern, count in report["colours"].items():
        print(f"colours, {pattern}: tapelab {count['tapelab']}, asdex {count['asdex']}")
    print(f"\n{goals.plain(report)}")
    others = [constant_told(*measured) for measured in report["constants"].items() if not measured[1]["holds"]]
    if report["constants"]:
        count = len(report["constants"])
        print("\n".join([f"\nOf {count} constants, {count - len(others)} hold here.", *others]))
    for why in report["busy"]:
        print(f"\nThe machine was busy: {why}. The figures are not worth keeping; results.json stays as it was.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one recipe's turn in a round")
    parser.add_argument("--limit", type=float, default=90, help="seconds that a recipe's first call may take")
    parser.add_argument("--only", default="", help="only the works and constants whose name contains this")
    parser.add_argument("--constants", action="store_true", help="the constants of tapelab.derivatives.costs alone")
    parser.add_argument("--page", action="store_true", help="put the last results into the pages, and time nothing")
    options = parser.parse_args()
    if options.page:
        put_into_pages()
        return
    OUTPUT.mkdir(parents=True, exist_ok=True)

    began, before, others = time.monotonic(), machine(), busy.watch()
    for why in busy.reasons(others, None):
        print(f"The machine is busy: {why}. Going on; the figures will go to results-busy.json.", flush=True)
    if options.constants:
        constants(options.only, {})
        return
    agreement = battery()
    frameworks = [Framework(name, options.limit) for name in FRAMEWORKS]
    versions = [framework.version for framework in frameworks]
    results, memories, counts, measured = [], [], {}, {}
    try:
        for index, work in enumerate(works.WORKS):
            if options.only in work.name:
                results.append(bench(frameworks, index, options.rounds, options.seconds))
                print("\n".join(table(results[-1:]).splitlines()[1:]), flush=True)
        for work in works.MEMORY:
            if options.only in work.name:
                memories.append(memory(work))
        if options.only in "colours":
            counts = colours()
        constants(options.only, measured)
    except KeyboardInterrupt:
        print("\nInterrupted. What was measured until now:")
    for framework in frameworks:
        framework.close()

    shares = [result["others"] for result in results if result["seconds"]]
    during = statistics.mean(shares) if shares else None
    report = {
        "machine": before | {"others": others, "others while timed": during},
        "load after": os.getloadavg()[0],
        "busy": busy.reasons(others, during),
        "minutes": (time.monotonic() - began) / 60,
        "allocator": allocator(),
        "versions": versions,
        "battery": agreement,
        "results": results,
        "memory": memories,
        "colours": counts,
        "constants": measured,
    }
    report["goals"] = [
        {"work": goal.work, "figure": goal.figure, "goal": goal.limit, "measured": figure, "verdict": verdict}
        for goal, figure, verdict in goals.judge(report)
    ]
    show(report)
    print(f"\nWritten: {', '.join(str(path.relative_to(ROOT)) for path in write(report))}")
    if any(result["disagree"] for result in results):
        sys.exit("Results disagreed, and were not timed: see above.")


if __name__ == "__main__":
    main()
