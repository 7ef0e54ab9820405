"""What the whole process shares is changed for those who ask, and as before once the last one has left."""

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
import time
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


def test_a_second_inner_block_leaves_its_lines_to_the_outer_one_too(capfd):
    with process.quiet_stderr():
        for text in ("first", "second"):
            with process.quiet_log():
                say(text)
    assert shown(capfd) == []


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


# Symbols.


@pytest.fixture
def module():
    """Something with the attribute "f", which returns its argument."""
    return types.SimpleNamespace(f=lambda value: value)


def test_a_replacement_is_for_those_who_asked(module, workers):
    own = module.f
    with process.replaced(module, "f", lambda original, value: 2 * original(value)):
        assert module.f(1) == 2
        assert workers[0](lambda: module.f(1)) == 1
        other = workers[0].enter(process.replaced(module, "f", lambda original, value: -value))
        with process.replaced(module, "f", lambda original, value: 5):
            assert (module.f(1), workers[0](lambda: module.f(1))) == (5, -1)
        assert module.f(1) == 2
    assert (module.f(1), workers[0](lambda: module.f(1))) == (1, -1)
    workers[0].leave(other)
    assert module.f is own


def test_a_replacement_everywhere_is_put_in_place_as_it_is(module, workers):
    own = module.f
    with process.replaced_everywhere(module, "f", 7):
        other = workers[0].enter(process.replaced_everywhere(module, "f", 7))
        assert module.f == 7
    assert module.f == 7, "the other thread still wants it"
    workers[0].leave(other)
    assert module.f is own


def test_what_somebody_else_put_there_stays(module):
    with process.replaced(module, "f", lambda original, value: 0):
        beneath = module.f
        module.f = lambda value: 10 + beneath(value)
        assert module.f(1) == 10
    assert module.f(1) == 11
    with process.replaced(module, "f", lambda original, value: 100 * original(value)):
        assert module.f(1) == 1100
    assert module.f(1) == 11


@pytest.mark.parametrize("replace", [process.replaced, process.replaced_everywhere])
def test_what_is_not_there_cannot_be_replaced(replace):
    with pytest.raises(AttributeError), replace(types, "f", print):
        pass


# Blocks that are not left as they should be.


def test_a_thread_that_was_given_up_changes_nothing_for_others_and_leaves_late(module, capfd):
    before, go_on, left, own = shared(), threading.Event(), threading.Event(), module.f

    def answer():
        try:
            with process.quiet_log(), process.quiet_stderr(), process.replaced(module, "f", lambda *_: "replaced"):
                go_on.wait(30)  # as native code: no exception reaches it
        finally:
            left.set()

    with pytest.raises(deadline.TimeUp), process.quiet_log():
        deadline.run(answer, 0.2)
    with process.replaced(module, "f", lambda *_: "mine"):
        go_on.set()
        assert left.wait(30)
        assert module.f(1) == "mine"
    wait_until(lambda: shared() == before)
    assert module.f is own
    say("afterwards")
    assert shown(capfd) == ["afterwards"]


def wait_until(holds):
    until = time.monotonic() + 30
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    assert holds()


def test_a_block_that_is_dropped_is_undone(module):
    before, own = shared(), module.f
    held = process.quiet_stderr(), process.quiet_logger("ERROR"), process.replaced(module, "f", len)
    for block in held:
        block.__enter__()
    assert shared() != before
    assert module.f is not own
    del held, block
    assert shared() == before
    assert module.f is own


def test_an_interrupt_while_a_block_ends_does_not_stop_it(monkeypatch):
    before = shared()

    def interrupted(self, hold):
        monkeypatch.undo()
        raise KeyboardInterrupt

    block = process.quiet_stderr()
    block.__enter__()
    monkeypatch.setattr(stderr._Stderr, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        block.__exit__(None, None, None)
    assert shared() == before


INTERRUPTED = read_text("process", "INTERRUPTED")


def test_an_interrupt_at_any_point_leaves_nothing():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


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
