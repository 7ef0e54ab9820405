"""Whether others use the cores: the share of the machine's processor time that went to processes other than ours."""

import contextlib
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
    """Return a process's parent, and the ticks that it and the children that it waited for took: /proc/PID/stat."""
    fields = text.rpartition(")")[2].split()  # the name before may have spaces
    return int(fields[1]), sum(int(field) for field in fields[11:15])


def family_ticks(processes, root):
    """Return the ticks of a process and of all that descend from it, given {id: (parent, ticks)}."""
    family, ticks = {root}, 0
    while family:
        ticks += sum(processes[pid][1] for pid in family if pid in processes)
        family = {pid for pid, (parent, _) in processes.items() if parent in family}
    return ticks


def snapshot():
    """Return the ticks of the machine in use, all of its ticks, and those of this process and its descendants."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            processes[int(path.parent.name)] = process_ticks(path.read_text(errors="replace"))
    return *machine_ticks(Path("/proc/stat").read_text()), family_ticks(processes, os.getpid())


def others(before, after):
    """Return the share of the cores' time between two snapshots that others had, from 0 to 1."""
    used, total, ours = (last - first for first, last in zip(before, after, strict=True))
    return max(0.0, (used - ours) / total) if total else 0.0


def watch(seconds=1.0):
    """Return the share of the cores' time that others have in the next seconds, in which this process sleeps."""
    before = snapshot()
    time.sleep(seconds)
    return others(before, snapshot())


def reasons(before, during, limit=LIMIT):
    """Say why the machine was busy: nothing if it was not. Both are shares; `during` is None if nothing was timed."""
    said = [("before the start", before), ("while recipes were timed", during)]
    return [f"others had {share:.0%} of the cores' time {when}" for when, share in said if share and share > limit]
