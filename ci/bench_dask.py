"""What scheduling costs: empty runs on a local Dask cluster, submitted and collected as `tapelab run --dask` does.

usage: python ci/bench_dask.py [RUNS [WORKERS]]
"""

import queue
import sys
import time

from tapelab.collection.running import cluster, single_run, sweep

from distributed import LocalCluster


def nothing(job, batch):
    """Take a job, do nothing, give back an outcome with as many bytes as an executed notebook."""
    return single_run.Outcome(job.run.name, None, notebook=bytes(150_000))


def main(runs=1000, workers=2):
    jobs = [
        single_run.Job(sweep.Run(f"00_empty__seed={seed}", "00_empty", {"seed": seed}), "python3", "/", 60.0)
        for seed in range(runs)
    ]
    settings = {"n_workers": workers, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(**settings) as local, cluster.Cluster(local.scheduler_address, work=nothing) as executor:
        events = queue.Queue()
        began, used = time.monotonic(), time.process_time()
        executor.start(jobs, {"00_empty": "x" * 150_000}, events)
        submitted = time.monotonic() - began
        for _ in jobs:
            kind, outcome = events.get(timeout=600)
            assert (kind, outcome.problem) == ("done", None), outcome
        seconds, used = time.monotonic() - began, time.process_time() - used
    print(f"{runs} empty runs on {workers} workers: {seconds:.1f} s, {1000 * seconds / runs:.1f} ms each")
    print(f"submitted after {submitted:.1f} s; this process, which schedules and collects, computed for {used:.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
