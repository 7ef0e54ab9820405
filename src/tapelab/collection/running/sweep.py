"""From a command line to runs: which notebook with which parameters, checked before anything starts."""

import ast
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tapelab.collection import texts
from tapelab.collection.catalogue import Catalogue, Notebook, read_notebook

import click

MOST_RUNS = 1_000_000
LONGEST_SOURCE = 2000  # characters of a cell in a message
LONGEST_SHOWN = 200  # characters of a value in a message
LONGEST_NAME = 120  # characters of a run's name; file systems allow 255 bytes, and endings are added


class ParameterError(click.ClickException, ValueError):
    """A parameter that no chosen notebook has, a value of the wrong type, or a cell of parameters that is not one."""


@dataclass(frozen=True)
class Run:
    """One execution of a notebook.

    Attributes:
        name: the stem of its files, unique in its batch.
        parameters: the values that override the notebook's defaults.
    """

    name: str
    notebook: str
    parameters: dict[str, object]


def parameters_of(path: Path) -> dict[str, object]:
    """The names and default values in a notebook's cell tagged ``parameters``, in the cell's order.

    Raises:
        NotebookError: if the file is missing or is no notebook.
        ParameterError: if the cell holds anything but ``name = literal``, or if more than one cell, or one without
            code, has the tag.
    """
    tagged = [cell for cell in read_notebook(path).cells if "parameters" in cell.metadata.get("tags", [])]
    if not tagged:
        return {}
    # Papermill puts the values after the first cell with the tag: defaults in a later one would win over them.
    if len(tagged) > 1 or tagged[0].cell_type != "code":
        kinds = ", ".join(cell.cell_type for cell in tagged)
        raise ParameterError(f"{path}: expected one code cell tagged 'parameters', and found these: {kinds}")
    found = {}
    try:
        for statement in ast.parse(tagged[0].source).body:
            if not isinstance(statement, ast.Assign | ast.AnnAssign):  # so `x += 1` is none
                raise ValueError
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found |= {target.id: ast.literal_eval(statement.value) for target in targets}
    # An attribute, no value at all, {[1]: 2}, or more than Python's parser can take.
    except (SyntaxError, ValueError, AttributeError, TypeError, MemoryError, RecursionError):
        source = texts.clean(tagged[0].source)[:LONGEST_SOURCE]
        raise ParameterError(
            f"{path}: its cell of parameters must hold lines 'name = literal' only, and holds\n{source}"
        ) from None
    return found


_KINDS = {bool: {"true": True, "false": False}.__getitem__, int: int, float: float, str: str}


def _convert(name: str, text: str, default: object) -> object:
    """A command line's text as a value of the default's type."""
    kind, like = type(default), texts.cut(repr(default), LONGEST_SHOWN)
    if kind not in _KINDS:
        raise ParameterError(
            f"parameter {name} has the default {like}: a {kind.__name__} cannot be given from outside, only "
            f"{', '.join(known.__name__ for known in _KINDS)}"
        )
    try:
        value = _KINDS[kind](text.lower() if kind is bool else text)
        text.encode()  # what is in another encoding arrives as lone surrogates, which no notebook can store
        if kind is not float or math.isfinite(value):
            return value
    except (ValueError, KeyError):
        pass
    raise ParameterError(
        f"parameter {name} is {texts.cut(repr(text), LONGEST_SHOWN)}; expected a value of type {kind.__name__}, "
        f"like its default, {like}{', and a finite one' if kind is float else ''}"
    )


def _convert_sweep(name: str, text: str, default: object) -> list[object]:
    """The values of one ``--sweep``: ``a,b,c``, or for whole numbers also ``first..last``, the last one included."""
    values = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(-?\d{1,18})\.\.(-?\d{1,18})\s*", part) if type(default) is int else None
        if ends is None:
            if type(default) is int and ".." in part:
                raise ParameterError(f"--sweep {name}={part}: expected first..last, such as {name}=0..9")
            values.append(_convert(name, part, default))
            continue
        first, last = int(ends[1]), int(ends[2])
        if not 0 <= last - first < MOST_RUNS:
            raise ParameterError(
                f"--sweep {name}={part}: expected first..last with at most {MOST_RUNS} values, the smaller end first"
            )
        values.extend(range(first, last + 1))
    if len({_key(value) for value in values}) < len(values):
        raise ParameterError(f"--sweep {name}={text} has a value twice")
    return values


def _key(value: object) -> str:
    # 1, 1.0 and True are equal to Python, and -0.0 is to 0.0; as parameters they are not.
    return json.dumps(value, sort_keys=True)


def _name(notebook: str, parameters: dict[str, object]) -> str:
    """The stem of a run's files: readable where the values are plain, and unique and harmless whatever they are.

    What is not a lower-case letter, a digit or one of ``._+-`` becomes ``_``, and a digest of the exact values follows.
    """
    if not parameters:
        return notebook
    texts = [(name, value if isinstance(value, str) else _key(value)) for name, value in parameters.items()]
    exact = ",".join(f"{name}={value}" for name, value in texts)
    shown = ",".join(f"{_harmless(name)}={_harmless(value)}" for name, value in texts)[:LONGEST_NAME]
    if shown != exact:
        shown += "~" + hashlib.sha256(_key(parameters).encode()).hexdigest()[:10]
    return f"{notebook}__{shown}"


def _harmless(text: str) -> str:
    return re.sub(r"[^a-z0-9._+-]|\.(?=\.)", "_", text.lower())


def expand(
    catalogue: Catalogue,
    notebooks: Iterable[Notebook],
    given: Iterable[tuple[str, str]] = (),
    sweeps: Iterable[tuple[str, str]] = (),
) -> list[Run]:
    """The runs of a batch: every chosen notebook with every combination of the swept values that it has parameters for.

    A parameter goes to each chosen notebook that has it. A notebook without a swept parameter runs once for each
    combination of the others.

    Args:
        catalogue: the `Catalogue`.
        notebooks: the chosen ones of its notebooks.
        given: pairs (name, text) that hold for all runs.
        sweeps: pairs (name, text), a text being ``a,b,c`` or, for whole numbers, ``first..last``.

    Returns:
        A list of `Run`, in the catalogue's order.

    Raises:
        ParameterError: if no chosen notebook has a name, a text is no value of the default's type, or a name or a value
            is given twice.
    """
    defaults = {n.name: parameters_of(catalogue.ipynb(n)) for n in notebooks}
    choices = {n.name: {} for n in notebooks}
    seen = set()
    for name, text, convert in [*((*pair, _single) for pair in given), *((*pair, _convert_sweep) for pair in sweeps)]:
        owners = [notebook for notebook, parameters in defaults.items() if name in parameters]
        if not owners:
            known = sorted({known for parameters in defaults.values() for known in parameters})
            raise ParameterError(f"no chosen notebook has a parameter {name!r}; known: {', '.join(known) or 'none'}")
        if name in seen:
            raise ParameterError(f"parameter {name} is given twice")
        seen.add(name)
        for notebook in owners:
            choices[notebook][name] = convert(name, text, defaults[notebook][name])
    count = sum(math.prod(map(len, chosen.values())) for chosen in choices.values())
    if count > MOST_RUNS:
        raise ParameterError(f"these are {count} runs; at most {MOST_RUNS} go into one batch")
    return [
        Run(_name(notebook, parameters), notebook, parameters)
        for notebook, chosen in choices.items()
        for values in itertools.product(*chosen.values())
        for parameters in [dict(zip(chosen, values, strict=True))]
    ]


def _single(name: str, text: str, default: object) -> list[object]:
    return [_convert(name, text, default)]
