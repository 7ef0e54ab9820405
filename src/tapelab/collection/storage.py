"""Where a batch keeps its files: a folder, or any place that fsspec reaches by a URL such as ``s3://bucket/prefix``."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tapelab.process.files import write_whole

import filelock
import fsspec

LOCK = ".lock"


class StorageError(OSError):
    """The place cannot be used. The message names it and says why."""


class Folder:
    """A folder on this machine, made if it is missing. Every file is written beside its place and renamed into it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / ".writable", b"")
            (self.path / ".writable").unlink(missing_ok=True)  # another command may try at the same time
        except OSError as error:
            raise StorageError(
                f"cannot write to {path}: {error.strerror}. Choose another folder with --output."
            ) from error

    def __str__(self) -> str:
        return str(self.path)

    def write(self, name: str, content: bytes) -> None:
        write_whole(self.path / name, content)

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises FileNotFoundError if there is none."""
        return (self.path / name).read_bytes()

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For as long as the block runs, nobody else holds this folder.

        Raises:
            StorageError: if somebody does.
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
            raise StorageError(f"cannot lock {self.path}: {error.strerror or error}") from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows removes no open file
                (self.path / LOCK).unlink(missing_ok=True)
            lock.release()


class Remote:
    """A place behind a URL. An object store shows an object when all of it has arrived, so nobody sees half a file."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
            self._files.makedirs(self._root, exist_ok=True)
            self.write(".writable", b"")
            self.remove(".writable")
        except Exception as error:  # each of fsspec's file systems has exceptions of its own
            raise StorageError(f"cannot write to {self.url}: {error}. Choose another place with --output.") from error

    def __str__(self) -> str:
        return self.url

    def write(self, name: str, content: bytes) -> None:
        self._files.pipe_file(f"{self._root}/{name}", content)

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises FileNotFoundError if there is none."""
        return self._files.cat_file(f"{self._root}/{name}")

    def names(self) -> set[str]:
        try:
            return {path.rsplit("/", 1)[-1] for path in self._files.ls(self._root, detail=False)}
        except FileNotFoundError:  # an object store knows no folders: what holds nothing does not exist
            return set()

    def remove(self, name: str) -> None:
        if self._files.exists(f"{self._root}/{name}"):
            self._files.rm_file(f"{self._root}/{name}")

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Nothing: fsspec has no locks. Two batches must not write to one place."""
        return contextlib.nullcontext()


def open_storage(place: str | Path) -> Folder | Remote:
    """The place for a path or a URL.

    Raises:
        StorageError: if it cannot be written to, or is empty.
    """
    parts = urlsplit(str(place))
    path = url2pathname(parts.path) if parts.scheme == "file" else str(place)
    if not path:  # to `Path`, that is the current folder
        raise StorageError(f"cannot write to {str(place)!r}: it names no place. Give --output a folder or a URL.")
    return Remote(path) if "://" in path else Folder(path)
