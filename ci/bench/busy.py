"""Whether others use the cores: the share of the machine's processor time that went to processes other than ours."""

import os
import time
from pathlib import Path

LIMIT = 0.05  # of the cores' time; an idle machine's own services take one or two hundredths


def machine_ticks(text):
    """Return the time in use and all of it, in ticks over all cores, from the text of /proc/stat.

    What the machine below took away ("steal") counts as in use; waiting for a disk does not.
    """
    fields = [int(field) for field in text.splitlines()[0].split()[1:9]]  # guests' time is in the first two already
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def process_ticks(text):
    """Return the ticks that a process and the children that it waited for took, from the text of /proc/PID/stat."""
    return sum(int(field) for field in text.rpartition(")")[2].split()[11:15])  # the name before may have spaces


def snapshot(ours):
    """Return the ticks of the machine in use, all of its ticks, and those of our processes, given by their ids."""
    used, total = machine_ticks(Path("/proc/stat").read_text())
    return used, total, sum(process_ticks(Path(f"/proc/{pid}/stat").read_text()) for pid in ours)


def others(before, after):
    """Return the share of the cores' time between two snapshots that others had, from 0 to 1."""
    used, total, ours = (last - first for first, last in zip(before, after, strict=True))
    return max(0.0, (used - ours) / total) if total else 0.0


def watch(seconds=1.0):
    """Return the share of the cores' time that others have in the next seconds, in which this process sleeps."""
    before = snapshot([os.getpid()])
    time.sleep(seconds)
    return others(before, snapshot([os.getpid()]))


def reasons(before, during, limit=LIMIT):
    """Say why the machine was busy: nothing if it was not. Both are shares; `during` is None if nothing was timed."""
    said = [("before the start", before), ("while recipes were timed", during)]
    return [f"others had {share:.0%} of the cores' time {when}" for when, share in said if share and share > limit]
