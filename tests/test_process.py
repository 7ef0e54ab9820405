"""What the whole process shares is changed for those who ask, and as before once the last one has left."""

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
import types
from pathlib import Path

from tapelab import process
from tapelab.derivatives import hessian
from tapelab.exercises import deadline
from tapelab.process import stderr, symbols

import pytest
import tensorflow as tf
from process_texts import read_text

LOGGER = logging.getLogger("tensorflow")


def say(text):
    os.write(2, text.encode() + b"\n")


def shared():
    """What must be the same afterwards: the file behind descriptor 2, how many are open, the logger."""
    file = os.fstat(2)
    return file.st_dev, file.st_ino, len(list(Path("/dev/fd").iterdir())), LOGGER.level, list(LOGGER.filters)


@pytest.fixture(autouse=True)
def nothing_is_left(capfd):
    before = shared()[2:]  # pytest has another file behind the descriptor for each phase of a test
    yield
    assert shared()[2:] == before
    assert stderr._stderr.saved is None
    assert symbols._symbols == {}


class Worker:
    """A thread that runs one function after the other, each when the test says so."""

    def __init__(self):
        self._asked, self._answers = queue.Queue(), queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        while (function := self._asked.get()) is not None:
            try:
                self._answers.put((function(), None))
            except BaseException as error:
                self._answers.put((None, error))

    def __call__(self, function):
        self._asked.put(function)
        value, error = self._answers.get(timeout=30)
        if error is not None:
            raise error
        return value

    def enter(self, block):
        self(block.__enter__)
        return block

    def leave(self, block, error=None):
        self(lambda: block.__exit__(error and type(error), error, None))

    def end(self):
        self._asked.put(None)
        self._thread.join(30)


@pytest.fixture
def workers():
    made = [Worker() for _ in range(3)]
    yield made
    for worker in made:
        worker.end()


def shown(capfd):
    return capfd.readouterr().err.split()


# File descriptor 2.


def test_the_first_redirects_and_the_last_restores(workers, capfd):
    before = shared()
    blocks = [worker.enter(process.quiet_stderr()) for worker in workers]
    assert shared()[2] == before[2] + 2, "one file and one duplicate, for all three"
    for worker, block in zip(workers, blocks, strict=True):
        say("hidden")
        assert shared()[:2] != before[:2]
        worker.leave(block)
    assert shared() == before
    say("afterwards")
    assert shown(capfd) == ["afterwards"]


def test_each_decides_on_what_was_written_while_it_was_inside(workers, capfd):
    first, second, _ = workers
    one = first.enter(process.quiet_stderr())
    say("first-alone")
    two = second.enter(process.quiet_stderr())
    say("both")
    first.leave(one)
    say("second-alone")
    second.leave(two, ValueError())
    assert shown(capfd) == ["both", "second-alone"]


def test_a_line_is_shown_once_when_two_blocks_fail(workers, capfd):
    first, second, _ = workers
    one, two = first.enter(process.quiet_stderr()), second.enter(process.quiet_stderr())
    say("reason")
    first.leave(one, ValueError())
    assert shown(capfd) == ["reason"], "at once, though the other is still inside"
    second.leave(two, ValueError())
    assert shown(capfd) == []


def test_a_quiet_log_keeps_the_lines_that_another_thread_would_drop(workers, capfd):
    first, second, _ = workers
    one, two = first.enter(process.quiet_stderr()), second.enter(process.quiet_log())
    say("the-learners")
    say("W0000 00:00:1795283470.195016 19076 op_kernel.cc:1858] noise")
    first.leave(one)
    second.leave(two)
    assert shown(capfd) == ["the-learners"]


@pytest.mark.parametrize(("error", "expected"), [(None, []), (ValueError(), ["inner"])])
def test_of_nested_blocks_the_inner_one_decides_first(error, expected, capfd):
    with process.quiet_log(), contextlib.suppress(ValueError), process.quiet_stderr():
        say("inner")
        say("x.cc:1] inner-log")
        if error:
            raise error
    assert shown(capfd) == expected


def test_only_the_named_errors_show_what_was_held_back(capfd):
    for error in (ValueError, KeyError):
        with contextlib.suppress(Exception), process.quiet_stderr(shown_for=KeyError):
            say(error.__name__)
            raise error
    assert shown(capfd) == ["KeyError"]


