"""What `tapelab.derivatives` gives for the audit's cases, as a section of its page."""

from collections import Counter, defaultdict
from collections.abc import Callable

WAYS = ("value_and_gradient", "jvp", "jacobian by rows", "jacobian by columns", "hvp", "hessian")
REFUSED = "would be wrong, since"
# What a row of the table counts, best first, and what `verdict` calls it.
ROWS = {
    "right": "right",
    "refused": "refused, since TensorFlow's would be wrong",
    "raises": "another error",
    "None": "None",
    "another value": "the function itself has another value",
    "unclear": "unclear",
    "not finite": "infinite or NaN",
    "wrong": "wrong",
}


def kept(measured: dict) -> dict:
    """What results.json keeps of a file of `make ARGS="--modes tapelab" audit`: what is not right, by case and way."""
    cases = {}
    for name, record in measured["cases"].items():
        if "aborts" in record:
            cases[name] = {way: ["raises", 0.0, record["aborts"]] for way in WAYS}
        elif not record.get("left out") and not record.get("nothing"):
            cases[name] = {key.partition(": ")[2]: found for key, found in record["found"].items()}
    return {"versions": measured["head"]["versions"], "cases": cases}


def verdict(found: list | None) -> str:
    """One of ROWS."""
    if found is None:
        return "right"
    return "refused" if found[0] == "raises" and REFUSED in found[2] else found[0]


def section(ours: dict, reason: Callable[[str], str], percent: Callable[[float], str]) -> list[str]:
    """Lines of the page.

    Args:
        ours: as `kept` gives it.
        reason: why TensorFlow is wrong in a case, or "".
        percent: puts an error into words.
    """
    versions, cases = ours["versions"], ours["cases"]
    counts = {way: Counter(verdict(found.get(way)) for found in cases.values()) for way in WAYS}
    lines = [
        "",
        "## What tapelab.derivatives gives",
        "",
        f"The same functions, {len(cases)} of them, differentiated by `tapelab.derivatives` as its users call it, with "
        f"TensorFlow {versions['tensorflow']} and Keras {versions['keras']}. The Jacobian is that of the result, and "
        "is multiplied by the slopes of the loss; of the Hessian, its product with a vector is compared.",
        "",
        f"| | {' | '.join(f'`{way}`' for way in WAYS)} |",
        "|---|" + "---|" * len(WAYS),
    ]
    for row, words in ROWS.items():
        if any(counts[way][row] for way in WAYS):
            lines.append(f"| {words} | {' | '.join(str(counts[way][row]) for way in WAYS)} |")
    for row in ("wrong", "not finite", "None", "another value", "unclear"):
        for name, found in sorted(cases.items()):
            ways = [way for way in WAYS if verdict(found.get(way)) == row]
            if ways:
                size = f" {percent(max(float(found[way][1]) for way in ways))}" if row in ("wrong", "unclear") else ""
                why = f": {reason(name)}" if reason(name) else ""
                lines += ["", f"{ROWS[row].capitalize()}{size}: `{name}`, {', '.join(ways)}{why}."]
    for row, heading in (("refused", "Refused"), ("raises", "Another error")):
        groups = defaultdict(list)
        for name, found in cases.items():
            if ways := tuple(way for way in WAYS if verdict(found.get(way)) == row):
                groups[ways].append(name)
        lines += ["", f"<details><summary>{heading}</summary>", ""]
        for ways, names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
            which = "everything" if ways == WAYS else ", ".join(ways)
            lines.append(f"- {which}: {', '.join(f'`{name}`' for name in names)}.")
        lines += ["", "</details>"]
    return lines
