"""The phrasebook's rows, run: each in PyTorch, JAX and TensorFlow gives the same numbers.

build/bench-venv/bin/python ci/phrases.py     from the checkout, where `make bench` has made its environment
"""

import ast
import re
import sys
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "site" / "phrasebook.md"
LANGUAGES = ("PyTorch", "JAX", "TensorFlow")


def phrases(language):
    """What the page says in a language: its first lines, and from each task to its code."""
    text = PAGE.read_text(encoding="utf-8")
    (first,) = re.findall(rf"```python\n# {language}\n(.*?)```", text, re.DOTALL)
    rows = re.findall(r"^\| (?!You want|-)(.*?) \| (.*) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    column = 1 + LANGUAGES.index(language)
    return first, {row[0]: "\n".join(re.findall(r"`(.*?)`", row[column])) for row in rows}


def value(code, names):
    """The value of a program's last line, an expression, where `names` are known."""
    *lines, last = ast.parse(code).body
    exec(compile(ast.Module(lines, []), "phrase", "exec"), names)  # what the page shows
    return eval(compile(ast.Expression(last.value), "phrase", "eval"), names)


def numbers(found):
    """A value of any of the three, as a flat array."""
    if isinstance(found, (list, tuple)):
        return np.concatenate([numbers(part) for part in found])
    return np.ravel(np.asarray(found.detach() if hasattr(found, "detach") else found))


def results(language):
    """From each task to its numbers. Each row begins with the page's first lines anew."""
    first, rows = phrases(language)
    found = {}
    for task, code in rows.items():
        names = {}
        exec(first, names)  # what the page shows
        found[task] = numbers(value(code, names))
    return found


if __name__ == "__main__":
    said = {language: results(language) for language in LANGUAGES}
    different = [
        f"{language}, {task}: {found} for {said['TensorFlow'][task]}"
        for language in LANGUAGES
        for task, found in said[language].items()
        if not np.allclose(found, said["TensorFlow"][task], rtol=1e-5, atol=1e-6)
    ]
    print(f"{len(said['JAX'])} rows in {len(LANGUAGES)} languages")
    sys.exit("\n".join(different))
