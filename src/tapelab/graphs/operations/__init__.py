"""What is known of the operations of TensorFlow, as tables that one can read: a row for each (`OPERATIONS`).

``elementwise``, ``moving``, ``joining`` and ``program``.toml have the rows, below their families; ``wrong.toml`` says
where TensorFlow's derivatives are wrong or lacking (`WRONG`, of each type), and ``kernels.toml`` where its kernels
compute something else (`KERNELS`). ``effects.toml`` has how the types start that do more than compute (`EFFECTS`).

The rows say facts, each of which a test tries out. Who makes something of
an operation asks here for its name: `of_family`, `with_fact`, `linear_in`.
"""

import pathlib
import tomllib
from typing import Any

from tapelab.graphs.operations.operation import FACTS, Kernel, Operation, Wrong

_TABLES = pathlib.Path(__file__).parent
_UNKNOWN = Operation("")


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


OPERATIONS: dict[str, Operation] = {
    kind: Operation(family, **row)
    for table in ("elementwise", "moving", "joining", "program")
    for family, rows in _read(table).items()
    for kind, row in rows.items()
}
WRONG: dict[str, tuple[Wrong, ...]] = _wrong()
EFFECTS: dict[str, tuple[str, ...]] = _read("effects")
KERNELS: list[Kernel] = [Kernel(**row) for row in _read("kernels").values()]


def known(kind: str) -> Operation:
    """Return the row of an operation, by its type; an empty one if nothing is known of it."""
    return OPERATIONS.get(kind, _UNKNOWN)


def of_family(*families: str) -> frozenset[str]:
    """Return the types of the operations of these families."""
    return frozenset(kind for kind, row in OPERATIONS.items() if row.family in families)


def with_fact(fact: str) -> frozenset[str]:
    """Return the types of the operations of which a fact of `FACTS` holds."""
    if fact not in FACTS:
        raise ValueError(f"no row can say {fact!r}; expected one of {', '.join(FACTS)}")
    return frozenset(kind for kind, row in OPERATIONS.items() if row.has(fact))


def linear_in(*ways: str) -> frozenset[str]:
    """Return the types of the operations that are linear in one of these ways."""
    return frozenset(kind for kind, row in OPERATIONS.items() if row.linear in ways)
