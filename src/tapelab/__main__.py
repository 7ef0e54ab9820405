"""The command ``tapelab``, which is also ``python -m tapelab``."""

import sys

from tapelab.collection.processes import interrupts


def main() -> None:
    """Run the command."""
    if sys.argv[1:2] == ["run"]:
        interrupts.command.watch()  # before the imports, which take a second or more
    from tapelab.collection import cli

    cli.main()


if __name__ == "__main__":
    main()