def test_a_process_without_descriptor_2_runs_on():
    code = "import os, tapelab.process as p\nos.close(2)\nwith p.quiet_stderr(): print('inside')\nprint('after')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["inside", "after"]


# The logger.


def test_the_logger_is_quiet_in_one_thread_only_and_keeps_its_level(workers):
    seen = []
    handler = types.SimpleNamespace(level=0, handle=lambda record: seen.append(record.getMessage()))
    LOGGER.addHandler(handler)
    level = LOGGER.level
    try:
        with process.quiet_logger("CRITICAL"), process.quiet_logger("ERROR"):
            LOGGER.error("mine")
            workers[0](lambda: LOGGER.error("another's"))
            LOGGER.setLevel("ERROR")
        assert LOGGER.level == logging.ERROR, "the user set it meanwhile"
        LOGGER.error("later")
    finally:
        LOGGER.setLevel(level)
        LOGGER.removeHandler(handler)
    assert seen == ["another's", "later"]


# Symbols and entries.


@pytest.fixture(params=[lambda **items: types.SimpleNamespace(**items), lambda **items: items], ids=["module", "dict"])
def place(request):
    """Something with the entry "f", which returns its argument; how to read it, and how to write it."""

    def own(value):
        return value

    made = request.param(f=own)
    read = (lambda: made["f"]) if isinstance(made, dict) else (lambda: made.f)
    write = (lambda f: made.update(f=f)) if isinstance(made, dict) else (lambda f: setattr(made, "f", f))
    return made, own, read, write


def test_a_replacement_is_for_those_who_asked(place, workers):
    owner, own, read, _ = place

    def doubled(value):
        return 2 * process.original(owner, "f")(value)

    with process.replaced(owner, "f", doubled):
        assert read()(1) == 2
        assert workers[0](lambda: read()(1)) == 1
        other = workers[0].enter(process.replaced(owner, "f", lambda value: -value))
        with process.replaced(owner, "f", lambda value: 5):
            assert (read()(1), workers[0](lambda: read()(1))) == (5, -1)
        assert read()(1) == 2
    assert (read()(1), workers[0](lambda: read()(1))) == (1, -1)
    workers[0].leave(other)
    assert read() is own
    assert process.original(owner, "f") is own


def test_a_replacement_everywhere_is_put_in_place_as_it_is(place, workers):
    owner, own, read, _ = place
    with process.replaced(owner, "f", 7, everywhere=True):
        other = workers[0].enter(process.replaced(owner, "f", 7, everywhere=True))
        assert read() == 7
    assert read() == 7, "the other thread still wants it"
    workers[0].leave(other)
    assert read() is own


def test_what_somebody_else_put_there_stays(place):
    owner, _, read, write = place
    with process.replaced(owner, "f", lambda value: 0):
        beneath = read()
        write(lambda value: 10 + beneath(value))
        assert read()(1) == 10
    assert read()(1) == 11
    with process.replaced(owner, "f", lambda value: 0):
        assert read()(1) == 0
    assert read()(1) == 11


def test_a_group_is_replaced_as_each_of_it_would_be(workers):
    place, module = {"f": lambda: "f", "g": lambda: "g"}, types.SimpleNamespace(f=lambda: "m")
    before = dict(place), dict(vars(module))

    def called():
        return place["f"](), place["g"](), module.f()

    group = [(place, "f", lambda: "F"), (place, "g", lambda: "G"), (module, "f", lambda: "M")]
    with process.all_replaced(group):
        assert (called(), workers[0](called)) == (("F", "G", "M"), ("f", "g", "m"))
        with process.replaced(place, "g", lambda: "inner"):
            assert called() == ("F", "inner", "M")
        other = workers[0].enter(process.all_replaced((owner, name, lambda: "other") for owner, name, _ in group[1:]))
        assert (called(), workers[0](called)) == (("F", "G", "M"), ("f", "other", "other"))
    assert (called(), workers[0](called)) == (("f", "g", "m"), ("f", "other", "other"))
    workers[0].leave(other)
    assert (place, vars(module)) == before


def test_a_group_is_replaced_whole_or_not_at_all():
    owner = {"f": print, "g": len}
    block = process.all_replaced([(owner, "f", len), (owner, "missing", len), (owner, "g", print)])
    with pytest.raises(KeyError, match="missing"):
        block.__enter__()
    assert owner == {"f": print, "g": len}


