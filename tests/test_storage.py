"""The places for results: folders, URLs, object stores that know no folders, and who may write there."""

import subprocess
import sys

from tapelab.collection import storage
from tapelab.collection.storage import Folder, Remote, StorageError

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem


class ObjectStore(MemoryFileSystem):
    """Like s3: a prefix under which nothing lies does not exist, and cannot be made."""

    protocol = "objectstore"
    store, pseudo_dirs = {}, [""]

    def makedirs(self, path, exist_ok=False):
        pass

    def ls(self, path, detail=True, **kwargs):
        found = super().ls(path, detail=detail, **kwargs)
        if not found:
            raise FileNotFoundError(path)
        return found


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setattr(ObjectStore, "store", {})
    monkeypatch.setattr(ObjectStore, "pseudo_dirs", [""])
    fsspec.register_implementation("objectstore", ObjectStore, clobber=True)
    return "objectstore://bucket/prefix"


def test_an_empty_prefix_of_an_object_store_holds_no_names(bucket):
    place = storage.open_storage(bucket)
    assert place.names() == set()
    place.write("a", b"1")
    assert place.names() == {"a"}
    place.remove("a")
    place.remove("a")
    assert place.names() == set()
    with pytest.raises(FileNotFoundError):
        place.read("a")


def test_a_batch_may_be_resumed_where_nothing_lies_yet(bucket, tmp_path, make_collection, run_batch, monkeypatch):
    from tapelab.collection import single_run

    def run(job, source, **_):
        return single_run.Outcome(job.run.name, None, started="now", seconds=1.0, notebook=source.encode())

    monkeypatch.setattr(single_run, "run", run)
    collection = make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    status, shown = run_batch(collection, bucket, resume=True)
    assert status == 0, shown
    _, shown = run_batch(collection, bucket, resume=True)
    assert "1 of 1 runs are unchanged" in shown


@pytest.mark.parametrize("place", ["", "file://"])
def test_no_place_at_all_is_refused(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match="it names no place"):
        storage.open_storage(place)
    assert list(tmp_path.iterdir()) == []


def test_paths_and_urls_lead_to_folders_and_other_places(tmp_path, bucket):
    assert isinstance(storage.open_storage(bucket), Remote)
    assert isinstance(storage.open_storage(f"file://{tmp_path}/a%20place"), Folder)
    assert (tmp_path / "a place").is_dir()


HOLDS = """import sys
from tapelab.collection.storage import Folder
with Folder(sys.argv[1]).held():
    print('held', flush=True)
    input()"""


def holder(folder):
    command = [sys.executable, "-c", HOLDS, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_a_folder_is_held_by_one_process_and_free_again_at_its_end(tmp_path, end):
    process = holder(tmp_path)
    try:
        with (
            pytest.raises(StorageError, match=f"another batch writes to {tmp_path} at this moment"),
            Folder(tmp_path).held(),
        ):
            pass
    finally:
        process.kill() if end == "killed" else process.communicate("\n")
        process.wait()
    with Folder(tmp_path).held():
        assert {path.name for path in tmp_path.iterdir()} == {storage.LOCK}
    assert list(tmp_path.iterdir()) == []


def test_the_second_command_in_one_folder_is_told_so(tmp_path, make_collection):
    make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    output = tmp_path / "out"
    command = [sys.executable, "-m", "tapelab", "run", "--notebooks", "notebooks", "--output", str(output)]
    with Folder(output).held():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: another batch writes to {output} at this moment.")
        assert {path.name for path in output.iterdir()} == {storage.LOCK}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout", "inf"], "inf is not at most 31536000 (a year)"),
        (["--timeout", "nan"], "nan is not at most 31536000"),
        (["--timeout", "1e300"], "is not at most 31536000"),
        (["--timeout", "0"], "0.0 is not in the range x>0"),
        (["--output", ""], "it names no place"),
        (["--pass-env", "NO_SUCH_VARIABLE"], "--pass-env NO_SUCH_VARIABLE: there is no such variable"),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(tmp_path, make_collection, monkeypatch, arguments, message):
    from tapelab.collection.cli import main

    from click.testing import CliRunner

    make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", *arguments])
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.output.split())
    assert isinstance(done.exception, SystemExit)  # which is no traceback
    assert not list(tmp_path.rglob("report.json"))
