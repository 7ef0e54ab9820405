"""What the command line adds to click: a help in parts, with an example for each command, and a length of time."""

from typing import Any

import click

LEARN, RUN, MAINTAIN = PARTS = ("Learn", "Run", "Maintain, in a checkout")
LONGEST_SECONDS = 31_536_000


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


class Duration(click.FloatRange):
    """A positive number of seconds, and a finite one: no clock can wait for others."""

    def __init__(self):
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        number = super().convert(value, parameter, context)
        if not number <= LONGEST_SECONDS:  # nan is not, either
            self.fail(f"{value} is not at most {LONGEST_SECONDS} (a year).", parameter, context)
        return number
