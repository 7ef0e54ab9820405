"""Measures cases in a process of its own, which may die: `audit.py` reads what it writes, line by line.

Standard input: one JSON list, the modes and the names; `--names` lists all names instead. Standard output: JSON lines.
"""

import json
import math
import os
import sys

# What libraries print would come between the lines.
lines = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402


def say(line: dict) -> None:
    print(json.dumps(line, ensure_ascii=False), file=lines, flush=True)


def brief(record) -> dict:
    """A record as JSON: what is right in all ways and modes is left out."""
    worst = max((f.error for f in record.found.values() if f.verdict == "right"), default=0.0)
    found = {}
    for (mode, way), f in record.found.items():
        if f.verdict != "right":
            found[f"{mode}: {way}"] = [f.verdict, float(f"{f.error:.2g}") if math.isfinite(f.error) else "inf", f.says]
    return {
        "name": record.name,
        "how": record.how,
        "nothing": record.nothing,
        "precision": record.precision,
        "points": record.points,
        "modes": list(dict.fromkeys(mode for mode, _ in record.found)),
        "right to": float(f"{worst:.1g}"),
        "found": found,
        "proved": list(dict.fromkeys(mode for mode, _ in record.found)),
        "vacuous": {f"{mode}: {way}": words for (mode, way), words in record.vacuous.items()},
        "operations": record.operations,
    }


def main() -> None:
    tf.get_logger().setLevel("ERROR")
    keras.config.set_floatx("float64")
    import measure
    import names
    import special.case
    import special.measure

    if "--names" in sys.argv:
        from tensorflow.python.framework import ops  # private: without it, the page lacks one list

        registry = ops.gradient_registry
        say(
            {
                "names": names.names(),
                "special": list(special.case.named()),
                "versions": {
                    "tensorflow": tf.__version__,
                    "keras": keras.__version__,
                    "python": sys.version.split()[0],
                },
                "operations": sorted(op for op in registry.list() if registry.lookup(op) is not None),
            }
        )
        return
    modes, listed = json.load(sys.stdin)
    for name in listed:
        say({"start": name})
        try:
            if name in special.case.named():
                say(special.measure.measured(name, modes))
                continue
            case, reason = names.find(name)
            record = measure.measure(case, modes) if case else None
            say(brief(record) if record else {"name": name, "left out": reason})
        except Exception as error:
            say({"name": name, "left out": f"the audit itself fails: {type(error).__name__}: {str(error)[:120]}"})


if __name__ == "__main__":
    main()
