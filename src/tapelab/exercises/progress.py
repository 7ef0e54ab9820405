"""Which exercises are solved: one small file in the user's own data folder, never in the checkout."""

import json
import os
import warnings
from pathlib import Path

from tapelab.process import session
from tapelab.process.files import write_whole

import platformdirs


def path() -> Path:
    """Where the file is: the folder that the platform has for an application's data, or `TAPELAB_PROGRESS`."""
    return Path(os.environ.get("TAPELAB_PROGRESS") or Path(platformdirs.user_data_dir("tapelab")) / "progress.json")


def solved() -> set[str]:
    """Return the identifiers of the exercises that were solved, as a set of strings such as
    "recording_control.metric_off".

    Empty in a batch run, which reads no file. A file that cannot be read or makes no sense is reported as a warning,
    and counts as empty.
    """
    if not session.attended():
        return set()
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
        names = content["solved"]
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise TypeError
    except FileNotFoundError:
        return set()
    except OSError as error:
        warnings.warn(f"Your progress could not be read: {error}.", stacklevel=2)
        return set()
    except (ValueError, KeyError, TypeError):
        warnings.warn(
            f"{path()} is damaged, so no exercise counts as solved. The next one that you solve writes a new file.",
            stacklevel=2,
        )
        return set()
    return set(names)


def record(identifier: str) -> None:
    """Note that an exercise was solved. Does nothing in a batch run.

    The new file is written beside the old one and takes its place when it is whole. A file that cannot be written is
    reported as a warning.
    """
    if not session.attended():
        return
    known = solved()
    if identifier in known:
        return
    target, content = path(), json.dumps({"solved": sorted(known | {identifier})}, indent=1)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content.encode())
    except OSError as error:
        warnings.warn(f"Right, but your progress could not be saved: {error}.", stacklevel=2)
