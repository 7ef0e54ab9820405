"""Where a batch keeps its files: a folder, or any place that fsspec reaches by a URL such as ``s3://bucket/prefix``."""

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from tapelab.files import write_whole

import fsspec


class StorageError(OSError):
    """The place cannot be used. The message names it and says why."""


class Folder:
    """A folder on this machine, made if it is missing. Every file is written beside its place and renamed into it."""

    def __init__(self, path):
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self.path / ".writable", b"")
            (self.path / ".writable").unlink()
        except OSError as error:
            raise StorageError(
                f"cannot write to {path}: {error.strerror}. Choose another folder with --output."
            ) from error

    def __str__(self):
        return str(self.path)

    def write(self, name, content):
        write_whole(self.path / name, content)

    def read(self, name):
        """The bytes of a file. Raises FileNotFoundError if there is none."""
        return (self.path / name).read_bytes()

    def names(self):
        return {path.name for path in self.path.iterdir()}

    def remove(self, name):
        (self.path / name).unlink(missing_ok=True)


class Remote:
    """A place behind a URL. An object store shows an object when all of it has arrived, so nobody sees half a file."""

    def __init__(self, url):
        self.url = url.rstrip("/")
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
            self._files.makedirs(self._root, exist_ok=True)
            self.write(".writable", b"")
            self.remove(".writable")
        except Exception as error:  # each of fsspec's file systems has exceptions of its own
            raise StorageError(f"cannot write to {self.url}: {error}. Choose another place with --output.") from error

    def __str__(self):
        return self.url

    def write(self, name, content):
        self._files.pipe_file(f"{self._root}/{name}", content)

    def read(self, name):
        """The bytes of a file. Raises FileNotFoundError if there is none."""
        return self._files.cat_file(f"{self._root}/{name}")

    def names(self):
        return {path.rsplit("/", 1)[-1] for path in self._files.ls(self._root, detail=False)}

    def remove(self, name):
        if self._files.exists(f"{self._root}/{name}"):
            self._files.rm_file(f"{self._root}/{name}")


def open_storage(place):
    """The `Folder` or `Remote` for a path or a URL.

    Raises:
        StorageError: if it cannot be written to.
    """
    parts = urlsplit(str(place))
    if parts.scheme == "file":
        return Folder(url2pathname(parts.path))
    return Remote(str(place)) if "://" in str(place) else Folder(place)
