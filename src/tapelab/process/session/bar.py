"""A bar for what takes longer than a second, where a person watches."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tapelab.process.session import attended


@contextlib.contextmanager
def progress_bar(total: int, doing: str) -> Iterator[Callable[..., None]]:
    """Show tqdm's bar while the block runs, if a person watches and tqdm is installed.

    Args:
        total: how many steps there will be.
        doing: what is being done, in a word.

    Yields:
        What to call after each step, with values by keyword that the bar shows.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or not (attended() or sys.stderr.isatty()):
        yield lambda **values: None
        return
    with tqdm(total=total, desc=doing, delay=1, leave=False) as bar:

        def advance(**values: Any) -> None:
            bar.set_postfix(values, refresh=False)
            bar.update()

        yield advance
        bar.total = bar.n  # it has arrived: a notebook would leave a bar that is not full standing, in red
