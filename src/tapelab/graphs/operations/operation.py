"""The rows of the tables of what is known of the operations of TensorFlow."""

from typing import NamedTuple


class Operation(NamedTuple):
    """What is known of an operation.

    Attributes:
        facts: what holds of it, keys of `FACTS`.
        words: what the Python interface calls it, a function or a sign, the one that people know best first; empty
            where that is its type in small letters.
        mirror: of a maximum, the operation that gives the minimum of the same values.
        transposed_by: of a product of two matrices, the attributes by which the one and the other are transposed.
    """

    facts: frozenset[str] = frozenset()
    words: tuple[str, ...] = ()
    mirror: str = ""
    transposed_by: tuple[str, ...] = ()

    def has(self, fact: str) -> bool:
        """Whether a fact holds, one of `FACTS`."""
        return fact in self.facts


class Wrong(NamedTuple):
    """A derivative of some operations that TensorFlow gets wrong, or lacks, without a word.

    Attributes:
        code: its name in the table.
        why: what the operation does, and what to write instead.
        needs: which derivatives are wrong: "gradient", "tangents" or "second", and all that is made from them; or only
            where an input is special: "second_at_zero" and "at_points".
        inputs: the numbers of the inputs that must not depend on the sources; none named: any.
        rule: what the graph must look like besides, a name in `tapelab.derivatives.wrong.rules`; "" if nothing.
    """

    code: str
    why: str
    needs: str = "gradient"
    inputs: tuple[int, ...] = ()
    rule: str = ""


class Kernel(NamedTuple):
    """A kernel of some operations that computes something else than they say.

    Attributes:
        operations: their types, with a star for what they may end in.
        why: what it does, with {op} for the type.
        numbers: the types of numbers that it does so for, as `tf.DType` names them; none named: any.
        strides_of_1: whether only where a window does not change the shape of an image.
        on: "xla", "graph", or "noted" for XLA's where the caller is told, and may want it.
    """

    operations: tuple[str, ...]
    why: str
    on: str
    numbers: tuple[str, ...] = ()
    strides_of_1: bool = False
