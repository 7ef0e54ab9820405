"""What is watched of functions and modules, and where the names in their code lead."""

import builtins
import operator
import os
import sys
import types
from functools import partial

from tapelab.derivatives.machinery.outside import unwatchable
from tapelab.derivatives.machinery.outside.code_names import Chain, CodeNames
from tapelab.derivatives.machinery.outside.watches import MISSING, SCALARS, Reached, Where, lookup
from tapelab.graphs.libraries import is_library, split_classes

_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
_CONTENTS = operator.attrgetter("cell_contents")


def watch_function(reach: Reached, function: types.FunctionType, where: Where) -> None:
    """Watch what a function has, and the globals and the closure that it reads."""
    said = f"{function.__qualname__}'s"
    code = function.__code__
    library = is_library(code.co_filename)
    reads = None if library else _names(reach, code)
    if reads:
        places = {name: Where(name, f"{function.__qualname__}, line {line}") for name, line in reads.globals.items()}
        scope = function.__globals__
        # Missing ones too: they may come to hide what Python has built in.
        reach.attributes(partial(lookup, scope.get), places, "the global", places.__getitem__, scope)
        parts = operator.attrgetter(*_FUNCTION_PARTS)
        labels = [f"{said} {part}" for part in _FUNCTION_PARTS]
        reach.watch(lambda: parts(function), labels, [Where(f".{p}", where) for p in _FUNCTION_PARTS], function)
        if "__subclasses__" in reads.names:
            reach.tell(Where(".__subclasses__", where), unwatchable.WHY["machine"])
        attributes = vars(function)
        names = reach.names & attributes.keys() if not reach.by_name else attributes.keys()
        reach.attributes(
            partial(lookup, attributes.get), names, said, lambda name: Where(f".{name}", where), attributes
        )
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in cells.items():
        if not _empty(cell):
            line = reads.lines.get(name, code.co_firstlineno) if reads else code.co_firstlineno
            place = Where(name, f"{function.__qualname__}, line {line}")
            look = partial(map, _CONTENTS, (cell,))
            own = name in reach.stored
            reach.watch(look, [f"{said} closure's {name!r}"], [place], cell, own, named=not library)
    if "__wrapped__" in vars(function):
        reach.later(vars(function)["__wrapped__"], where)
    if reads:
        for link in reads.chains:
            _follow(reach, link, function, cells, reads.loose)


def watch_module(reach: Reached, value: types.ModuleType, where: Where, named: bool) -> None:
    """Watch what some code names of a module that the caller wrote."""
    if not _of_library(value):
        held = vars(value)
        names = reach.names & held.keys()
        if reach.by_name:
            names |= {name for name in held if not name.startswith("__")}
        place = lambda name: Where(f".{name}", where)  # noqa: E731
        reach.attributes(partial(lookup, held.get), names, f"{value.__name__}'s", place, value, named=named)
        reach.compare(held.__len__, f"{value.__name__}'s attributes")  # one that is missing may be asked for


def _names(reach: Reached, code: types.CodeType) -> CodeNames:
    """Note which attributes a code object names. Functions within it are included."""
    if code not in reach.read:
        reach.read[code] = reads = CodeNames(code)
        reach.names |= reads.names
        reach.stored |= reads.stored
        reach.by_name |= reads.matches or not reads.names.isdisjoint(("__dict__", "__getattribute__"))
    return reach.read[code]


def _follow(
    reach: Reached, link: Chain, function: types.FunctionType, cells: dict[str, types.CellType], loose: set[str]
) -> None:
    """Look at what a chain of names leads to: a function of a library, or a module as an object."""
    where = Where(link.root, f"{function.__qualname__}, line {link.line}")
    if link.kind == "free":
        value = _CONTENTS(cells[link.root]) if link.root in cells and not _empty(cells[link.root]) else MISSING
    elif link.kind == "module":
        value = sys.modules.get(link.root, MISSING)
        reach.later(value, where)
    else:
        value = function.__globals__.get(link.root, getattr(builtins, link.root, MISSING))
    for name in link.attributes:
        owner = value
        if not isinstance(owner, (types.ModuleType, type)):
            owner = type(value)
        if isinstance(owner, type) and split_classes(owner)[0]:
            return  # what the caller's classes have is watched, and may be computed
        where = Where(f".{name}", where)
        value = getattr(owner, name, MISSING)
        data = isinstance(value, (*SCALARS, dict, list, tuple, set)) or value is os.environ
        if data and isinstance(owner, types.ModuleType) and _of_library(owner):
            place = partial(lambda where, _: where, where)
            reach.attributes(partial(lookup, vars(owner).get), {name}, f"{owner.__name__}'s", place, owner)
    if isinstance(value, types.ModuleType):
        if not link.kept:
            _escaped(reach, value, where)
        return
    reach.tell(where, unwatchable.why_not_read(value, link.bare))
    reach.by_name |= unwatchable.reads_by_name(value)
    if value is os.getenv:
        reach.later(os.environ, where)
    if isinstance(value, type) and not split_classes(value)[0]:
        for name in loose:  # Path("name").read_text()
            reach.tell(Where(f"().{name}", where), unwatchable.why_not_read(getattr(value, name, None), False))


def _escaped(reach: Reached, module: types.ModuleType, where: Where) -> None:
    """A module that is read in another way than by a name of what is in it."""
    reach.tell(where, unwatchable.why_not_module(module))
    if not _of_library(module):
        reach.later(vars(module), where)


def _of_library(module: types.ModuleType) -> bool:
    """Whether a module is not the caller's: what is made by hand, or is a prompt's, has neither file nor spec."""
    file = getattr(module, "__file__", None)
    return is_library(file) if file or getattr(module, "__spec__", None) else False


def _empty(cell: types.CellType) -> bool:
    try:
        _CONTENTS(cell)
    except ValueError:
        return True
    return False
