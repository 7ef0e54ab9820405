"""Derivatives of random programs against differences of values, as many as asked for: `make programs`.

The grammar, the judge and the checks are the tests' (`tests/random_programs.py`, `random_truth.py`, `random_checks.py`),
which run some of them at every `make test`. Here each block of programs has a seed and a process of its own, and leaves
a file of what it found, with shrunk programs, in build/random_programs/: what is there is not run again, so a run can be
interrupted and goes on where it was.

    make programs                                  2000 programs
    make ARGS="--count 100000" programs            a hundred thousand: hours
    make ARGS="--seed 7 --count 500" programs      one block
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK, BATCH = 500, 100  # programs of a process, and of a run of hypothesis, which ends at the first find
SHRINKS = 60  # how many smaller programs are tried of each find
OUTPUT = ROOT / "build" / "random_programs"
ENVIRONMENT = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def family(task) -> tuple[str, frozenset[str]]:
    """What finds are told apart by: what is differentiated how, and the operations."""
    return task.check, frozenset(step.name for step in task.program.steps)


def run_block(seed: int, count: int, known: list) -> dict:
    """Draw and judge so many programs; shrink what is found. What contains a known find is counted, and not shrunk."""
    sys.path.insert(0, str(ROOT / "tests"))
    import random_checks
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    known = [(check, frozenset(names)) for check, names in known]
    outcomes, finds = Counter(), []
    quiet = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck), "report_multiple_bugs": False}
    batch = 0
    while (drawn := sum(outcomes.values())) < count:
        failed, tried = {}, 0  # by task, what was found: the first, and those that hypothesis made of it

        @seeded(1_000_000 * seed + batch)
        @settings(max_examples=min(BATCH, count - drawn), phases=[Phase.generate, Phase.shrink], **quiet)
        @given(random_checks.tasks())
        def judge(task):
            nonlocal tried
            if task not in failed:
                tried += bool(failed)
                if tried > SHRINKS:
                    return
                check, names = family(task)
                try:
                    outcome = random_checks.judged(task)
                except random_checks.Find as find:
                    outcome = "found before"
                    if not any(check == other and few <= names for other, few in known):
                        failed[task] = str(find)
                if task not in failed and not failed:
                    outcomes[outcome] += 1
            if task in failed:
                raise random_checks.Find(failed[task])

        try:
            judge()
        except random_checks.Find as find:
            outcomes["found"] += 1
            task = next(task for task, text in failed.items() if text == str(find))
            check, names = family(task)
            known.append((check, names))
            finds.append({"seed": seed, "batch": batch, "check": check, "names": sorted(names), "text": str(find)})
        batch += 1
    return {"seed": seed, "outcomes": outcomes, "finds": finds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=2000, help="programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first block; each further one has the next")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the blocks' files are")
    parser.add_argument("--block", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.block:
        json.dump(run_block(arguments.seed, arguments.count, json.load(sys.stdin)), sys.stdout)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    outcomes, finds = Counter(), []
    for number in range(-(-arguments.count // BLOCK)):
        seed, count = arguments.seed + number, min(BLOCK, arguments.count - number * BLOCK)
        path, start = arguments.output / f"{seed}-{count}.json", time.monotonic()
        if not path.exists():
            known = json.dumps([(find["check"], find["names"]) for find in finds])
            command = [sys.executable, __file__, "--block", "--seed", str(seed), "--count", str(count)]
            done = subprocess.run(
                command, input=known, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT, check=False
            )
            if done.returncode:
                sys.exit(f"seed {seed}: the block ended with status {done.returncode}")
            path.write_text(done.stdout)
        block = json.loads(path.read_text())
        outcomes.update(block["outcomes"])
        finds += block["finds"]
        print(f"seed {seed}: {sum(block['outcomes'].values())} programs, {time.monotonic() - start:.0f} s", flush=True)
        for find in block["finds"]:
            print(f"  {find['text']}", flush=True)
    print(f"\n{sum(outcomes.values())} programs")
    for outcome, times in sorted(outcomes.items(), key=lambda item: -item[1]):
        print(f"{times:8d}  {outcome}")
    sys.exit(bool(finds))


if __name__ == "__main__":
    main()
