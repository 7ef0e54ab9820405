"""The command line: ``tapelab list``, ``lab``, ``colab``, ``site``, ``run``, ``report`` and ``sync``."""

import sys
from collections.abc import Iterable
from pathlib import Path

try:
    from tapelab.collection import catalogue, commandline, jupyterlab
    from tapelab.collection.processes import interrupts
    from tapelab.collection.publishing import copies, times
    from tapelab.collection.reports import live, records
    from tapelab.collection.reports import report as reports
    from tapelab.collection.reports.storage import Folder
    from tapelab.collection.running import batch, pool, sweep, variables

    import click
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError as missing:
    sys.exit(f"The command 'tapelab' needs the package {missing.name!r}: pip install 'tapelab[lab]'")

PACKAGED = Path(__file__).parents[1] / "notebooks"  # where a built package has them, without outputs
DEFAULT_OUTPUT = "build/executed"
LONGEST_SECONDS = 31_536_000  # a year; no clock waits for any number
LOG_WIDTH = 140  # columns of a table in a log


def _default_folder() -> Path:
    """The notebooks of the checkout, or those that came with the package."""
    here = Path("notebooks")
    return PACKAGED if PACKAGED.exists() and not (here / "collection.toml").exists() else here


folder_option = click.option(
    "--notebooks",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=_default_folder,
    show_default="notebooks, or those that came with the package",
    help="The folder with collection.toml.",
)
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), show_default="one for each core", help="How many run at a time."
)


@click.group(cls=commandline.Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="tapelab", prog_name="tapelab")
def main() -> None:
    """Notebooks on tf.GradientTape: learn from them, run them, publish them.

    'tapelab COMMAND --help' says more of a command.
    """


def _select(folder: Path, patterns: Iterable[str]) -> tuple[catalogue.Catalogue, list[catalogue.Notebook]]:
    loaded = catalogue.load(folder)
    return loaded, loaded.select(patterns)


def _need_checkout(command: str, folder: Path, loaded: catalogue.Catalogue) -> None:
    """Refuse what works on files that lie beside the notebooks in a checkout only."""
    if folder == PACKAGED:
        raise click.ClickException(
            f"'tapelab {command}' needs a checkout: the package has the notebooks alone, without sources and outputs. "
            f"Call it in one: git clone https://github.com/{loaded.repository}"
        )


@main.command("list", part=commandline.LEARN, example="tapelab list")
@folder_option
def list_notebooks(folder: Path) -> None:
    """List the notebooks, with the minutes that they take to read and their exercises to solve."""
    loaded, notebooks = _select(folder, ())
    table = Table("notebook", "title", "needs", "read", "solve")
    for n in notebooks:
        needed = times.of(catalogue.read_notebook(loaded.ipynb(n)))
        table.add_row(n.name, n.title, loaded.needs(n), f"{needed.reading} min", f"{needed.exercises} min")
    Console().print(table)


@main.command(
    context_settings={"ignore_unknown_options": True}, part=commandline.LEARN, example="tapelab lab my-copies"
)
@click.argument("arguments", metavar="[FOLDER] [JUPYTER'S OPTIONS]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--author", is_flag=True, help="Open the notebooks themselves: what you save changes the checkout.")
@click.option("--open/--no-open", "opens", default=True, help="Open JupyterLab, or only make copies.")
@folder_option
def lab(arguments: tuple[str, ...], author: bool, opens: bool, folder: Path) -> None:
    """Open JupyterLab on copies of the notebooks, on this machine only (loopback, with a token).

    The copies are yours. They lie in FOLDER, or in tapelab-work: beside the folder of notebooks, or in the present
    folder where the notebooks came with the package. A copy that you have not edited follows its original; an edited
    one is left alone, and a later version is laid beside it.
    """
    loaded, notebooks = _select(folder, ())
    place = loaded.folder
    if author:
        _need_checkout("lab --author", folder, loaded)
    else:
        place = (Path.cwd() if folder == PACKAGED else loaded.folder.resolve().parent) / copies.FOLDER
        if arguments and not arguments[0].startswith("-"):
            place, arguments = Path(arguments[0]), arguments[1:]
        _tell_changes(copies.refresh(loaded, place), place)
    if not opens:
        return
    first = f"/lab/tree/{notebooks[0].name}.ipynb" if notebooks else "/lab"
    jupyterlab.start(place, first, arguments)


