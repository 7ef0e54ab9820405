"""TensorFlow's and Keras' derivatives beside central differences: `make audit`.

    make audit                                  the installed TensorFlow; prints what is not right
    make ARGS="2.19 2.20 2.21" audit            these versions, each in its environment under build/versions/
    make ARGS="--only moments" audit            the cases whose names contain this
    make ARGS="--modes tapelab" audit           what tapelab.derivatives gives, where TensorFlow's is not right
    make ARGS=--resume audit                    what build/derivative_audit/ has not yet
    make ARGS=--page audit                      no measuring: put what was measured into results.json and RESULTS.md

What is measured lies in build/derivative_audit/, one line for a case, and stays when the audit is interrupted. Each
worker process has many cases; one that dies, or takes too long for a case, loses that case alone.
"""

import argparse
import contextlib
import json
import queue
import re
import subprocess
import sys
import threading
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MEASURED = ROOT / "build" / "derivative_audit"
RESULTS, PAGE = HERE / "results.json", HERE / "RESULTS.md"
SHARE = 150  # cases for one process: what is compiled stays in memory
MODES, OURS = ("graph", "eager", "XLA"), "tapelab"
ORDERS = {"first order": {"reverse", "forward"}, "second order": {"reverse over reverse", "forward over reverse"}}
# Worst first, with what the page calls it.
VERDICTS = {"wrong": "wrong", "not finite": "infinite or NaN", "None": "None", "another value": "another value of f",
            "unclear": "unclear", "raises": "an error"}  # fmt: skip
NOTES = tomllib.loads((HERE / "notes.toml").read_text(encoding="utf-8"))["note"]


def environment(version: str) -> str:
    """The interpreter that has a TensorFlow version, made if there is none."""
    home = ROOT / "build" / "versions" / version
    if not (home / "bin" / "python").exists():
        uv = ROOT / ".venv" / "bin" / "uv"
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
        pip = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", home / "bin" / "python"]
        subprocess.run([*pip, f"tensorflow=={version}.*", "--editable", ROOT], check=True)
    return str(home / "bin" / "python")


def measure(names: Sequence[str], modes: Sequence[str], worker: Sequence[str], timeout: float) -> Iterator[dict]:
    """What a worker says of each name, in order; a new one goes on where one died or took longer than the timeout."""
    rest = list(names)
    while rest:
        share = rest[:SHARE]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(worker, **pipes, text=True)
        try:
            process.stdin.write(json.dumps([list(modes), share]))
            process.stdin.close()
            for record in _said(process, timeout):
                if "start" not in record:
                    rest.remove(record["name"])
                    yield record
            if rest and rest[0] in share:  # it ended, or was ended, before its share did
                ended = process.poll()
                why = f"takes longer than {timeout:g} s" if ended is None else f"the process ends with {ended}"
                yield {"name": rest.pop(0), "aborts": why}
        finally:
            process.kill()
            process.wait()


def _said(process: subprocess.Popen, timeout: float) -> Iterator[dict]:
    """The records that a worker writes, until it ends or writes nothing for so long."""
    lines: queue.Queue[str] = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line)
        process.wait()
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    with contextlib.suppress(queue.Empty):
        while line := lines.get(timeout=timeout):
            yield json.loads(line)


def run(version: str | None, options: argparse.Namespace) -> Path:
    """Measure the cases of one version that are asked for, and append what was found to its file."""
    worker = [environment(version) if version else sys.executable, str(HERE / "worker.py")]
    modes = options.modes.split(",")
    known = json.loads(subprocess.run([*worker, "--names"], capture_output=True, text=True, check=True).stdout)
    path = MEASURED / f"{OURS if modes == [OURS] else '.'.join(known['tensorflow'].split('.')[:2])}.jsonl"
    names = [name for name in known.pop("names") if not options.only or any(part in name for part in options.only)]
    if modes == [OURS]:
        names = [name for name in names if any(findings(r) for r in load()["cases"].get(name, {}).values())]
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.resume and path.exists():
        names = [name for name in names if name not in read(path)[1]]
    elif not options.only:
        path.unlink(missing_ok=True)
    with path.open("a", encoding="utf-8") as file:
        print(json.dumps(known), file=file)
        for count, record in enumerate(measure(names, modes, worker, options.timeout), 1):
            print(json.dumps(record, ensure_ascii=False), file=file, flush=True)
            print(f"{count}/{len(names)} {record['name'][:60]:60}", end="\r", file=sys.stderr, flush=True)
    return path


def read(path: Path) -> tuple[dict, dict[str, dict]]:
    """The versions of a file's last run, and the last record of each case."""
    head, cases = {}, {}
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if "name" in record:
            cases[record.pop("name")] = record
        else:
            head = record
    return head, cases


# The page


