"""Derivatives of random programs against differences of values, as many as asked for: `make programs`.

What is counted are pairs of a program and a point: each program is traced once, and tried at up to 150 points. The
grammar, the judge and the checks are the tests' (tests/random_*.py), which run some at every `make test`. Here each
block of pairs has a seed and a process of its own, and leaves a file of what it found, with shrunk programs, in
build/random_programs/. What is there is not run again, so a run can be interrupted, and goes on where it was.

    make programs                                  10 000 pairs
    make ARGS="--count 100000" programs            a hundred thousand
    make ARGS="--seed 7 --count 2500" programs     one block
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 2500  # pairs of a process
BATCH = 50  # programs of a run of hypothesis, which ends at the first find
SHRINKS = 25  # how many smaller programs are tried of each find
OUTPUT = ROOT / "build" / "random_programs"
ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Enough(BaseException):
    """Ends the making smaller of a find. Of an exception that is an `Exception` hypothesis would make a find."""


class Batch:
    """A run of hypothesis: it draws programs until one is a find that is not known, and makes that one smaller."""

    def __init__(self, module, outcomes: Counter, known: list[tuple[str, frozenset[str]]]):
        self.module = module
        self.outcomes = outcomes
        self.known = known
        self.failed = {}  # by task, what was found: first what was drawn, then what hypothesis made of it
        self.tried = self.programs = 0

    def run(self, seed: int, count: int):
        """Draw so many programs at most. Returns the smallest task that fails and what was found, or None."""
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis import seed as seeded

        quiet = {"deadline": None, "database": None, "report_multiple_bugs": False}
        phases = [Phase.generate, Phase.shrink]

        @seeded(seed)
        @settings(max_examples=count, phases=phases, suppress_health_check=list(HealthCheck), **quiet)
        @given(self.module.tasks())
        def judge(task):
            if task not in self.failed:
                self.judge(task)
            if task in self.failed:
                raise self.module.Find(self.failed[task])

        with contextlib.suppress(self.module.Find, Enough):
            judge()
        return list(self.failed.items())[-1] if self.failed else None

    def judge(self, task):
        self.tried += bool(self.failed)
        if self.tried > SHRINKS:
            raise Enough
        try:
            outcomes = self.module.judged(task)
        except self.module.Find as find:
            check, names = family(task)
            if any(check == other and few <= names for other, few in self.known):
                outcomes = {"found before": 1}
            else:
                outcomes = {"found": 1}
                self.failed[task] = str(find)
                if self.tried == 0:
                    print(f"found: {find}", file=sys.stderr, flush=True)
        if self.tried == 0:
            self.programs += 1
            self.outcomes.update(outcomes)


def family(task) -> tuple[str, frozenset[str]]:
    """What finds are told apart by: the check and the operations."""
    return task.check, frozenset(step.name for step in task.program.steps)


def run_block(seed: int, count: int, known: list) -> dict:
    """Draw and judge so many pairs. What contains a known find, a check and operations, is counted, not shrunk."""
    sys.path.insert(0, str(ROOT / "tests"))
    import random_judge

    known = [(check, frozenset(names)) for check, names in known]
    outcomes, finds, batch, programs = Counter(), [], 0, 0
    while sum(outcomes.values()) < count:
        number = 1_000_000 * seed + batch
        run = Batch(random_judge, outcomes, known)
        found = run.run(number, BATCH)
        programs += run.programs
        if found:
            task, text = found
            check, names = family(task)
            known.append((check, names))
            finds.append({"seed": number, "check": check, "names": sorted(names), "text": text})
        batch += 1
    return {"programs": programs, "outcomes": outcomes, "finds": finds}


def block(path: Path, seed: int, count: int, known: list) -> dict:
    """Run a block in a process of its own, unless its file is there. Returns what it found."""
    if not path.exists():
        command = [sys.executable, __file__, "--block", "--seed", str(seed), "--count", str(count)]
        environment = os.environ | ENVIRONMENT
        done = subprocess.run(command, input=json.dumps(known), stdout=subprocess.PIPE, text=True, env=environment)
        if done.returncode:
            sys.exit(f"seed {seed}: the process of this block ended with status {done.returncode}")
        part = path.with_suffix(".part")
        part.write_text(done.stdout)
        part.replace(path)
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="pairs of a program and a point")
    parser.add_argument("--seed", type=int, default=0, help="of the first block; each further one has the next")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the blocks' files are")
    parser.add_argument("--block", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.block:
        with contextlib.redirect_stdout(sys.stderr):  # where hypothesis prints, if it is slow
            done = run_block(arguments.seed, arguments.count, json.load(sys.stdin))
        json.dump(done, sys.stdout)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    outcomes, finds, programs, start = Counter(), [], 0, time.monotonic()
    for number, first in enumerate(range(0, arguments.count, BLOCK)):
        seed, count = arguments.seed + number, min(BLOCK, arguments.count - first)
        known = [(find["check"], find["names"]) for find in finds]
        done = block(arguments.output / f"{seed}-{count}.json", seed, count, known)
        outcomes.update(done["outcomes"])
        finds += done["finds"]
        programs += done["programs"]
        pairs = sum(outcomes.values())
        print(f"seed {seed}: {pairs} points of {programs} programs, {time.monotonic() - start:.0f} s", flush=True)
        for find in done["finds"]:
            print(f"  {find['text']} (seed {find['seed']})", flush=True)
    print()
    for outcome, times in outcomes.most_common():
        print(f"{times:8d}  {outcome}")
    sys.exit(bool(finds))


if __name__ == "__main__":
    main()
