"""Run each notebook at both ends of each parameter's range and once in between, as `make ranges` does: some hours.

    make ranges                    all of them
    make ranges ARGS="17 20"       these notebooks

A parameter's comment gives its range: ``rate = 0.4  # of gradient descent: between 0.38 and 0.42``.
"""

import subprocess
import sys
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.running.sweep import parameters_of
from tapelab.process.session.claims import ranges

ROOT = Path(__file__).parents[1]


def values(default, low, high):
    """Both ends and one in between that is not the default, which every test runs, as text."""
    between = low + (high - low) / 3
    return [f"{value:g}" if isinstance(default, float) else str(round(value)) for value in (low, between, high)]


def parameters(path):
    """Each number that a notebook's cell of parameters gives, but for the seed: from its name to (default, range)."""
    defaults = {name: value for name, value in parameters_of(path).items() if name != "seed"}
    numbers = {name: value for name, value in defaults.items() if isinstance(value, int | float)}
    cells = catalogue.read_notebook(path).cells
    (source,) = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])] or [""]
    given = ranges(source)
    return {name: (value, given.get(name)) for name, value in numbers.items() if value not in (True, False)}


def main():
    loaded, failed = catalogue.load(ROOT / "notebooks"), []
    for notebook in loaded.select(sys.argv[1:]):
        for name, (default, ends) in parameters(loaded.ipynb(notebook)).items():
            sweep = f"{name}={','.join(values(default, *ends))}"
            place = ROOT / "build" / "ranges" / f"{notebook.name}-{name}"
            command = [sys.executable, "-m", "tapelab", "run", notebook.name, "--sweep", sweep, "--output", place]
            if subprocess.run(command, cwd=ROOT, check=False).returncode:
                failed.append(f"{notebook.name} {sweep}")
    print("\n".join(failed) or "every check holds at both ends of every range")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
