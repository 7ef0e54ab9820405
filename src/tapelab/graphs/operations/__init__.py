"""What is known of the operations of TensorFlow, as tables that one can read.

``facts.toml`` has the facts, each with the types of which it holds (`FACTS`), and ``names.toml`` what Python calls
them; `OPERATIONS` has both by type. ``wrong.toml`` says where TensorFlow's derivatives are wrong or lacking (`WRONG`,
of each type), and ``kernels.toml`` where its kernels compute something else (`KERNELS`). ``effects.toml`` has how the
types start that do more than compute (`EFFECTS`).

Who makes something of an operation asks for a fact, `with_fact`, which a test tries out.
"""

import pathlib
import tomllib
from typing import Any

from tapelab.graphs.operations.operation import Kernel, Operation, Wrong

_TABLES = pathlib.Path(__file__).parent
_UNKNOWN = Operation()


def _read(table: str) -> dict[str, Any]:
    """Return a table. Lists become tuples, and prose is one line, however the table wraps it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        if isinstance(value, list):
            return tuple(map(plain, value))
        return " ".join(value.split()) if isinstance(value, str) else value

    return plain(tomllib.loads((_TABLES / f"{table}.toml").read_text(encoding="utf-8")))


def _wrong() -> dict[str, tuple[Wrong, ...]]:
    found: dict[str, tuple[Wrong, ...]] = {}
    for code, row in _read("wrong").items():
        for kind in row.pop("operations").split(", "):
            found[kind] = (*found.get(kind, ()), Wrong(code, **row))
    return found


def _operations() -> dict[str, Operation]:
    names = _read("names")
    kinds = frozenset().union(*FACTS.values())
    return {
        kind: Operation(
            frozenset(name for name, of in FACTS.items() if kind in of),
            **{column: found[kind] for column, found in names.items() if kind in found},
        )
        for kind in sorted(kinds)
    }


FACTS: dict[str, frozenset[str]] = {name: frozenset(of.split(", ")) for name, of in _read("facts").items()}
OPERATIONS: dict[str, Operation] = _operations()
WRONG: dict[str, tuple[Wrong, ...]] = _wrong()
EFFECTS: dict[str, tuple[str, ...]] = _read("effects")
KERNELS: list[Kernel] = [Kernel(**row) for row in _read("kernels").values()]


def known(kind: str) -> Operation:
    """Return the row of an operation, by its type; an empty one if nothing is known of it."""
    return OPERATIONS.get(kind, _UNKNOWN)


def with_fact(*facts: str) -> frozenset[str]:
    """Return the types of the operations of which one of these facts of `FACTS` holds."""
    if unknown := set(facts) - FACTS.keys():
        raise ValueError(f"there is no fact {', '.join(unknown)}; expected one of {', '.join(FACTS)}")
    return frozenset().union(*(FACTS[fact] for fact in facts))
