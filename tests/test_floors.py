"""What imports what: down, never up or in a circle. Imports for types and those within functions count too."""

import ast
import graphlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
# From the ground up: each room, and the rooms that it may import, or which module of one. The keeper's wing comes last.
FLOORS = {
    "process": (),
    "names_elsewhere": (),
    "session": (),
    "graphs": ("process",),
    "derivatives": ("process", "names_elsewhere", "session.bar", "graphs"),
    "plots": ("session",),
    "explain": ("process", "plots", "graphs"),
    "optimize": ("process", "names_elsewhere", "session.bar", "derivatives"),
    "runtime": ("process", "session"),
    "data": ("process",),
    "gradcheck": ("process",),
    "interactive": ("session", "plots"),
    "exercises": ("process", "session", "plots", "explain"),
    "collection": ("process", "explain"),
    "__main__": ("collection",),
}


def modules():
    """From the name of each module to its syntax tree."""
    found = {}
    for path in sorted(SOURCE.glob("tapelab/**/*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


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


TREES = modules()
IMPORTS = {name: imported(tree, TREES.keys()) - {name} for name, tree in TREES.items()}


def room(module):
    return module.split(".")[1] if "." in module else module


def test_the_floors_are_in_order():
    below = set()
    for name, allowed in FLOORS.items():
        assert {one.partition(".")[0] for one in allowed} <= below, name
        below.add(name)
    assert {room(name) for name in TREES} - {"tapelab"} <= below


@pytest.mark.parametrize("name", FLOORS)
def test_a_room_imports_only_rooms_below_it(name):
    allowed = tuple(f"tapelab.{one}." for one in (name, *FLOORS[name]))
    mine = [module for module in IMPORTS if room(module) == name]
    assert not [(one, other) for one in mine for other in IMPORTS[one] if not f"{other}.".startswith(allowed)]


def test_nothing_imports_in_a_circle():
    graphlib.TopologicalSorter(IMPORTS).prepare()


def test_imports_for_types_and_within_functions_are_seen():
    tree = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from tapelab.a import b, C\n"
        "def f():\n    import tapelab.d\n    from tapelab import e\n"
    )
    known = {"tapelab", "tapelab.a", "tapelab.a.b", "tapelab.d", "tapelab.e"}
    assert imported(tree, known) == {"tapelab.a", "tapelab.a.b", "tapelab.d", "tapelab.e"}
