"""What imports what: down, never up or in a circle. Imports for types and those within functions count too."""

import ast
import functools
import graphlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
KEPT = tuple(f"collection.{name}" for name in ("processes", "forkserver", "reports", "running", "publishing"))
# From the ground up: each room, and the rooms that it may import, or which module of one. The keeper's wing comes last.
# A room within another is not meant by the other's name.
FLOORS = {
    "process": (),
    "process.session": (),
    "graphs": ("process",),
    "derivatives": ("process", "process.session.bar", "graphs"),
    "plots": ("process.session",),
    "explain": ("process", "plots", "graphs"),
    "optimize": ("process", "process.session.bar", "derivatives"),
    "runtime": ("process", "process.session"),
    "data": ("process",),
    "gradcheck": ("process",),
    "interactive": ("process.session", "plots"),
    "exercises": ("process", "process.session", "plots", "explain", "graphs.walks"),
    "collection": (),
    "collection.processes": (),
    "collection.forkserver": ("collection.processes",),
    "collection.reports": ("process", "collection"),
    "collection.running": ("process", "collection", *KEPT[:3]),
    "collection.publishing": (
        "process",
        "process.session.alternatives",
        "collection",
        "explain",
        "derivatives",
        "graphs",
    ),
    "collection.cli": ("collection", *KEPT),
    "__main__": ("collection.processes", "collection.cli"),
}


@functools.cache
def imports():
    """From the name of each module to the modules of the package that it imports."""
    trees = {}
    for path in sorted(SOURCE.glob("tapelab/**/*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return {name: imported(tree, trees.keys()) - {name} for name, tree in trees.items()}


def imported(tree, known):
    """The modules of the package that one of its modules imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in known else node.module for name in names)
    return found & known


def within(module, place):
    return f"{module}.".startswith(f"tapelab.{place}.")


def room(module):
    """The innermost room that a module is in; what stands at the package's top is a room of its own."""
    return max((name for name in FLOORS if within(module, name)), key=len, default=module.removeprefix("tapelab."))


def test_the_floors_are_in_order():
    below = set()
    for name, allowed in FLOORS.items():
        assert {room(f"tapelab.{one}") for one in allowed} <= below, name
        below.add(name)
    assert {room(name) for name in imports()} - {"tapelab"} <= below


@pytest.mark.parametrize("name", FLOORS)
def test_a_room_imports_only_rooms_below_it(name):
    whole = {name, *FLOORS[name]} & FLOORS.keys()
    single = set(FLOORS[name]) - whole
    mine = [module for module in imports() if room(module) == name]
    others = [(one, other) for one in mine for other in imports()[one] if room(other) not in whole]
    assert not [(one, other) for one, other in others if not any(within(other, place) for place in single)]


def test_nothing_imports_in_a_circle():
    graphlib.TopologicalSorter(imports()).prepare()
