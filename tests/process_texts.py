"""Programs that tests run in processes of their own, and texts of files that they write: they stand in one table."""

import tomllib
from pathlib import Path

TEXTS = tomllib.loads((Path(__file__).parent / "programs" / "processes.toml").read_text("utf-8"))


def read_text(module: str, name: str) -> str:
    """A program or a text of a test module, by its name."""
    return TEXTS[module][name]
