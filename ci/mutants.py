"""How much of the notebooks' own code do their checks hold? `make mutants` changes it, one place at a time, and counts.

A mutant is a notebook in which one expression of an open cell of code is another: another operator or number, a call
left out, two arguments swapped, a flag turned round, a statement dropped. Set-up, parameters, folded cells, figures,
exercises, what is only printed, and tolerances stay as they are. Each mutant runs whole, in a kernel of its own.

Some do not run: Python or TensorFlow refuses them in a cell of the lesson, before a check has a say. They are counted
apart, for they say nothing about the checks. Of those that run, one is noticed by an assertion, by another error in a
cell of checks, or because a cell prints something else than it does in the notebook as it is (which nbval would
notice). What is not noticed at all is listed, as a difference of two lines: a check that is missing, or a mutant that
means the same, for which `ci/mutants.toml` says why.

    make mutants                              300 mutants of all notebooks
    make ARGS="--count 40 05 09" mutants      40 of two
"""

import ast
import copy
import json
import os
import random
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from tapelab.collection import catalogue, forkserver
from tapelab.collection.publishing import times
from tapelab.process.files import write_whole

import click
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = ROOT / "ci" / "mutants.toml"
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
COMPARISONS = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
# Calls whose arguments are shown, and keywords that say how: they are no part of what a notebook computes.
SHOWN = ("print", "plt.", "plots.", "ax.", "axes", "figure.", "display", "draw", "exercises.", "tf.print")
APPEARANCE = {
    "rtol",
    "atol",
    "delta",
    "name",
    "seed",
    "figsize",
    "label",
    "title",
    "color",
    "alpha",
    "summarize",
    "verbose",
    "strict",
}
RANDOM = {"normal", "standard_normal", "uniform", "default_rng"}  # draw: any numbers will do, and any number of them
# Without these calls Python refuses what follows, or computes the same with another type; and those that do not mind
# the order of their arguments.
NEEDED = {"range", "len", "zip", "enumerate", "iter", "next", "set", "list", "tuple", "dict", "int", "float"}
COMMUTE = {"max", "min", "maximum", "minimum", "add", "multiply", "isinstance", "getattr", "cast"}
LITERAL = (ast.List, ast.Tuple, ast.Dict, ast.Lambda)
SECONDS = 180  # for a cell; a mutant that runs longer counts as noticed by an error


@dataclass(frozen=True)
class Mutant:
    """One change: in which notebook and cell, the whole new cell, and the change in words."""

    notebook: str
    cell: int
    source: str
    change: str


@dataclass(frozen=True)
class Verdict:
    """What noticed a mutant: "assertion", "error", "output" or None; or "refused", if it does not run."""

    mutant: Mutant
    noticed: str | None
    by: str = ""


def mutants_of(name: str, nb: nbformat.NotebookNode) -> Iterator[Mutant]:
    """All mutants of a notebook, in order."""
    for number, cell in enumerate(nb.cells):
        tags = set(cell.metadata.get("tags", []))
        lines = cell.source.splitlines()
        if cell.cell_type != "code" or tags & times.FOLDED or "alt" in cell.metadata or "exercises." in cell.source:
            continue
        if any(line.lstrip().startswith(("%", "!")) for line in lines):
            continue
        tree = ast.parse(cell.source)
        for path, replacement in _changes(tree):
            changed = copy.deepcopy(tree)
            old = ast.unparse(_at(tree, path))
            _put(changed, path, replacement)
            source = ast.unparse(ast.fix_missing_locations(changed))
            line = lines[_line(tree, path) - 1].strip()
            yield Mutant(name, number, source, f"{line}    [{old} → {ast.unparse(replacement) or 'nothing'}]")


