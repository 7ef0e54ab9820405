"""What the command line adds to click: a help in parts, with an example for each command."""

from typing import Any

import click

LEARN, RUN, MAINTAIN = PARTS = ("Learn", "Run", "Maintain, in a checkout")


class Command(click.Command):
    """A command that belongs to a part of the help and has an example there."""

    def __init__(self, *arguments: Any, part: str, example: str, **named: Any):
        super().__init__(*arguments, epilog=f"Example: {example}", **named)
        self.part, self.example = part, example

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """As click does; ``-p NAME=VALUE``, as others write it, is ``-p NAME VALUE``."""
        given = [False, *(before in ("-p", "--parameter") for before in args)]
        parts = (arg.split("=", 1) if is_name else [arg] for arg, is_name in zip(args, given, strict=False))
        return super().parse_args(context, [part for pair in parts for part in pair])


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
