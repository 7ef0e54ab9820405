"""The command line: ``tapelab list``, ``run``, ``report`` and ``sync``."""

import sys
from pathlib import Path

try:
    from tapelab.collection import batch, catalogue, one, plan, pool
    from tapelab.collection import report as reports
    from tapelab.collection.storage import StorageError, open_storage

    import click
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError as missing:
    sys.exit(f"The command 'tapelab' needs the package {missing.name!r}: pip install 'tapelab[lab]'")

DEFAULT_FOLDER = Path("notebooks")
DEFAULT_OUTPUT = "build/executed"
LOG_WIDTH = 140  # columns of a table in a log

folder_option = click.option(
    "--notebooks",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="The folder with collection.toml.",
)
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), default=one.cores(), show_default="one for each core"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main():
    """Look after the collection of notebooks."""


def _select(folder, patterns):
    try:
        loaded = catalogue.load(folder)
        return loaded, loaded.select(patterns)
    except catalogue.CatalogueError as error:
        raise click.ClickException(str(error)) from error


@main.command("list")
@folder_option
def list_notebooks(folder):
    """List the notebooks."""
    loaded, notebooks = _select(folder, ())
    table = Table("notebook", "title", "needs", "minutes")
    for n in notebooks:
        needs = ", ".join(loaded.by_name(name).number for name in n.prerequisites)
        table.add_row(n.name, n.title, needs, str(n.minutes))
    Console().print(table)


@main.command()
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
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that one run may take.",
)
@click.option(
    "--output",
    default=DEFAULT_OUTPUT,
    show_default=True,
    metavar="FOLDER|URL",
    help="Where the executed notebooks and the report go: a folder, or a URL that fsspec knows (s3://bucket/prefix).",
)
@click.option("--resume", is_flag=True, help="Skip what succeeded in --output before and has not changed since.")
@click.option(
    "--dask", metavar="ADDRESS", help="Run on the Dask cluster whose scheduler is there, not on this machine."
)
@click.option("--kernel", default="python3", show_default=True, help="The Jupyter kernel to run them on.")
@click.option("--workers", type=click.IntRange(min=1), show_default="one for each core", help="How many run at a time.")
@click.option(
    "--fork/--no-fork",
    default=True,
    show_default=True,
    help="Fork papermill and kernels from processes that have done their imports (on Linux; no kernels if there is a "
    "GPU), or start each anew.",
)
@folder_option
def run(patterns, parameters, sweeps, timeout, output, resume, dask, kernel, workers, fork, folder):
    """Execute notebooks (all, or those given by number, name or glob), each in a process of its own.

    Prints a table of verdicts, and leaves executed copies, report.html, report.json and junit.xml in --output. A run
    that fails does not stop the others.

    Exits with 0 if every run succeeded, 1 if any failed, 128 and the signal's number if it was interrupted.
    """
    if dask and workers:
        raise click.UsageError(
            "--workers is for this machine; with --dask, the cluster's threads run one notebook each"
        )
    pairs = [sweep.partition("=") for sweep in sweeps]
    if bad := [sweep for sweep, (name, equals, _) in zip(sweeps, pairs, strict=True) if not (name and equals)]:
        raise click.UsageError(f"--sweep is {bad[0]!r}; expected NAME=VALUES, such as seed=0..9")
    loaded, notebooks = _select(folder, patterns)
    console = _console()
    try:
        runs = plan.make_plan(loaded, notebooks, parameters, [(name, values) for name, _, values in pairs])
        storage = open_storage(output)
        with _executor(dask, workers, fork) as executor:
            settings = batch.Settings(kernel, timeout, resume)
            status = batch.Batch(loaded, runs, executor, storage, settings, console).run()
    except (plan.ParameterError, StorageError, LookupError) as error:
        raise click.ClickException(str(error)) from error
    sys.exit(status)


def _console():
    console = Console()
    return console if console.is_terminal else Console(width=LOG_WIDTH)


@main.command()
@click.argument("output", metavar="[FOLDER|URL]", default=DEFAULT_OUTPUT)
def report(output):
    """Write report.html and junit.xml anew where 'tapelab run' left its results, and print the table.

    Works from report.json, which 'tapelab run' keeps up to date while it runs: also after it was killed before it wrote
    the page, and while it still runs. The default is build/executed.
    """
    if "://" not in output and not Path(output).is_dir():
        raise click.ClickException(f"there is no folder {output}")
    try:
        storage = open_storage(output)
        reports.show(_console(), reports.renew(storage), storage)
    except FileNotFoundError:
        raise click.ClickException(f"there is no {reports.JSON} in {output}; 'tapelab run' writes it") from None
    except (StorageError, reports.DamagedReportError) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:  # of the local disk, or of whatever fsspec talks to
        why = getattr(error, "strerror", None) or error
        raise click.ClickException(f"cannot write the report to {output}: {why}") from error


def _executor(dask, workers, fork):
    if not dask:
        return pool.Local(workers or one.cores(), fork)
    try:
        from tapelab.collection import cluster
    except ModuleNotFoundError as missing:
        raise click.ClickException(
            f"--dask needs the package {missing.name!r}: pip install 'tapelab[dask]'"
        ) from missing
    return cluster.Cluster(dask, fork)


@main.command("sync")
@click.argument("patterns", metavar="[NOTEBOOK]...", nargs=-1)
@click.option("--execute/--no-execute", default=True, show_default=True, help="Run the notebooks, store their outputs.")
@workers_option
@folder_option
def synchronise(patterns, execute, workers, folder):
    """Regenerate notebooks, badges, set-up cells and the README's table from the sources."""
    from tapelab.collection import sync  # jupytext takes as long to import as all the rest

    loaded, notebooks = _select(folder, patterns)
    failures = sync.refresh_all(loaded, notebooks, execute=execute, workers=workers)
    for name, message in failures:
        click.echo(f"{name}: left as it was\n{message}\n", err=True)
    sys.exit(1 if failures else 0)
