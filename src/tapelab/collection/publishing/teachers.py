"""The page for teachers, `site/for_teachers.md`: what follows from the notebooks and their sheets is generated into it.

The plans of the lessons are written by hand, as tables. A row is ``| minutes | where | what to do |``; where it is, is
``Opening``, or a section's number and title, of which the title is filled in here. ``Vote:`` and ``Solve:`` in a row
name predictions and exercises of that section. A row ``| … | 00, 01 | minutes |`` is a path through several
notebooks; its minutes are filled in. Between marker lines stand a table of all notebooks, and below each plan what is
left to do at home, and the answers: a prediction's question and its result as the notebook's outputs have it, an
exercise's explanation, and the wrong answers that the sheet knows.
"""

import functools
import importlib
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tapelab.collection import texts
from tapelab.collection.catalogue import Catalogue, Notebook
from tapelab.collection.publishing import times
from tapelab.collection.templates import rendered

import jupytext
import nbformat

PAGE = "site/for_teachers.md"
MINUTES = 50  # of a lesson
_LONGEST = 60  # characters of a wrong answer that is shown as it is given

_LESSON = re.compile(r"^### (\d\d)(?: .*)?$", re.MULTILINE)
_STEP = re.compile(r"^\| (\d+) \| (?:(Opening)|(\d+)\. [^|]*) \| (.*) \|$", re.MULTILINE)
_PATH = re.compile(r"^(\| [^|\n]+ \| (\d\d(?:, \d\d)*) \|)[^|\n]*\|$", re.MULTILINE)
_NAMED = {kind: re.compile(rf"\b{kind}: (`\w+`(?:, `\w+`)*)") for kind in ("Vote", "Solve")}
_USED = re.compile(r"^exercises\.(\w+)\.(guess|check)\(", re.MULTILINE)
_QUESTION = re.compile(r"^\*\*Predict\.\*\* (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## (\d+)\. (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """A section of a notebook: its title, and the predictions and exercises in it, in order."""

    title: str
    predictions: tuple[str, ...]
    exercises: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A row of a lesson's plan; the opening is section 0."""

    minutes: int
    section: int
    votes: tuple[str, ...]
    solves: tuple[str, ...]


@functools.cache
def _read(text: str) -> nbformat.NotebookNode:
    return jupytext.reads(text, fmt="py:percent")


def _twin(catalogue: Catalogue, notebook: Notebook) -> nbformat.NotebookNode:
    """A notebook's py:percent twin, as a notebook to look at. Each is parsed once, for as long as it is what it was."""
    return _read(catalogue.text(notebook).read_text(encoding="utf-8"))


def sections(catalogue: Catalogue, notebook: Notebook) -> dict[int, Section]:
    """The numbered sections of a notebook; what stands before the first is number 0."""
    number, found = 0, {0: ["Opening", [], []]}
    for cell in _twin(catalogue, notebook).cells:
        if cell.cell_type == "markdown" and (heading := _SECTION.search(cell.source)):
            number = int(heading[1])
            found[number] = [heading[2], [], []]
        elif cell.cell_type == "code":
            for name, use in _USED.findall(cell.source):
                found[number][1 if use == "guess" else 2].append(name)
    return {n: Section(title, tuple(asked), tuple(set_)) for n, (title, asked, set_) in found.items()}


def questions(catalogue: Catalogue, notebook: Notebook) -> dict[str, str]:
    """From a prediction's name to what the notebook asks, Markdown: the paragraph that begins with "Predict."."""
    asked, found = "", {}
    for cell in _twin(catalogue, notebook).cells:
        if paragraph := _QUESTION.search(cell.source):
            asked = re.sub(r"\]\((?=\d\d_)", "](../notebooks/", " ".join(paragraph[1].split()))
        for name, use in _USED.findall(cell.source):
            if use == "guess":
                found[name] = asked
    return found


def results(catalogue: Catalogue, notebook: Notebook) -> dict[str, str]:
    """From a prediction's name to its result, Markdown, as the notebook's stored outputs have it."""
    found = {}
    for cell in nbformat.read(catalogue.ipynb(notebook), as_version=4).cells:
        revealed = re.findall(r"^exercises\.(\w+)\.reveal\(", cell.source, re.MULTILINE)
        told = [output.get("data", {}).get("text/markdown", "") for output in cell.get("outputs", [])]
        told = [text.removeprefix("**Result:** ").strip() for text in told if text.startswith("**Result:** ")]
        if len(told) == len(revealed):
            found |= dict(zip(revealed, told, strict=True))
    return found


def lessons(text: str) -> dict[str, list[Step]]:
    """From a notebook's number to the plan of its lesson, as the page has it."""
    found = {}
    for number, part in parts(text).items():
        found[number] = []
        for minutes, place, section, what in _STEP.findall(part):
            where = 0 if place else int(section)
            found[number].append(Step(int(minutes), where, _named("Vote", what), _named("Solve", what)))
    return found


def page(catalogue: Catalogue, text: str) -> str:
    """The page with its generated parts made anew.

    Raises:
        ValueError: if it lacks marker lines or a notebook's plan, if a plan names what its notebook does not have,
            gives an exercise less than its minutes, or does not add up to a lesson, or if a notebook was never run.
    """
    plans, blocks, rows, problems = lessons(text), {}, [], []
    for notebook in catalogue.notebooks:
        inside, plan = sections(catalogue, notebook), plans.get(notebook.number, [])
        sheet = importlib.import_module(f"tapelab.exercises.sheets.{notebook.name.partition('_')[2]}")
        problems += [f"{notebook.number}: {problem}" for problem in _problems(plan, inside, sheet)]
        if not catalogue.ipynb(notebook).exists():
            problems.append(f"{notebook.number}: it has no results to tell; {notebook.name}.ipynb was never made")
        if not problems:
            solved = [name for step in plan for name in step.solves]
            here, home = _at_home(inside, sheet, solved)
            rows.append(_row(catalogue, notebook, here, home))
            planned = [name for step in plan for name in (*step.votes, *step.solves)]
            every = [name for section in inside.values() for name in (*section.predictions, *section.exercises)]
            blocks[notebook.number] = rendered(
                "lesson.md",
                sheet=sheet,
                home=home,
                planned=planned,
                others=[name for name in every if name not in planned],
                asked=questions(catalogue, notebook),
                right=results(catalogue, notebook),
                as_typed=_as_typed,
                as_given=_as_given,
            )
            text = _with_titles(text, notebook, inside)
    if problems:
        raise ValueError(f"{PAGE}: {'; '.join(problems)}")
    head = "| | Notebook | Needs | Read | Go further | Solve in class | Solve at home |\n|---|---|---|---|---|---|---|"
    text = texts.generated(text, {"notebooks": "\n".join([head, *rows]), **blocks}, PAGE)
    return _PATH.sub(lambda row: f"{row[1]} {_together(catalogue, row[2].split(', '))} |", text)


def parts(text: str) -> dict[str, str]:
    """From a notebook's number to its part of the page."""
    starts = list(_LESSON.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return {match[1]: text[match.start() : end] for match, end in zip(starts, ends, strict=True)}


def _named(kind: str, what: str) -> tuple[str, ...]:
    """The names that a row gives after "Vote:" or "Solve:"."""
    return tuple(name for names in _NAMED[kind].findall(what) for name in re.findall(r"\w+", names))


def _problems(plan: Sequence[Step], inside: Mapping[int, Section], sheet: ModuleType) -> Iterator[str]:
    """What is wrong with a plan, as sentences."""
    if not plan:
        yield "there is no plan"
        return
    if (total := sum(step.minutes for step in plan)) != MINUTES:
        yield f"the plan takes {total} minutes; a lesson has {MINUTES}"
    for step in plan:
        there = inside.get(step.section)
        if there is None:
            yield f"the notebook has no section {step.section}"
            continue
        for name in {*step.votes} - {*there.predictions}:
            yield f'there is no prediction `{name}` in "{there.title}"'
        if missing := {*step.solves} - {*there.exercises}:
            yield f'there is no exercise `{", ".join(sorted(missing))}` in "{there.title}"'
        elif (needed := sum(getattr(sheet, name).minutes for name in step.solves)) > step.minutes:
            yield f"{' and '.join(step.solves)} take {needed} minutes, and the plan gives {step.minutes}"


def _with_titles(text: str, notebook: Notebook, inside: Mapping[int, Section]) -> str:
    """The page with a notebook's title, and those of the sections in its plan."""
    old = parts(text)[notebook.number]

    def row(match: re.Match[str]) -> str:
        minutes, place, section, what = match.groups()
        return f"| {minutes} | {place or f'{section}. {inside[int(section)].title}'} | {what} |"

    heading = f"### {notebook.number} [{notebook.title}](../notebooks/{notebook.name}.ipynb)"
    return text.replace(old, _STEP.sub(row, _LESSON.sub(lambda _: heading, old)), 1)


def _at_home(inside: Mapping[int, Section], sheet: ModuleType, solved: Container[str]) -> tuple[list[Any], list[Any]]:
    """The exercises that a plan solves in class, and the others, in order."""
    every = [(name, getattr(sheet, name)) for section in inside.values() for name in section.exercises]
    return [one for name, one in every if name in solved], [one for name, one in every if name not in solved]


def _row(catalogue: Catalogue, notebook: Notebook, here: Sequence[Any], home: Sequence[Any]) -> str:
    needs = catalogue.needs(notebook) or "none"
    needed = times.of(_twin(catalogue, notebook))
    minutes = [needed.core, needed.further, *(sum(one.minutes for one in part) for part in (here, home))]
    anchor = re.sub(r"[^\w -]", "", f"{notebook.number} {notebook.title}".lower()).replace(" ", "-")
    return f"| {notebook.number} | [{notebook.title}](#{anchor}) | {needs} | {' | '.join(map(str, minutes))} |"


def _together(catalogue: Catalogue, numbers: Sequence[str]) -> str:
    """The minutes of several notebooks: to read their core, and to solve their exercises."""
    needed = [times.of(_twin(catalogue, n)) for n in catalogue.select(numbers)]
    return f"{sum(n.core for n in needed)} + {sum(n.exercises for n in needed)}"


def _as_typed(guess: Any) -> str:
    """A guess as a learner writes it: 7 for 7.0."""
    if isinstance(guess, float) and guess.is_integer() and abs(guess) < 1e6:
        return str(int(guess))
    if isinstance(guess, Sequence) and not isinstance(guess, str):
        inner = ", ".join(map(_as_typed, guess)) + ("," if isinstance(guess, tuple) and len(guess) == 1 else "")
        return f"({inner})" if isinstance(guess, tuple) else f"[{inner}]"
    return f'"{guess}"' if isinstance(guess, str) else str(guess)


def _as_given(mistake: Any) -> str:
    """A mistake's answer where it is a value, else the mistake's name in words."""
    words = mistake.code.replace("_", " ")
    if callable(mistake.answer):
        return f"*{words}*"
    if isinstance(mistake.answer, dict):
        listed = ", ".join(f"{key}: {_as_typed(value)}" for key, value in mistake.answer.items())
    else:
        listed = _as_typed(mistake.answer)
    return f"`{listed}`" if len(listed) <= _LONGEST else f"*{words}*"
