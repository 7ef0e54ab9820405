"""What the code of a function names: attributes, globals, and chains of names such as ``np.random.rand``.

Code is read, not run. What a chain leads to is for `tapelab.derivatives.machinery.outside.outside` to find.
"""

import dis
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

# Between a name and what is done with it.
_FILLERS = {"CACHE", "COPY_FREE_VARS", "EXTENDED_ARG", "MAKE_CELL", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN_IMPORT_AND_STORE = ("SWAP", "POP_TOP")  # import a.b as c


class Chain(NamedTuple):
    """A name, and the attributes that are taken of it one after the other.

    Attributes:
        kind: "global", "free" for a closure's, or "module" for one that the function imports.
        root: the name.
        attributes: a tuple of names.
        line: where.
        bare: whether it is called at once, without arguments.
        kept: whether it is given a local name, whose chains begin with this one.
    """

    kind: str
    root: str
    attributes: tuple[str, ...]
    line: int
    bare: bool = False
    kept: bool = False


class CodeNames:
    """What a code object and those within it name.

    Attributes:
        names: a set of all names of attributes, globals and modules, and of strings that could be some.
        stored: a set of the names that it gives values to.
        globals: a dictionary of the globals that it reads, each with its line.
        lines: a dictionary of the closure's names that it reads, each with its line.
        chains: a list of each `Chain`.
        loose: a set of the attributes that are taken of what no chain leads to.
        matches: whether it has a class pattern, which reads attributes that it need not name.
    """

    def __init__(self, code: types.CodeType):
        self.names: set[str] = set()
        self.stored: set[str] = set()
        self.globals: dict[str, int] = {}
        self.lines: dict[str, int] = {}
        self.chains: list[Chain] = []
        self.loose: set[str] = set()
        self.matches = False
        self._read(code, {})

    def _read(self, code: types.CodeType, local: dict[str, Chain]) -> None:
        """Read a code object. `local` has the chains that local names stand for."""
        self.names.update(code.co_names)
        self.names.update(_identifiers(code.co_consts))
        chain = imported = None
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            operation, name = instruction.opname, instruction.argval
            if instruction.positions is not None and instruction.positions.lineno is not None:
                line = instruction.positions.lineno
            if operation in _FILLERS or (imported and operation in _BETWEEN_IMPORT_AND_STORE):
                continue
            if chain and operation in _ATTRIBUTES:
                chain = chain._replace(attributes=(*chain.attributes, name))
                continue
            if chain and operation.startswith(("STORE_FAST", "STORE_DEREF")) and isinstance(name, str):
                if chain.root.startswith(f"{name}."):  # import a.b gives a name to a
                    chain = chain._replace(root=name)
                local[name] = chain
                chain = chain._replace(kept=True)
            if chain:
                bare = operation in ("CALL", "CALL_KW") and instruction.arg == 0
                self.chains.append(chain._replace(bare=bare))
            chain = self._started(operation, name, line, local)
            if operation == "IMPORT_NAME":
                imported = chain
            elif operation == "IMPORT_FROM" and imported:
                chain = imported._replace(attributes=(*imported.attributes, name))
            elif operation in ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR"):
                self.stored.add(name)
            elif operation in _ATTRIBUTES:
                self.loose.add(name)
            elif operation == "MATCH_CLASS":
                self.matches = True
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._read(constant, dict(local))

    def _started(self, operation: str, name: Any, line: int, local: dict[str, Chain]) -> Chain | None:
        """Return the chain that begins here, if one does."""
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            self.globals.setdefault(name, line)
            return Chain("global", name, (), line)
        if operation == "IMPORT_NAME":
            return Chain("module", name, (), line)
        if operation.startswith(("LOAD_FAST", "LOAD_DEREF")) and isinstance(name, str) and name in local:
            return local[name]._replace(line=line)
        if operation in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            self.lines.setdefault(name, line)
            return Chain("free", name, (), line)
        return None


def _identifiers(constants: tuple) -> Iterator[str]:
    """What may name an attribute: getattr(settings, "scale"), attrgetter("scale.x"), case Settings(scale=s)."""
    for constant in constants:
        if isinstance(constant, tuple):
            yield from _identifiers(constant)
        elif isinstance(constant, str) and len(constant) < 200:
            yield from (part for part in constant.split(".") if part.isidentifier())
