"""A lease: one change to what the process shares, for as long as a block runs, or until its owner releases it."""

import collections
import contextvars
import os
import threading
import weakref
from types import TracebackType

lock = threading.Lock()
inside: "contextvars.ContextVar[tuple[Lease, ...]]" = contextvars.ContextVar(
    "leases of this context, the innermost last", default=()
)
_owned: "contextvars.ContextVar[tuple[Owner, ...]]" = contextvars.ContextVar(
    "owners of what this context asks for", default=()
)
_in_use: "set[Shared]" = set()  # each `Shared` that has leases
_orphans: "collections.deque[Lease]" = collections.deque()  # leases whose block was interrupted before it could end


class Shared:
    """Something that the whole process shares: changed while it has leases, and as it was before once it has none."""

    def __init__(self):
        self.leases = []

    def settle(self) -> None:
        """Make it what the leases ask for. It may be called again at any time: nothing happens then."""
        raise NotImplementedError

    def start_over(self) -> None:
        """Have nothing in common with the process that this one was forked from."""


class Lease:
    """One change that one block asked for. It is in force from `begin` to `end`, which may be called again.

    Attributes:
        shared: what is changed; None as long as that is looked for in `starting`.
        active: whether it is in force.
        owners: whom it belongs to.
    """

    def __init__(self, shared: Shared):
        self.shared = shared
        self.active = False
        self.owners: tuple[Owner, ...] = ()

    def begin(self) -> None:
        """Make the change. Called with the lock held."""
        self.owners = _owned.get()
        if not any(owner.released for owner in self.owners):
            self.starting()
            self.active = True
            self.shared.leases.append(self)
            _in_use.add(self.shared)
            self.shared.settle()

    def end(self, error: BaseException | None = None) -> None:
        """Undo the change. Called with the lock held."""
        if self.active:
            self.ending(error)
        self.active = False
        if self.shared is None:
            return
        if self in self.shared.leases:
            self.shared.leases.remove(self)
        self.shared.settle()
        if not self.shared.leases:
            _in_use.discard(self.shared)

    def prepare(self) -> None:
        """Do what comes before `begin` or `end`, and may take long: without the lock."""

    def starting(self) -> None:
        """Do what has to be done before the change is made."""

    def ending(self, error: BaseException | None) -> None:
        """Do what has to be done before the change is undone."""


class Block:
    """The ``with`` block of leases that begin and end together, at the price of one lock and one finaliser.

    An interrupt (Ctrl-C, or the exception that stops a thread) may come between any two instructions. So what begins
    and ends may do so twice, and a block that was left before `__exit__` began ends when it is collected.
    """

    def __init__(self, *leases: Lease):
        self._leases = leases
        self._finalizer = weakref.finalize(self, _orphaned, leases)
        self._finalizer.atexit = False

    def __enter__(self) -> "Block":
        try:
            for lease in self._leases:
                lease.prepare()
            with lock:
                sweep()
                for lease in self._leases:
                    lease.begin()
            inside.set((*inside.get(), *self._leases))
            return self
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for lease in self._leases:
                lease.prepare()
            self._end(error)
            ours = set(self._leases)
            inside.set(tuple(other for other in inside.get() if other not in ours))
            self._finalizer.detach()
        except BaseException:
            self._end(error)
            raise

    def _end(self, error: BaseException | None = None) -> None:
        with lock:
            sweep()
            for lease in self._leases:
                lease.end(error)


def _orphaned(leases: tuple[Lease, ...]) -> None:
    _orphans.extend(leases)
    # Garbage is collected anywhere, also where this thread has the lock: then whoever has it next sweeps.
    if not lock.locked():
        with lock:
            sweep()


def sweep() -> None:
    """End the leases that nobody else will. Called with the lock held."""
    while _orphans:
        _orphans.popleft().end()


class Owner:
    """Whom leases belong to. What is asked for in a context that adopted the owner can be released by any thread.

    It is for whoever runs somebody else's code for a limited time. Owners nest: a lease belongs to all those of its
    context, and ends with the first that is released.
    """

    def __init__(self) -> None:
        self.released = False

    def adopt(self) -> None:
        """Own what this context asks for from now on."""
        _owned.set((*_owned.get(), self))

    def release(self) -> None:
        """Undo all that is still changed for this owner, and change nothing more for it."""
        with lock:
            self.released = True
            for shared in list(_in_use):
                for lease in list(shared.leases):
                    if self in lease.owners:
                        lease.end()


def _after_fork_in_child() -> None:
    """Of the threads, only the one that forked goes on: what the others asked for is undone."""
    for shared in list(_in_use):
        for lease in [lease for lease in shared.leases if lease not in inside.get()]:
            lease.active = False
            shared.leases.remove(lease)
        shared.settle()
        shared.start_over()
    lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_after_fork_in_child)