@main.command(part=commandline.MAINTAIN, example="tapelab colab build/colab")
@click.argument("output", metavar="FOLDER", type=click.Path(path_type=Path))
@folder_option
def colab(output: Path, folder: Path) -> None:
    """Write the copies that Colab's badges open into FOLDER: the content of a branch, see ci/colab.sh."""
    loaded, _ = _select(folder, ())
    copies.write_for_colab(loaded, output)
    click.echo(copies.colab_branch(loaded))


@main.command(part=commandline.MAINTAIN, example="tapelab site build/site")
@click.argument("output", metavar="[FOLDER]", type=click.Path(path_type=Path), default=Path("build/site"))
@folder_option
def site(output: Path, folder: Path) -> None:
    """Build the static site into FOLDER (build/site), from the notebooks' stored outputs: nothing is executed.

    Needs a checkout.
    """
    loaded, _ = _select(folder, ())
    _need_checkout("site", folder, loaded)
    from tapelab.collection.publishing import website

    try:
        from sphinx.cmd.build import build_main
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"The site needs the package {missing.name!r}: pip install 'tapelab[site]'"
        ) from None
    sources = output.with_name(f"{output.name}-source")
    website.write_sources(loaded, sources)
    options = ["--quiet", "--fail-on-warning", "--keep-going", "-d", str(sources.with_suffix(".doctrees"))]
    sys.exit(build_main([*options, str(sources), str(output)]))


_CHANGED = {
    "renewed": "renewed, since its original has changed and you had not edited it",
    "kept": "left as you edited it; the new version lies beside it, {0.name}",
}


def _tell_changes(changes: list[copies.Change], place: Path) -> None:
    made = sum(change.kind == "made" for change in changes)
    if made:
        click.echo(f"{made} notebook{'s' if made > 1 else ''} copied to {place}")
    for change in changes:
        if change.kind in _CHANGED:
            click.echo(f"{change.name}: {_CHANGED[change.kind].format(change.path)}")


@main.command(part=commandline.RUN, example="tapelab run 05 07 -p seed 3")
@click.argument("patterns", metavar="[NOTEBOOK]...", nargs=-1)
@click.option(
    "-p", "--parameter", "parameters", nargs=2, multiple=True, metavar="NAME VALUE", help="Override a parameter."
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=VALUES",
    help="Run with each value: seed=0..9 (both ends count) or rate=0.1,0.01. Several sweeps give every combination.",
)
@click.option(
    "--timeout",
    type=click.IntRange(1, LONGEST_SECONDS),
    metavar="SECONDS",
    default=600,
    help="Seconds that one run may take.",
)
@click.option(
    "--output",
    default=DEFAULT_OUTPUT,
    metavar="FOLDER",
    help="The folder for the executed notebooks and the report.",
)
@click.option("--resume", is_flag=True, help="Skip what succeeded in --output before and has not changed since.")
@click.option(
    "--dask", metavar="ADDRESS", help="Run on the Dask cluster whose scheduler is there, not on this machine."
)
@click.option("--kernel", default="python3", help="The Jupyter kernel to run them on.")
@workers_option
@click.option(
    "--fork/--no-fork",
    default=True,
    help="Fork papermill and kernels from processes that have done their imports (on Linux; no kernels if there is a "
    "GPU), or start each anew.",
)
@click.option(
    "--pass-env",
    "passed",
    multiple=True,
    metavar="NAME",
    help="Let the notebooks see this environment variable, beside those that Python, TensorFlow and Jupyter need. With "
    "--dask, each worker passes its own.",
)
@folder_option
def run(
    patterns: tuple[str, ...],
    parameters: tuple[tuple[str, str], ...],
    sweeps: tuple[str, ...],
    timeout: int,
    output: str,
    resume: bool,
    dask: str | None,
    kernel: str,
    workers: int | None,
    fork: bool,
    passed: tuple[str, ...],
    folder: Path,
) -> None:
    """Execute notebooks (all, or those given by number, name or glob), each in a process of its own.

    Prints a table of verdicts, and leaves executed copies, report.html, report.json and junit.xml in --output. A run
    that fails does not stop the others.

    Exits with 0 if every run succeeded, 1 if any failed, 128 and the signal's number if a run was interrupted.
    """
    if dask and workers:
        raise click.UsageError(
            "--workers is for this machine; with --dask, the cluster's threads run one notebook each"
        )
    pairs = [text.partition("=") for text in sweeps]
    if bad := [text for text, (name, equals, _) in zip(sweeps, pairs, strict=True) if not (name and equals)]:
        raise click.UsageError(f"--sweep is {bad[0]!r}; expected NAME=VALUES, such as seed=0..9")
    loaded, notebooks = _select(folder, patterns)
    console = _console()
    runs = sweep.expand(loaded, notebooks, parameters, [(name, values) for name, _, values in pairs])
    storage = Folder(output)
    interrupts.command.watch()
    with storage.held(), _executor(dask, workers, fork, passed) as executor:
        settings = batch.Settings(kernel, timeout, resume)
        sys.exit(batch.Batch(loaded, runs, executor, storage, settings, console, interrupts.command).run())


