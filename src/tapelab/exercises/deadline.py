"""Run someone else's function for a limited time."""

import contextvars
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


class TimeUp(Exception):
    """The function had not returned when its time was over."""


class _Abandoned(BaseException):
    """Raised inside a function whose time is over. No `except Exception` in it stops this."""


def run(function: Callable[[], _Result], seconds: float) -> _Result:
    """Call a function in a thread of its own, and wait for it no longer than stated.

    A thread, and not a signal: a signal's handler runs when the main thread next executes Python, which a long
    TensorFlow operation does not. A function that is still running gets an exception at its next Python instruction;
    one that never comes back from native code is left behind in a daemon thread.

    Args:
        function: takes no arguments.
        seconds: how long to wait.

    Returns:
        What the function returns.

    Raises:
        TimeUp: if it has not returned in time.
        BaseException: whatever the function raises.
    """
    outcome = {}

    def work() -> None:
        try:
            outcome["value"] = function()
        except BaseException as error:  # handed to the caller, KeyboardInterrupt and SystemExit included
            outcome["error"] = error

    # The caller's context goes along, so that what the function prints still belongs to the caller's cell.
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(work), name="exercise", daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        if thread.is_alive():  # its time is over, or the wait for it was interrupted
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Abandoned))
    if "error" in outcome:
        raise outcome["error"]
    if "value" not in outcome:
        raise TimeUp
    return outcome["value"]
