"""What is known of the operations of TensorFlow: one row for each that anything here knows (`OPERATIONS`).

The rows say facts, each of which a test tries out. What a transformation makes of an operation (a rule of Taylor mode,
of sparsity) is a function of that transformation, and asks here for its names: `of_family`, `with_fact`, `linear_in`.
"""

from tapelab.graphs.operations import elementwise, joining, moving, program
from tapelab.graphs.operations.operation import FACTS, Operation

OPERATIONS: dict[str, Operation] = elementwise.ROWS | moving.ROWS | joining.ROWS | program.ROWS
_UNKNOWN = Operation("")


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
