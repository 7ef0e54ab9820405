"""Time tapelab's derivatives beside TensorFlow's plain recipes, JAX and PyTorch: `make bench`.

First tapelab is compared with JAX on a battery of functions (battery.py). Then one process for each framework, fed the
same weights and data. A work's results are compared before it is timed. Rounds in which every recipe has its turn let
whatever else the machine does meet them all alike; what counts is the least time of a call. Prints the goals, the
figures, and whether they are met; writes build/bench/results.json and ratios.png. Ctrl-C keeps what was measured.

    run.py [--rounds 5] [--seconds 0.3] [--only TEXT]
    run.py --page          put the table of the last results.json into the site's page, and why goals are missed into
                           the bench's; nothing is timed
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import goals
import matplotlib
import numpy as np
import works

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / "build" / "bench"
SITE = ROOT / "site" / "how_it_compares.md"
PAGE = ROOT / "ci" / "bench" / "README.md"
FRAMEWORKS = ("with_tensorflow", "with_jax", "with_torch")
TOLERANCE = 2e-4  # float32, relative to a result's largest element


def environment():
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{HERE}", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Worker:
    """A framework's process."""

    def __init__(self, framework):
        self.framework = framework
        command = [sys.executable, HERE / "worker.py", framework]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self.version = self._answer()["version"]

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.framework}: the worker died; run worker.py {self.framework} to see why")
        return json.loads(line)

    def ask(self, **command):
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def compare(folder, work):
    """Raise SystemExit unless all stored results of a work agree with tapelab's."""
    reference = np.load(folder / "tapelab.npz")
    for path in sorted(folder.glob("*.npz")):
        other = np.load(path)
        for key in reference.files:
            wanted, found = reference[key], other[key].reshape(reference[key].shape)
            error = np.abs(found - wanted).max() / np.abs(wanted).max()
            if not error <= TOLERANCE:
                raise SystemExit(f"{work.name}: {path.stem} differs from tapelab by {error:.1e} of the largest element")


def bench(workers, index, rounds, seconds):
    work = works.WORKS[index]
    folder = OUTPUT / "results" / str(index)
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.npz"):
        stale.unlink()
    turns, failures = [], {}
    for worker in workers:
        for name, failure in worker.ask(prepare=index, folder=str(folder))["recipes"].items():
            if failure:
                failures[name] = failure
            else:
                turns.append((worker, name))
    compare(folder, work)
    times = {name: [] for _, name in turns}
    for _ in range(rounds):
        for worker, name in turns:
            times[name].append(worker.ask(time=name, seconds=seconds)["seconds"])
    return {"work": work.name, "seconds": {name: min(values) for name, values in times.items()}, "failures": failures}


def battery():
    """Compare tapelab with JAX, in a process of its own; end the run where they disagree."""
    print("Comparing tapelab with JAX on the battery", flush=True)
    run = subprocess.run([sys.executable, HERE / "battery.py"], env=environment(), text=True, capture_output=True)
    if run.returncode:
        raise SystemExit(f"{run.stdout}{run.stderr}\nNothing is timed before the results are right.")
    print(run.stdout, end="", flush=True)
    return run.stdout.strip()


def memory():
    """Return each recipe's net peak memory for one large Hessian, as a multiple of the matrix. New processes."""
    size = sum(weight.size for weight in works.weights(works.MEMORY))
    multiples = {}
    for framework, name in [
        ("with_tensorflow", "tapelab"),
        ("with_tensorflow", "tapelab chunks"),
        ("with_jax", "jax"),
        ("with_torch", "torch"),
    ]:
        worker = Worker(framework)
        multiples[name] = worker.ask(memory=name)["bytes"] / (4 * size**2)
        worker.close()
    return multiples


def table(results):
    lines = [f"{'work':30} {'tapelab':>12}  time of others, as a multiple of tapelab's"]
    for result in results:
        seconds = result["seconds"]
        ours = seconds["tapelab"]
        others = [f"{name} {value / ours:.2f}" for name, value in seconds.items() if name != "tapelab"]
        others += [f"{name} failed" for name in result["failures"]]
        lines.append(f"{result['work']:30} {1e3 * ours:9.3f} ms  {', '.join(others)}")
    return "\n".join(lines)


def plot(results, path, caption):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    markers = {
        "guide": ("s", "#7F7F7F"),
        "jax": ("o", "#0072B2"),
        "torch": ("^", "#E69F00"),
        "torch compiled": ("v", "#D55E00"),
    }
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    rows = range(len(results))
    for name, (marker, colour) in markers.items():
        points = [
            (r["seconds"][name] / r["seconds"]["tapelab"], y)
            for y, r in zip(rows, results, strict=True)
            if name in r["seconds"]
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(list(rows), labels=[result["work"] for result in results])
    axes.invert_yaxis()
    axes.set(
        title=f"Time of one call as a multiple of tapelab's\n{caption}",
        xlabel="multiple; right of 1, tapelab is faster",
        ylabel="work",
    )
    axes.legend()
    figure.savefig(path, dpi=120)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one recipe's turn in a round")
    parser.add_argument("--only", default="", help="only the works whose name contains this")
    parser.add_argument("--page", action="store_true", help="put the last results into the pages, and time nothing")
    options = parser.parse_args()
    if options.page:
        try:
            report = json.loads((OUTPUT / "results.json").read_text())
        except FileNotFoundError:
            raise SystemExit("there is no build/bench/results.json yet: run `make bench` first") from None
        for page, block in ((SITE, goals.markdown(report)), (PAGE, goals.reasons(report))):
            page.write_text(goals.into(page.read_text(encoding="utf-8"), block), encoding="utf-8")
        return
    OUTPUT.mkdir(parents=True, exist_ok=True)

    agreement = battery()
    before = machine()
    workers = [Worker(framework) for framework in FRAMEWORKS]
    versions = [worker.version for worker in workers]
    results, multiples = [], {}
    try:
        for index, work in enumerate(works.WORKS):
            if options.only in work.name:
                results.append(bench(workers, index, options.rounds, options.seconds))
                print(table(results[-1:]).splitlines()[1], flush=True)
        if options.only in works.MEMORY.name:
            multiples = memory()
    except KeyboardInterrupt:
        print("\nInterrupted. What was measured until now:")
    for worker in workers:
        worker.close()

    report = {
        "machine": before,
        "load after": os.getloadavg()[0],
        "versions": versions,
        "battery": agreement,
        "results": results,
        "memory": multiples,
    }
    report["goals"] = [
        {"work": goal.work, "figure": goal.figure, "goal": goal.limit, "measured": figure, "verdict": verdict}
        for goal, figure, verdict in goals.judge(report)
    ]
    (OUTPUT / "results.json").write_text(json.dumps(report, indent=1) + "\n")
    caption = f"{before['processor']}, {before['cores']} cores; {', '.join(versions)}"
    plot(results, OUTPUT / "ratios.png", caption)
    print(f"\n{caption}; load {before['load']:.1f} to {report['load after']:.1f}\n")
    print(table(results))
    if multiples:
        shares = ", ".join(f"{name} {value:.2f}" for name, value in multiples.items())
        print(f"{works.MEMORY.name}: {shares} times the matrix")
    print(f"\n{goals.plain(report)}")
    print(f"\nWritten: {', '.join(str((OUTPUT / name).relative_to(ROOT)) for name in ('results.json', 'ratios.png'))}")


if __name__ == "__main__":
    main()
