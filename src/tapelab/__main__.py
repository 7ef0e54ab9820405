"""The command ``tapelab``, which is also ``python -m tapelab``."""

import sys
from importlib import metadata

from tapelab.collection.processes import interrupts


def main() -> None:
    """Run the command."""
    if sys.argv[1:] == ["--version"]:  # what the package alone can answer
        print(f"tapelab, version {metadata.version('tapelab')}")
        return
    if sys.argv[1:2] == ["run"]:
        interrupts.command.watch()  # before the imports, which take a second or more
    from tapelab.collection import cli

    cli.main()


if __name__ == "__main__":
    main()
