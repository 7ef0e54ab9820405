"""The one place that changes what a whole process shares: file descriptor 2, loggers, TensorFlow's own symbols.

Each change is a lease: in force while somebody is inside its ``with`` block, counted, and undone when the last one
leaves. Several threads may be inside at once. What can be limited to those who asked is limited to them: a replaced
symbol and a quiet logger are so in the contexts (`contextvars`) that asked, and as ever in all other threads. File
descriptor 2 has no such limits, so what is written there is shown if any of those who hold it back would show it.

A thread may be given up while it is inside, in native code that no exception reaches. So a lease belongs to an `Owner`,
which may release it from another thread; that its block ends later then does nothing.

Nothing here imports TensorFlow but the module of that name: its import is one of the things to be quiet.

- `leases`: what a change is, how its block ends, and whom it belongs to.
- `stderr`, `loggers`, `symbols`: the three things that are changed.
- `tensorflow`: its quiet import.

Two more functions are here because of others who run at the same time: `files.write_whole`, for those who read what is
written, and `syntax.parse`, for threads that parse. `session` knows whether a person sits in front of the process,
and `names_elsewhere` answers whoever imports a name of another library.
"""

from tapelab.process.leases import Owner
from tapelab.process.loggers import quiet_logger
from tapelab.process.stderr import quiet_log, quiet_stderr
from tapelab.process.symbols import all_replaced, original, replaced

__all__ = ["Owner", "all_replaced", "original", "quiet_log", "quiet_logger", "quiet_stderr", "replaced"]