def _changes(tree: ast.AST) -> Iterator[tuple[list, ast.AST]]:
    """Pairs of a path to a node and what takes its place."""
    for path, node in _walk(tree, []):
        if isinstance(node, ast.BinOp):
            if type(node.op) in OPERATORS:
                yield path, ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
            elif isinstance(node.op, ast.MatMult):
                yield path, ast.BinOp(node.right, node.op, node.left)
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield path, ast.Compare(node.left, [COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield path, node.operand
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield path, ast.Constant(not node.value)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield path, ast.Constant(node.value + 1 if type(node.value) is int else node.value * 1.5 + 0.5)
        elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            if _called(node) not in NEEDED:
                yield path, node.args[0]
        elif isinstance(node, ast.Call) and len(node.args) >= 2:
            first, second, *others = node.args
            alike = ast.dump(first) == ast.dump(second) or isinstance(first, LITERAL) != isinstance(second, LITERAL)
            if not alike and _called(node) not in COMMUTE:
                yield path, ast.Call(node.func, [second, first, *others], node.keywords)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield path, ast.Pass()


def _called(call):
    """The last name of what is called."""
    return ast.unparse(call.func).rpartition(".")[2]


def _walk(node, path):
    """The nodes of a tree with their paths, but those that are only shown, and what random numbers are drawn."""
    if isinstance(node, ast.Call) and (ast.unparse(node.func).startswith(SHOWN) or _called(node) in RANDOM):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not list(_walk(node.value, [])):
        return
    if isinstance(node, ast.keyword) and node.arg in APPEARANCE:
        return
    if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)):
        return
    yield path, node
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield from _walk(value, [*path, (name, None)])
        elif isinstance(value, list):
            for place, part in enumerate(value):
                if isinstance(part, ast.AST):
                    yield from _walk(part, [*path, (name, place)])


def _at(tree, path):
    for name, place in path:
        tree = getattr(tree, name) if place is None else getattr(tree, name)[place]
    return tree


def _put(tree, path, node):
    *before, (name, place) = path
    parent = _at(tree, before)
    if place is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[place] = node


def _line(tree, path):
    """The line of the innermost node on the path that has one."""
    nodes = [_at(tree, path[:size]) for size in range(len(path), -1, -1)]
    return next(node.lineno for node in nodes if hasattr(node, "lineno"))


