"""How long a notebook takes to read, and its exercises to solve: counted, not guessed."""

import re
from dataclasses import dataclass

import nbformat

WORDS_A_MINUTE = 225
# These two fit the minutes that readers of 26 notebooks needed for the core (10 to 32), to within 3 minutes.
MINUTES_A_CELL = 0.6  # for code that is not folded: to read it, run it and look at what it gives
# With predictions, experiments and detours a reader took 15 to 17 hours for 00 to 09 and first aid; their minutes for
# reading and for exercises added up to 9.4 hours.
WORKING = 1.7
FOLDED = {"setup", "parameters", "check", "figure"}  # tags of cells that are not the lesson
GENERATED = {"badges", "catalogue"}

_EXERCISE = re.compile(r"^### Exercise: .*\((\d+) min\)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Times:
    """Minutes: to read the core, to read what goes further, and to solve the exercises."""

    core: int
    further: int
    exercises: int

    @property
    def reading(self) -> int:
        """To read all of it."""
        return self.core + self.further

    @property
    def working(self) -> int:
        """To work through all of it, with everything that one tries on the way: a multiple of 15."""
        return 15 * max(1, round(WORKING * (self.reading + self.exercises) / 15))


def of(nb: nbformat.NotebookNode) -> Times:
    """The times of a notebook.

    A section whose title begins with "Going further" is not part of the core. An exercise's cells count as the minutes
    that its heading names: its text, from the heading on, and its cell of code, the next one.
    """
    minutes = {"core": 0.0, "further": 0.0}
    exercises, part, answering = 0, "core", False
    for cell in nb.cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type == "markdown" and not tags & GENERATED:
            if heading := re.search(r"^## (?:\d+\. )?(.*)$", cell.source, re.MULTILINE):
                part = "further" if heading[1].startswith("Going further") else "core"
            lesson, _, exercise = cell.source.partition("### Exercise: ")
            if exercise:
                exercises += sum(map(int, _EXERCISE.findall(cell.source)))
                answering = True
            minutes[part] += len(_words(lesson)) / WORDS_A_MINUTE
        elif cell.cell_type == "code" and not tags & FOLDED:
            minutes[part] += 0 if answering else MINUTES_A_CELL
            answering = False
    return Times(max(1, round(minutes["core"])), round(minutes["further"]), exercises)


def _words(text: str) -> list[str]:
    """The words of Markdown that are read: not the addresses of links, nor the rules of tables."""
    without_addresses = re.sub(r"\]\([^)]*\)", "", text)
    return re.sub(r"[|*#`-]{2,}|\|", " ", without_addresses).split()
