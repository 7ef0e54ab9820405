"""What the learner is told, as an object that every front-end can show."""

import dataclasses
import re
import traceback
from collections.abc import Callable, Iterable

from tapelab.explain.ground import lines

NOT_ATTEMPTED, RIGHT, WRONG, ERROR = "not attempted", "right", "wrong", "error"
_OPENINGS = {
    NOT_ATTEMPTED: "○ Not attempted yet.",
    RIGHT: "✓ Right.",
    WRONG: "✗ Not right yet.",
    ERROR: "! Your code raised an error.",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Feedback:
    """What came of an answer.

    Attributes:
        verdict: NOT_ATTEMPTED, RIGHT, WRONG or ERROR.
        code: which feedback it is: a short stable key, such as "transpose".
        text: Markdown.
        picture: None, or a function that draws a Matplotlib figure of the answer beside the right one.
    """

    verdict: str
    code: str
    text: str
    picture: Callable | None = None

    def _repr_markdown_(self) -> str:
        return f"**{_OPENINGS[self.verdict]}** {self.text}"

    def __repr__(self) -> str:
        plain = re.sub(r"\*\*(.+?)\*\*", r"\1", self.text)
        return f"{_OPENINGS[self.verdict]} {plain}"


def choose_one(options: Iterable[str]) -> str:
    """Return the sentence that lists what there is to choose from."""
    listed = ", ".join(f'"{option}"' for option in options)
    return f"Choose one of {listed}."


def own_lines(error: BaseException) -> list[lines.Line]:
    """Return the learner's own lines in an exception's traceback, the outermost first, as a list of `lines.Line`."""
    found = [
        lines.Line(frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if lines.own_frame(frame) is frame
    ]
    return list(dict.fromkeys(found))  # a comprehension is a frame of its own, in the same line


def of_error(error: BaseException) -> Feedback:
    """Return the `Feedback` for an exception in the learner's code: its own lines, and the message in short."""
    # TensorFlow puts names of nodes in a graph around its messages.
    message = re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:\w+\]( name:)?\s*$", "", str(error).strip())
    # Keras says first which layer it was, and then, in bold, what happened.
    message = re.sub(r"\AException encountered when calling .*\n\s*|\x1b\[\d+m", "", message)
    message = re.sub(r"<tf\.Tensor: shape=(\(.*?\)), .*?>", r"a tensor of shape \1", message, flags=re.DOTALL)
    told = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    first = told[-1] if told[0] == "in user code:" else told[0]  # AutoGraph puts a traceback before the message
    first = first.removeprefix(f"{type(error).__name__}: ")
    first = first if len(first) <= 300 else first[:300] + " …"
    where = [f"    {line.place}: {line.text}" for line in own_lines(error)[-4:]]
    shown = "\n".join([*where, f"    {type(error).__name__}: {first}"])
    after = "" if where else "\n\nIt came up when the result was used, not in a line of yours."
    return Feedback(ERROR, f"raised:{type(error).__name__}", f"\n\n{shown}{after}")
