"""What is to run: which notebook with which parameters, checked against the notebooks before anything starts."""

import ast
import hashlib
import itertools
import json
import math
import re
from dataclasses import dataclass, field

import nbformat

MOST_RUNS = 1_000_000
LONGEST_NAME = 120  # characters of a run's name; file systems allow 255 bytes, and endings are added


class ParameterError(ValueError):
    """A parameter that no chosen notebook has, a value of the wrong type, or a cell of parameters that is not one."""


@dataclass(frozen=True)
class Run:
    """One execution of a notebook.

    Attributes:
        name: the stem of its files, unique in its batch.
        parameters: the values that override the notebook's defaults.
        settings: the values of all its parameters, overridden or not.
    """

    name: str
    notebook: str
    parameters: dict = field(hash=False)
    settings: dict = field(hash=False)


def parameters_of(path):
    """The names and default values in a notebook's cell tagged ``parameters``: a dict, in the cell's order.

    Raises:
        ParameterError: if the file is missing or is no notebook, or if the cell holds anything but ``name = literal``.
    """
    try:
        cells = nbformat.read(path, as_version=4).cells
    except FileNotFoundError:
        raise ParameterError(f"there is no {path}; make it with 'tapelab sync'") from None
    except Exception as error:  # nbformat raises whatever its JSON parser and validator raise
        raise ParameterError(f"{path} is not a notebook: {str(error).splitlines()[0]}") from error
    found = {}
    for cell in cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            try:
                for statement in ast.parse(cell.source).body:
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    found |= {target.id: ast.literal_eval(statement.value) for target in targets}
            except (SyntaxError, ValueError, AttributeError):
                raise ParameterError(
                    f"{path}: its cell of parameters must hold lines 'name = literal' only, and holds\n{cell.source}"
                ) from None
    return found


def _convert(name, text, default):
    """A command line's text as a value of the default's type."""
    kind = type(default)
    try:
        text.encode()  # a name in another encoding arrives as lone surrogates, which no notebook can store
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float, str):
            return kind(text)
        value = ast.literal_eval(text)
        if isinstance(value, kind) and kind in (list, dict):
            json.dumps(value)
            return value
    except (ValueError, KeyError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    raise ParameterError(
        f"parameter {name} is {text!r}; expected a value of type {kind.__name__}, like its default, {default!r}"
    )


def _convert_sweep(name, text, default):
    """The values of one ``--sweep``: ``a,b,c``, or for whole numbers also ``first..last``, the last one included."""
    values = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(-?\d{1,18})\.\.(-?\d{1,18})\s*", part) if type(default) is int else None
        if ends is None:
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


def _key(value):
    # 1, 1.0 and True are equal to Python, and -0.0 is to 0.0; as parameters they are not.
    return json.dumps(value, sort_keys=True)


def _name(notebook, parameters):
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


def _harmless(text):
    return re.sub(r"[^a-z0-9._+-]|\.(?=\.)", "_", text.lower())


def make_plan(catalogue, notebooks, given=(), sweeps=()):
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
        Run(_name(notebook, parameters), notebook, parameters, defaults[notebook] | parameters)
        for notebook, chosen in choices.items()
        for values in itertools.product(*chosen.values())
        for parameters in [dict(zip(chosen, values, strict=True))]
    ]


def _single(name, text, default):
    return [_convert(name, text, default)]
