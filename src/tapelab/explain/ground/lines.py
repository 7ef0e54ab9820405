"""The learner's own line: which one ran an operation, what it says, and what its objects are called there."""

import dataclasses
import functools
import linecache
import pathlib
import re
import sys
import types
import typing
from collections.abc import Container, Sequence

from tapelab.graphs.libraries import is_library

Frame: typing.TypeAlias = types.FrameType | None  # the learner's, where there is one

_OWN, _LIBRARY, _TELLING = range(3)
_known_files = {}


def _file_kind(filename: str) -> int:
    """Whether a file is the learner's own, a library's, or one in which `walk` looks for a function."""
    if filename not in _known_files:
        # No file at all, "<frozen …>", is Python itself; but in IPython 7 a cell is "<ipython-input-…>".
        nowhere = filename.startswith("<") and not filename.startswith(("<ipython", "<stdin", "<string"))
        if filename.endswith(("eager/backprop.py", "polymorphic_function/atomic_function.py")):
            _known_files[filename] = _TELLING
        else:
            # What AutoGraph writes lies in the folder for temporary files; its lines are not the learner's either.
            foreign = nowhere or is_library(filename) or "__autograph_generated_file" in filename
            _known_files[filename] = _LIBRARY if foreign else _OWN
    return _known_files[filename]


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of source: the file's name as Python knows it, and the number from 1."""

    file: str
    number: int

    @property
    def text(self) -> str:
        """The source of the line, without indentation; empty where Python does not have it."""
        return linecache.getline(self.file, self.number).strip()

    @property
    def place(self) -> str:
        """Where it is, for people: "cell In[3], line 2" or "train.py, line 12"."""
        return f"{_file_name(self.file)}, line {self.number}"

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.text else self.place


def _file_name(file: str) -> str:
    old_cell = re.match(r"<ipython-input-(\d+)-", file)
    if old_cell:
        return f"cell In[{old_cell[1]}]"
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        named = getattr(shell.compile, "format_code_name", lambda name: None)(file)
        if named:
            return " ".join(named).replace("Cell ", "cell ").replace("In [", "In[")
        number = _cell_number(shell, file)
        if number:
            return f"cell In[{number}]"
        if re.search(r"ipykernel_\d+", file):
            return "this notebook"
    return pathlib.PurePath(file).name


def _cell_number(shell: typing.Any, file: str) -> int | None:
    """The number of the last cell that was run with the source of a file, or None: IPython 7 does not keep it."""
    source = "".join(linecache.getlines(file)).strip()
    cells = shell.history_manager.input_hist_parsed  # what linecache has, too: the cell without IPython's own syntax
    return next((i for i in range(len(cells) - 1, 0, -1) if source and cells[i].strip() == source), None)


class Place(typing.NamedTuple):
    """Where an operation was run from.

    Attributes:
        line: the innermost line that is the learner's own, or None.
        in_backward: whether a tape's gradient computation ran it.
        function: the tf.function's private object, where a call of one was asked for.
        code, instruction: the learner's code object and the instruction in it that ran the operation; None where the
            line is.
        scope: TensorFlow's name scope, in which Keras puts the names of its layers.
    """

    line: Line | None
    in_backward: bool
    function: object
    code: types.CodeType | None = None
    instruction: int | None = None
    scope: str = ""


@functools.lru_cache(maxsize=65536)
def _line(file: str, number: int) -> Line:
    return Line(file, number)


def walk(
    frame: Frame, backward_codes: Container[types.CodeType], function_code: types.CodeType | None, scope: str = ""
) -> Place:
    """Go up the stack to the learner's own line.

    Args:
        frame: where to start.
        backward_codes: a set of code objects; meeting one on the way means that a backward pass is running.
        function_code: a code object whose frame's `self` is wanted, or None.
        scope: TensorFlow's name scope.

    Returns:
        A `Place`.
    """
    in_backward, function = False, None
    known = _known_files  # this runs for every operation, over the fifty frames of a Keras layer
    while frame is not None:
        code = frame.f_code
        kind = known.get(code.co_filename)
        if kind is None:
            kind = _file_kind(code.co_filename)
        if kind == _OWN:
            line = _line(code.co_filename, frame.f_lineno)
            return Place(line, in_backward, function, code, frame.f_lasti, scope)
        if kind == _TELLING:
            in_backward = in_backward or code in backward_codes
            if code is function_code and function is None:
                function = frame.f_locals.get("self")
        frame = frame.f_back
    return Place(None, in_backward, function, scope=scope)


def caller(frame: types.FrameType) -> types.FrameType:
    """Return a frame, or the one around it that called through AutoGraph."""
    while frame.f_code.co_filename.endswith("autograph/impl/api.py") and frame.f_back is not None:
        frame = frame.f_back
    return frame


def own_frame(frame: Frame) -> Frame:
    """Return the innermost frame, from the given one outwards, that is the learner's own, or None."""
    while frame is not None and _file_kind(frame.f_code.co_filename) != _OWN:
        frame = frame.f_back
    return frame


def first_own(stack: Sequence[typing.Any] | None) -> Line | None:
    """Return the innermost line that is the learner's own of a traceback's entries (innermost last), or None.

    An operation of a graph that was loaded from a file has no traceback.
    """
    own = (entry for entry in reversed(stack or ()) if _file_kind(entry.filename) == _OWN)
    return next((Line(entry.filename, entry.lineno) for entry in own), None)


def name_of_variable(variable: typing.Any) -> str:
    """Return the path that Keras gives to a variable, else its name."""
    return getattr(variable, "path", None) or variable.name.removesuffix(":0")


def name_in(frame: Frame, value: typing.Any) -> str | None:
    """Return the name that a value has in a frame, or None. Short names of the notebook's own (_, _3) do not count."""
    if frame is None:
        return None
    known = (*frame.f_locals.items(), *frame.f_globals.items())
    return next((name for name, one in known if one is value and not name.startswith("_")), None)


_NUMBER = re.compile(r"(?<![\w.])\d+\.?\d*(?:[eE][+-]?\d+)?")


def numbers_in(line: Line | None) -> list[float]:
    """Return the numbers written out in a line's source, as floats."""
    return [float(number) for number in _NUMBER.findall(line.text)] if line else []
