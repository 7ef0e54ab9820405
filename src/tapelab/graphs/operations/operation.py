"""The rows of the tables of what is known of the operations of TensorFlow, and the words that they use."""

from typing import NamedTuple

# Families: which elements of the inputs an element of a result depends on.
ELEMENTWISE = "elementwise"
MOVING = "moving"
LOOKUP = "lookup"
SCATTERING = "scattering"
REDUCING = "reducing"
SCANNING = "scanning"
BLOCK = "block"
PRODUCT = "product"
STENCIL = "stencil"
LIST = "list"
SHAPE = "shape"
CALL, BRANCH, LOOP, OUTSIDE = "call", "branch", "loop", "outside"
RANDOM = "random"
FAMILIES = {
    ELEMENTWISE: "on those at its own place, where inputs are broadcast to one shape",
    MOVING: "it is an element of an input, or a constant; which one does not depend on values that are moved",
    LOOKUP: "it is an element of a table, at a place that numbers say",
    SCATTERING: "on those that numbers send to its place",
    REDUCING: "on those along the axes that the second input names",
    SCANNING: "on those before it, along the axis that the second input names",
    BLOCK: "on all of the last axes, so many as the operation takes; the axes before are batches",
    PRODUCT: "on rows and columns",
    STENCIL: "on a window of an image; the first axis is the batch",
    LIST: "lists of tensors, as loops keep them",
    SHAPE: "on no value, on shapes alone",
    CALL: "it calls another function of the graph",
    BRANCH: "it calls one of several functions of the graph",
    LOOP: "it calls functions of the graph again and again",
    OUTSIDE: "its code is not TensorFlow's",
    RANDOM: "it is drawn",
}

# In which of the inputs that carry numbers a result is linear.
JOINTLY = "jointly"  # in all of them together
EACH = "each"  # in each of them while the others are fixed
FIRST, LAST = "first", "last"  # in that one while the others are fixed

# What else there is to know.
FACTS = {
    "adds": "the result is the sum of the inputs, broadcast",
    "chooses": "the result is one of the inputs' elements; which one depends on values",
    "cross entropy": "a loss of logits and labels",
    "crosses": "has the sign of its one input near 0, and is 0 where that is",
    "cuts": "where an input is beyond a bound, its derivative is zero",
    "drops": "rows whose index is negative are left out",
    "flat": "its derivative is zero wherever it has one, or by definition",
    "keeps zeros": "where one input is 0 the result has a 0, and where all are of one sign the result is of one sign",
    "leaves": "calls Python, of which TensorFlow has no derivative",
    "passes": "the result has the elements of the first input, in their order",
    "one at its bend": "is 1 at 0 and has no slope there",
    "parts": "each result is a part of the first input",
    "pieces": "linear in pieces, in its one input",
    "reads": "reads a variable",
    "saturates": "far out on one side at least, its derivative goes to zero",
    "selects": "takes elements of the last two inputs, by the first",
    "smooth": "TensorFlow differentiates it as often as needed",
    "spectral": "gives eigenvalues or singular values first; where two are equal, no one basis is theirs",
    "underflows": "the result may be too small for its dtype, and is 0 then",
    "unit": "an activation of neural networks",
    "valueless": "the result is the same whatever the values are",
}


class Operation(NamedTuple):
    """What is known of an operation.

    Attributes:
        family: which elements of the inputs an element of a result depends on; one of `FAMILIES`.
        linear: in which inputs the result is linear (over the real numbers): JOINTLY, EACH, FIRST or LAST; "" in none.
        facts: what else holds, words of `FACTS`, separated by commas.
        axes: of a BLOCK, how many of the last axes it takes.
        examples: of a STENCIL, the names of the inputs whose first axis is the batch, as the operation has them.
        flat_in: the numbers of the inputs by which the derivative is zero wherever there is one.
        words: what the Python interface calls it, a function or a sign, the one that people know best first; empty
            where that is its type in small letters.
        at: the number of the input that is an index, or a length: where it is out of range, TensorFlow raises on a
            CPU; None if none is.
        mirror: the operation that gives the same but for the sign if the sign of all values is changed.
        transposed_by: of a product of two matrices, the attributes by which the one and the other are transposed.
    """

    family: str
    linear: str = ""
    facts: str = ""
    axes: int = 0
    examples: tuple[str, ...] = ()
    flat_in: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    at: int | None = None
    mirror: str = ""
    transposed_by: tuple[str, ...] = ()

    def has(self, fact: str) -> bool:
        """Whether a fact holds, one of `FACTS`."""
        return fact in self.facts.split(", ")


class Wrong(NamedTuple):
    """A derivative of some operations that TensorFlow gets wrong, or lacks, without a word.

    Attributes:
        code: its name in the table.
        needs: which derivatives are wrong: "gradient", "tangents" or "second", and all that is made from them; or only
            where an input is special: "second_at_zero" and "at_points".
        why: what the operation does, and what to write instead.
        inputs: the numbers of the inputs that must not depend on the sources; none named: any.
        rule: what the graph must look like besides, a name in `tapelab.derivatives.wrong.rules`; "" if nothing.
    """

    code: str
    needs: str
    why: str
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
