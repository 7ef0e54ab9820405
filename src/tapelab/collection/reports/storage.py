"""Where a batch keeps its files: a folder, which one batch at a time may hold."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tapelab.process.files import write_whole

import click
import filelock

LOCK = ".lock"


class StorageError(click.ClickException):
    """The place cannot be used. The message names it and says why."""


class Folder:
    """A folder on this machine, made if it is missing. Every file is written beside its place and renamed into it."""

    def __init__(self, path: str | Path):
        """Make the folder.

        Raises:
            StorageError: if it cannot be made, or the path is empty or a URL.
        """
        if not str(path):  # to `Path`, that is the current folder
            raise StorageError("cannot write to '': it names no place. Give --output a folder.")
        if "://" in str(path):
            raise StorageError(f"cannot write to {path}: it is a URL. Give --output a folder, and copy it afterwards.")
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write to {self.path}: {error.strerror or error}. Choose another folder with --output."
        )

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises FileNotFoundError if there is none."""
        return (self.path / name).read_bytes()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For as long as the block runs, nobody else holds this folder.

        Raises:
            StorageError: if somebody does, or nothing can be written there.
        """
        lock = filelock.FileLock(self.path / LOCK, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise StorageError(
                f"another batch writes to {self.path} at this moment. Wait for its end, or choose another folder with "
                "--output."
            ) from None
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows removes no open file
                (self.path / LOCK).unlink(missing_ok=True)
            lock.release()
