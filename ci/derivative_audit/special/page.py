"""What was measured at special points, as the committed page and its results; TensorFlow is not needed here."""

import json
from pathlib import Path


def read(path: Path) -> dict:
    """The versions and the cases of a file of `make ARGS=--special audit`: later lines count in their modes."""
    versions, cases = {}, {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "versions" in record:
            versions = record["versions"]
        else:
            cases[record["name"]] = joined(cases.get(record["name"]), record)
    return {"versions": versions, "cases": cases}


def joined(before: dict | None, record: dict) -> dict:
    """A case's record, with what was measured before in other modes."""
    if not before or "aborts" in record or "left out" in record or record.get("disputed"):
        return record
    others = [mode for mode in before.get("modes", ()) if mode not in record["modes"]]
    kept = {
        part: {key: said for key, said in before.get(part, {}).items() if key.split(": ")[0] in others}
        for part in ("found", "vacuous")
    }
    merged = {part: {**kept[part], **record.get(part, {})} for part in kept}
    return {**record, **merged, "modes": [*others, *record["modes"]]}


def summary(path):
    return ""
