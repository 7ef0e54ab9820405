"""The command line: ``tapelab list``, ``run`` and ``sync``."""

import sys
from pathlib import Path

try:
    from tapelab.collection import catalogue, execute, sync

    import click
    from rich.console import Console
    from rich.table import Table
except ModuleNotFoundError as missing:
    sys.exit(f"The command 'tapelab' needs the package {missing.name!r}: pip install 'tapelab[lab]'")

DEFAULT_FOLDER = Path("notebooks")

folder_option = click.option(
    "--notebooks",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_FOLDER,
    show_default=True,
    help="The folder with collection.toml.",
)
workers_option = click.option(
    "--workers", type=click.IntRange(min=1), default=execute.default_workers(), show_default="one for each core"
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
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that one notebook may take.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/executed"),
    show_default=True,
    help="Where the executed notebooks go.",
)
@click.option("--kernel", default="python3", show_default=True, help="The Jupyter kernel to run them on.")
@workers_option
@folder_option
def run(patterns, parameters, timeout, output, kernel, workers, folder):
    """Execute notebooks (all, or those given by number, name or glob) and print a table of verdicts.

    Exits with 1 if any notebook fails; the others still finish.
    """
    loaded, notebooks = _select(folder, patterns)
    try:
        chosen = execute.validate_parameters(loaded, notebooks, parameters)
    except execute.ParameterError as error:
        raise click.ClickException(str(error)) from error
    settings = {"output": output, "workers": workers, "timeout": timeout, "kernel": kernel}
    sys.exit(execute.run_and_report(loaded, notebooks, chosen, **settings))


@main.command("sync")
@click.argument("patterns", metavar="[NOTEBOOK]...", nargs=-1)
@click.option("--execute/--no-execute", default=True, show_default=True, help="Run the notebooks, store their outputs.")
@workers_option
@folder_option
def synchronise(patterns, execute, workers, folder):
    """Regenerate notebooks, badges, set-up cells and the README's table from the sources."""
    loaded, notebooks = _select(folder, patterns)
    failures = sync.refresh_all(loaded, notebooks, execute=execute, workers=workers)
    for name, message in failures:
        click.echo(f"{name}: left as it was\n{message}\n", err=True)
    sys.exit(1 if failures else 0)