def test_what_is_not_there_cannot_be_replaced():
    with pytest.raises(KeyError):
        process.replaced({}, "f", print)
    with pytest.raises(AttributeError):
        process.original(types, "f")


# Blocks that are not left as they should be.


def hold_everything(owner, stack):
    stack.enter_context(process.quiet_log())
    stack.enter_context(process.quiet_stderr())
    stack.enter_context(process.replaced(owner, "f", lambda: "replaced"))
    stack.enter_context(process.all_replaced((owner, name, lambda: "grouped") for name in "gh"))


def test_a_thread_that_was_given_up_holds_nothing():
    before, go_on, left = shared(), threading.Event(), threading.Event()
    owner = {name: lambda: "own" for name in "fgh"}
    own = dict(owner)

    def answer():
        try:
            with contextlib.ExitStack() as stack:
                hold_everything(owner, stack)
                try:
                    go_on.wait(30)  # as native code: no exception reaches it
                finally:
                    hold_everything(owner, stack)  # asks for more on its way out
        finally:
            left.set()

    with pytest.raises(deadline.TimeUp):
        deadline.run(answer, 0.2)
    assert shared() == before
    assert owner == own
    mine = process.all_replaced((owner, name, lambda: "mine") for name in "fg")
    with process.quiet_stderr(), mine:
        inside = shared()
        go_on.set()
        assert left.wait(30)
        assert [owner[name]() for name in "fgh"] == ["mine", "mine", "own"]
        assert shared() == inside, "leaving late changes nothing for others"
    assert shared() == before
    assert owner == own


def test_a_block_that_is_dropped_is_undone():
    before = shared()
    owner = {"f": print}
    held = process.quiet_stderr(), process.quiet_logger("ERROR"), process.all_replaced([(owner, "f", len)])
    for block in held:
        block.__enter__()
    assert shared() != before
    del held, block
    assert shared() == before
    assert owner == {"f": print}


def test_an_interrupt_while_a_block_ends_does_not_stop_it(monkeypatch):
    before = shared()

    def interrupted(self):
        monkeypatch.undo()
        raise KeyboardInterrupt

    block = process.quiet_stderr()
    block.__enter__()
    monkeypatch.setattr(stderr._Stderr, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        block.__exit__(None, None, None)
    assert shared() == before


INTERRUPTED = read_text("process", "INTERRUPTED")


def test_an_interrupt_at_any_point_leaves_nothing():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


FORKED = """
import os, threading
from tapelab import process
from tapelab.process import loggers

registry = {"f": print}
entered, go_on = threading.Event(), threading.Event()

def other():
    with process.quiet_stderr(), process.quiet_logger("ERROR"), process.replaced(registry, "f", len):
        os.write(2, b"of the other thread\\n")
        entered.set()
        go_on.wait()

thread = threading.Thread(target=other)
file = os.fstat(2)
thread.start()
entered.wait()
if os.fork() == 0:
    assert os.path.samestat(os.fstat(2), file) and registry == {"f": print}
    assert not loggers._logger._logger.filters
    os.write(2, b"outside\\n")
    with process.quiet_log():
        os.write(2, b"inside\\n")
    assert os.path.samestat(os.fstat(2), file)
    os._exit(0)
assert os.waitpid(-1, 0)[1] == 0
go_on.set()
thread.join()
assert os.path.samestat(os.fstat(2), file)
"""


def test_a_forked_process_has_only_what_its_thread_asked_for():
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "outside\ninside\n")


# TensorFlow.


def test_threads_that_compile_at_once_leave_nothing():
    from tensorflow.python.ops.parallel_for import pfor

    before, registry = shared(), dict(pfor._pfor_converter_registry)
    start, found = threading.Barrier(3), []

    def compile_one(power):
        start.wait(30)
        found.append((power, hessian(lambda x: tf.reduce_sum(x**power))(tf.ones(2)).numpy().tolist()))

    threads = [threading.Thread(target=compile_one, args=(power,)) for power in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = [(power, [[power * (power - 1.0), 0.0], [0.0, power * (power - 1.0)]]) for power in (2, 3, 4)]
    assert sorted(found) == expected
    assert (shared(), pfor._pfor_converter_registry) == (before, registry)