def run(nb: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a kernel of its own; raises what nbclient raises."""
    client = NotebookClient(nb, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return client.execute(stderr=subprocess.DEVNULL)


def printed(nb: nbformat.NotebookNode) -> list[str]:
    """What each cell shows as text; nothing for the cells whose output nbval does not compare."""
    shown = []
    for cell in nb.cells:
        ignored = cell.cell_type != "code" or "nbval-ignore-output" in cell.metadata.get("tags", [])
        outputs = [] if ignored else cell.outputs
        texts = [o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs if o.get("name") != "stderr"]
        shown.append("".join(text for text in texts if not text.startswith("<Figure")))
    return shown


def as_it_is(nb: nbformat.NotebookNode, folder: Path) -> list[str]:
    """What the cells of a notebook show that nothing has changed."""
    return printed(run(copy.deepcopy(nb), folder))


def judge(mutant: Mutant, nb: nbformat.NotebookNode, expected: Future, folder: Path) -> Verdict:
    """Run a mutant and say what notices it; `expected` is the future of what `as_it_is` gives."""
    nb = copy.deepcopy(nb)
    nb.cells[mutant.cell].source = mutant.source
    try:
        found = printed(run(nb, folder))
    except CellExecutionError as error:
        cell = next(n for n, c in enumerate(nb.cells) if _raised(c))
        kind = "error" if "check" in nb.cells[cell].metadata.get("tags", []) else "refused"
        kind = "assertion" if error.ename == "AssertionError" else kind
        return Verdict(mutant, kind, f"cell {cell}: {error.ename}: {error.evalue}"[:200])
    except (CellTimeoutError, DeadKernelError) as error:
        return Verdict(mutant, "error", type(error).__name__)
    for number, (mine, theirs) in enumerate(zip(found, expected.result(), strict=True)):
        if mine != theirs:
            return Verdict(mutant, "output", f"cell {number}")
    return Verdict(mutant, None)


def _raised(cell):
    """Whether a cell ended its notebook's run."""
    allowed = "raises-exception" in cell.metadata.get("tags", [])
    return not allowed and any(output.output_type == "error" for output in cell.get("outputs", []))


def reasons() -> dict[tuple[str, str], str]:
    """Why a mutant that nothing notices means the same, by notebook and change."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {(entry["notebook"], entry["change"]): entry["because"] for entry in entries}


def report(verdicts: list[Verdict]) -> str:
    """The counts by notebook, and the survivors, in Markdown."""
    known = reasons()
    rows = ["| notebook | mutants | that run | by an assertion | by another error | by what is printed | not noticed |"]
    rows[0] += " equivalent |"
    rows.append("|---|---|---|---|---|---|---|---|")
    survivors = []
    for name in [*sorted({v.mutant.notebook for v in verdicts}), "all"]:
        ours = [v for v in verdicts if name in (v.mutant.notebook, "all")]
        same = sum(v.noticed is None and (v.mutant.notebook, v.mutant.change) in known for v in ours)
        counts = Counter(v.noticed for v in ours)
        found = [counts["assertion"], counts["error"], counts["output"]]
        rest = len(ours) - counts["refused"]
        numbers = [len(ours), rest, *found, counts[None] - same, same]
        rows.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    differing = max(1, rest - same)
    share = f"Noticed: {sum(found) / differing:.2f}, by an assertion {found[0] / differing:.2f} "
    share += f"of the {differing} that run and are not equivalent. "
    share += f"With those that Python refuses: {(sum(found) + counts['refused']) / max(1, len(verdicts) - same):.2f}."
    for v in verdicts:
        if v.noticed is None:
            because = known.get((v.mutant.notebook, v.mutant.change), "**nothing holds this**")
            survivors.append(f"- {v.mutant.notebook}, cell {v.mutant.cell}: `{v.mutant.change}`: {because}")
    return "\n".join([*rows, "", share, "", *survivors]) + "\n"


@click.command()
@click.argument("notebooks", nargs=-1)
@click.option("--count", default=300, show_default=True, help="How many mutants, drawn at random.")
@click.option("--seed", default=0, show_default=True, help="Of the draw.")
@click.option("--workers", default=os.cpu_count(), show_default=True, help="How many run side by side.")
@click.option("--output", default=ROOT / "build" / "mutants", type=click.Path(path_type=Path), help="Of the report.")
def main(notebooks: tuple[str, ...], count: int, seed: int, workers: int, output: Path) -> None:
    """Change the notebooks' code, one place at a time, and count what their checks notice."""
    loaded = catalogue.load(ROOT / "notebooks")
    originals = {n.name: nbformat.read(loaded.ipynb(n), as_version=4) for n in loaded.select(notebooks)}
    everything = [mutant for name, nb in originals.items() for mutant in mutants_of(name, nb)]
    drawn = random.Random(seed).sample(everything, min(count, len(everything)))
    drawn.sort(key=lambda mutant: mutant.notebook)
    console, verdicts = Console(stderr=True), []
    os.environ[forkserver.DEFAULT] = forkserver.PROVISIONER
    output.mkdir(parents=True, exist_ok=True)
    with (
        ThreadPoolExecutor(workers) as pool,
        Progress(console=console) as progress,
    ):
        bar = progress.add_task(f"{len(drawn)} of {len(everything)} mutants", total=len(drawn))
        try:
            expected, waiting = {}, []
            for mutant in drawn:
                nb = originals[mutant.notebook]
                if mutant.notebook not in expected:  # the pool takes it up before the mutants that wait for it
                    expected[mutant.notebook] = pool.submit(as_it_is, nb, loaded.folder)
                waiting.append(pool.submit(judge, mutant, nb, expected[mutant.notebook], loaded.folder))
            for future in as_completed(waiting):
                verdicts.append(future.result())
                progress.advance(bar)
                write_whole(output / "report.md", report(verdicts).encode())
                write_whole(output / "mutants.json", json.dumps([asdict(v) for v in verdicts], indent=1).encode())
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            console.print("interrupted; what was judged is in the report")
    click.echo(report(verdicts))


if __name__ == "__main__":
    main()