def load() -> dict:
    """{"versions": {version: what was installed}, "cases": {name: {version: record}}}, as results.json has it."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    cases = {
        name: {version: record for listed, record in each.items() for version in listed.split()}
        for name, each in results["cases"].items()
    }
    return {"versions": results["versions"], "cases": cases}


def write(results: dict) -> None:
    """Write results.json and RESULTS.md."""
    lines = []
    for name, each in results["cases"].items():
        listed = defaultdict(list)  # what is the same in several versions is written once
        for version, record in each.items():
            listed[json.dumps(record, ensure_ascii=False)].append(version)
        lines.append(f"{json.dumps(name)}: {json.dumps({' '.join(v): json.loads(r) for r, v in listed.items()})}")
    head, body = json.dumps(results["versions"]), ",\n".join(lines)
    RESULTS.write_text(f'{{"versions": {head},\n"cases": {{\n{body}\n}}}}\n', encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


def words(ways: dict[str, list[str]], measured: Sequence[str]) -> str:
    """Which derivatives, and in which modes if not in all: "second order (XLA)"."""
    by_modes = defaultdict(set)
    for way, modes in ways.items():
        by_modes[tuple(mode for mode in measured if mode in modes)].add(way)
    parts = []
    for modes, those in by_modes.items():
        named = []
        for order, every in ORDERS.items():
            named += [order] if every <= those else sorted(those & every, reverse=True)
        text = "both orders" if named == list(ORDERS) else ", ".join(named)
        parts.append(text if modes == tuple(measured) else f"{text} ({', '.join(modes)})")
    return "; ".join(parts)


def findings(record: dict) -> list[dict]:
    if "aborts" in record:
        return [{"verdict": "raises", "says": record["aborts"], "error": 0.0, "ways": {}}]
    return sorted(record.get("found", []), key=lambda entry: list(VERDICTS).index(entry["verdict"]))


def told(entry: dict, record: dict) -> str:
    error, size = entry["error"], ""
    if entry["verdict"] in ("wrong", "unclear", "another value"):
        size = (
            f" by {100 * error:.2g} %"
            if error < 10
            else f" by a factor of {error:.2g}"
            if error < 1e300
            else ", is not 0"
        )
    return f"{words(entry['ways'], record.get('modes', ())) or 'the process'} {VERDICTS[entry['verdict']]}{size}"


def cell(record: dict | None) -> str:
    """What stands under a version."""
    if record is None or "left out" in record or "nothing" in record:
        return "not measured"
    silent = [told(entry, record) for entry in findings(record) if entry["verdict"] != "raises"]
    if silent:
        return "; ".join(silent)
    return f"an error: {findings(record)[0]['says']}"[:100] if findings(record) else "right"


def why(name: str, verdicts: set[str]) -> str:
    found = [n["why"] for n in NOTES if n["verdict"] in verdicts and re.fullmatch(n["names"], name)]
    return found[0] if found else "nobody has confirmed it" if "wrong" in verdicts else ""


def page(results: dict) -> str:
    versions, cases = list(results["versions"]), results["cases"]
    rows, errors, left = [], defaultdict(set), defaultdict(list)
    for name, each in cases.items():
        for version, record in each.items():
            for entry in findings(record):
                if entry["verdict"] == "raises" and version != OURS:
                    errors[entry["says"].replace("|", "/"), words(entry["ways"], record.get("modes", ()))].add(name)
            if reason := record.get("left out") or record.get("nothing"):
                left[reason].append(name)
        silent = [e for r in each.values() for e in findings(r) if e["verdict"] != "raises"]
        if silent:
            order = min((list(VERDICTS).index(e["verdict"]), -e["error"]) for e in silent)
            how = next((f" ({r['how']})" for r in each.values() if r.get("how")), "")
            cells = " | ".join(cell(each.get(version)) for version in versions)
            rows.append((order, name, f"| `{name}`{how} | {cells} | {why(name, {e['verdict'] for e in silent})} |"))
    lines = [
        (HERE / "introduction.md").read_text(encoding="utf-8"),
        "| | TensorFlow | Keras | Python | measured | right |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for version, installed in results["versions"].items():
        records = [each[version] for each in cases.values() if version in each]
        records = [record for record in records if "left out" not in record and "nothing" not in record]
        right = sum(not findings(record) for record in records)
        said = " | ".join(installed[key] for key in ("tensorflow", "keras", "python"))
        lines.append(f"| {version} | {said} | {len(records)} | {right} |")
    head = " | ".join(versions)
    lines += ["", "## Not right, and no error", "", f"| case | {head} | why |", f"|---|{'---|' * (len(versions) + 1)}"]
    lines += [row for *_, row in sorted(rows)]
    lines += ["", "## Errors", "", "| what it says | which derivatives | cases |", "|---|---|---|"]
    for (says, which), names in sorted(errors.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"| {says or '-'} | {which or 'the process'} | {', '.join(f'`{n}`' for n in sorted(names))} |")
    lines += ["", "## Not measured", ""]
    lines += [
        f"- {reason}: {', '.join(f'`{n}`' for n in dict.fromkeys(names))}." for reason, names in sorted(left.items())
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="of TensorFlow, such as 2.20")
    parser.add_argument("--only", action="append", default=[], help="a part of the names")
    parser.add_argument("--modes", default=",".join(MODES), help="graph, eager, XLA, with commas; or tapelab")
    parser.add_argument("--resume", action="store_true", help="keep what was measured")
    parser.add_argument("--page", action="store_true", help="write the page")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one case")
    options = parser.parse_args()
    for version in () if options.page else options.versions or [None]:
        for name, record in read(run(version, options))[1].items():
            for entry in findings(record):
                print(f"{name}: {told(entry, record)} {entry['says']}")
    if options.page:
        results = load()
        for path in sorted(MEASURED.glob("*.jsonl")):
            results["versions"][path.stem], measured = read(path)
            for name, record in measured.items():
                results["cases"].setdefault(name, {})[path.stem] = record
        write(results)


if __name__ == "__main__":
    main()
