"""TensorFlow's and Keras' derivatives beside central differences: `make audit`.

    make audit                                  the installed TensorFlow; prints what is not right
    make ARGS="2.19 2.20 2.21" audit            these versions, each in its environment under build/versions/
    make ARGS="--only moments" audit            the cases whose names contain this
    make ARGS=--resume audit                    what neither results.json nor build/ has yet, in these modes
    make ARGS="--modes tapelab" audit           what tapelab.derivatives gives for the same cases
    make ARGS=--special audit                   the cases at special points (zeros, ties, equal eigenvalues …)
    make ARGS="--special --modes tapelab" audit what tapelab.derivatives gives there
    make ARGS=--upstream audit                  run the programs of upstream/faults.toml, and look for our cures
    make ARGS=--page audit                      no measuring: write the page, with what was measured since the last time

What is measured lies in build/derivative_audit/, one line for a case, and stays when the audit is interrupted. Each
worker process has many cases; one that dies, or takes too long for a case, loses that case alone.
"""

import argparse
import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import page
import special.page
import upstream.pages

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MEASURED = ROOT / "build" / "derivative_audit"
SHARE = 150  # cases for one process: what is compiled stays in memory


def environment(version: str) -> str:
    """The interpreter that has a TensorFlow version, made if there is none."""
    home = ROOT / "build" / "versions" / version
    if not (home / "bin" / "python").exists():
        uv = ROOT / ".venv" / "bin" / "uv"
        print(f"Setting up TensorFlow {version} in {home.relative_to(ROOT)}")
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
        pip = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", home / "bin" / "python"]
        subprocess.run([*pip, f"tensorflow=={version}.*"], check=True)
    return str(home / "bin" / "python")