def _console() -> Console:
    file = sys.stdout and live.Enduring(sys.stdout)
    console = Console(file=file)
    return console if console.is_terminal else Console(file=file, width=LOG_WIDTH)


@main.command(part=commandline.RUN, example="tapelab report build/seeds")
@click.argument("output", metavar="[FOLDER]", default=DEFAULT_OUTPUT)
def report(output: str) -> None:
    """Write report.html and junit.xml anew where 'tapelab run' left its results, and print the table.

    Works from report.json, which 'tapelab run' keeps up to date while it runs: also after it was killed before it wrote
    the page, and while it still runs. The default is build/executed.
    """
    if not Path(output).is_dir():
        raise click.ClickException(f"there is no folder {output}")
    try:
        storage = Folder(output)
        reports.show(_console(), reports.renew(storage), storage)
    except FileNotFoundError:
        raise click.ClickException(f"there is no {records.JSON} in {output}; 'tapelab run' writes it") from None
    except OSError as error:
        raise click.ClickException(f"cannot write the report to {output}: {error.strerror or error}") from error


def _executor(dask, workers, fork, passed):
    if not dask:
        return pool.Local(workers or variables.cores(), fork, passed)
    try:
        from tapelab.collection.running import cluster
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"--dask needs the package {missing.name!r}: pip install 'tapelab[dask]'"
        ) from missing
    with interrupts.command.at_once():  # it waits for the cluster
        return cluster.Cluster(dask, fork, passed)


@main.command("sync", part=commandline.MAINTAIN, example="tapelab sync 05")
@click.argument("patterns", metavar="[NOTEBOOK]...", nargs=-1)
@click.option("--execute/--no-execute", default=True, help="Run the notebooks, store their outputs.")
@workers_option
@folder_option
def synchronise(patterns: tuple[str, ...], execute: bool, workers: int | None, folder: Path) -> None:
    """Regenerate notebooks, badges, set-up cells, the README's table and the teachers' page from the sources.

    Needs a checkout.
    """
    from tapelab.collection.publishing import sync  # jupytext takes as long to import as all the rest

    loaded, notebooks = _select(folder, patterns)
    _need_checkout("sync", folder, loaded)
    failures = sync.refresh_all(loaded, notebooks, execute=execute, workers=workers or variables.cores())
    for name, message in failures:
        click.echo(f"{name}: left as it was\n{message}\n", err=True)
    sys.exit(1 if failures else 0)
