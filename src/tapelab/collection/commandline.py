"""What the command line adds to click: a help in parts, with an example for each command."""

from typing import Any

import click

LEARN, RUN, MAINTAIN = PARTS = ("Learn", "Run", "Maintain, in a checkout")


class Command(click.Command):
    """A command that belongs to a part of the help and has an example there."""

    def __init__(self, *arguments: Any, part: str, example: str, **named: Any):
        super().__init__(*arguments, epilog=f"Example: {example}", **named)
        self.part, self.example = part, example


class Commands(click.Group):
    """Commands whose help lists them by part, in the order in which they are defined."""

    command_class = Command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its first sentence, which click would cut to fit a line, and its example."""
        for part in PARTS:
            rows = []
            for command in self.commands.values():
                if command.part == part:
                    sentence = command.get_short_help_str(limit=len(command.help))
                    rows += [(command.name, sentence), ("", f"$ {command.example}")]
            with formatter.section(part):
                formatter.write_dl(rows)