def catalogue(python: str, worker: Path = HERE / "worker.py") -> dict:
    """The names and versions of an environment, as its worker tells them."""
    done = subprocess.run([python, worker, "--names"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return json.loads(done.stdout)


def measure(
    names: Sequence[str],
    modes: Sequence[str] = page.MODES,
    *,
    python: str = sys.executable,
    worker: Path = HERE / "worker.py",
    timeout: float = 300.0,
    stop: threading.Event | None = None,
) -> Iterator[dict]:
    """What a worker says of each name, in order; a new one goes on where one died or took longer than the timeout."""
    rest, stop = list(names), stop or threading.Event()
    while rest and not stop.is_set():
        share = rest[:SHARE]
        # A session of its own: Ctrl-C reaches this process alone, which then ends its workers.
        process = subprocess.Popen(
            [python, worker], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.stdin.write(json.dumps([list(modes), share]))
            process.stdin.close()
            for record in _listen(process, timeout, stop):
                if "start" not in record:
                    rest.remove(record["name"])
                    yield record
            if not stop.is_set() and rest and rest[0] in share:  # it ended, or was ended, before its share did
                ended = process.poll()
                why = f"takes longer than {timeout:g} s" if ended is None else f"the process ends with {ended}"
                yield {"name": rest.pop(0), "aborts": why}
        finally:
            process.kill()
            process.wait()


def _listen(process, timeout, stop):
    """The records that a worker writes, until it ends, writes nothing for so long, or is to stop."""
    said: queue.Queue[str | None] = queue.Queue()

    def read():
        for line in process.stdout:
            said.put(line)
        process.wait()
        said.put(None)

    threading.Thread(target=read, daemon=True).start()
    until = time.monotonic() + timeout
    while not stop.is_set() and time.monotonic() < until:
        with contextlib.suppress(queue.Empty):
            if (line := said.get(timeout=0.2)) is None:
                return
            until = time.monotonic() + timeout
            yield json.loads(line)


def run(version: str | None, options: argparse.Namespace, progress: Callable[[str, int, int], None]) -> Path:
    """Measure the names of one version that are asked for, and append what was found to its file."""
    python = environment(version) if version else sys.executable
    known = catalogue(python)
    modes = options.modes.split(",")
    version = ".".join(known["versions"]["tensorflow"].split(".")[:2])
    path = MEASURED / (page.OURS if modes == ["tapelab"] else f"{version}.jsonl")
    listed = known["names"]
    if options.special:
        path, listed = MEASURED / "special" / path.name, known["special"]
    names = [name for name in listed if not options.only or any(part in name for part in options.only)]
    if options.resume and options.special:
        done = special.page.read(path)["cases"] if path.exists() else {}
        names = [name for name in names if not set(modes) <= set(done.get(name, {}).get("modes", ()))]
    elif options.resume:
        before = page.committed(page.load(HERE), version) if path.name != page.OURS else None
        done = page.read(path, before)["cases"] if before or path.exists() else {}
        names = [name for name in names if name not in done or not page.is_measured(done[name], modes)]
    elif not options.only:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    known["versions"]["oneDNN"] = {"0": "off", "1": "on"}.get(
        os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""), "as it decides"
    )
    with path.open("a", encoding="utf-8") as file:
        print(json.dumps(known, ensure_ascii=False), file=file, flush=True)
        lock, count, stop = threading.Lock(), itertools.count(1), threading.Event()

        def work(share):
            settings = {"python": python, "timeout": options.timeout, "stop": stop}
            for record in measure(share, modes, **settings):
                with lock:
                    print(json.dumps(record, ensure_ascii=False), file=file, flush=True)
                    progress(record["name"], next(count), len(names))

        workers = [threading.Thread(target=work, args=(names[i :: options.workers],)) for i in range(options.workers)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        finally:  # also at Ctrl-C
            stop.set()
            for worker in workers:
                worker.join()
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of TensorFlow, such as 2.20")
    parser.add_argument("--only", action="append", default=[], help="a part of the names")
    parser.add_argument("--modes", default=",".join(page.MODES), help="graph, eager, XLA, with commas; or tapelab")
    parser.add_argument("--resume", action="store_true", help="keep what was measured")
    parser.add_argument("--special", action="store_true", help="at special points")
    parser.add_argument("--upstream", action="store_true", help="run the programs of upstream/faults.toml")
    parser.add_argument("--page", action="store_true", help="write the page")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one case")
    options = parser.parse_args()
    if options.upstream:
        for version in options.versions or [None]:
            upstream.pages.store(upstream.pages.run(environment(version) if version else sys.executable))
    elif not options.page:
        for version in options.versions or [None]:
            try:
                path = run(version, options, show)
            except KeyboardInterrupt:
                print("\nInterrupted; what was measured stays, and `make ARGS=--resume audit` goes on", file=sys.stderr)
                return 130
            print(file=sys.stderr)
            print(special.page.summary(path) if options.special else page.summary(page.read(path)))
    else:
        write()
    return 0


def write() -> None:
    """Write all pages, with what was measured since the last time."""
    before, own = page.load(HERE), MEASURED / page.OURS
    versions = {path.stem for path in MEASURED.glob("[0-9]*.jsonl")} | set(before.get("versions", ()))
    versions = sorted(versions, key=lambda version: tuple(map(int, version.split("."))))
    measured = [page.read(MEASURED / f"{version}.jsonl", page.committed(before, version)) for version in versions]
    page.write(measured, page.read(own) if own.exists() else None, HERE)
    special.page.write(MEASURED / "special", HERE)
    upstream.pages.write(page.load(HERE), special.page.load(HERE), HERE / "upstream")


def show(name: str, count: int, total: int) -> None:
    """The progress bar."""
    filled = 30 * count // total
    end = "\r" if sys.stderr.isatty() else "\n" if count % 50 == 0 else ""
    if end:
        print(
            f"[{'#' * filled}{'.' * (30 - filled)}] {count}/{total} {name[:50]:50s}",
            end=end,
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
