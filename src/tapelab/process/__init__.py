"""The one place that changes what a whole process shares: file descriptor 2, loggers, TensorFlow's own symbols.

Each change is in force while somebody is inside its ``with`` block, counted, and undone when the last one leaves.
Several threads may be inside at once. What can be limited to those who asked is limited to them, by definition: whether
a function is replaced and a logger quiet, it asks a context variable (`contextvars`), so that all other threads have it
as ever. File descriptor 2 has no such limits, so what is written there is shown if any of those who hold it back would
show it.

A block is left as any ``with`` block is: by an interrupt too, and when nobody holds it any more. A thread that was
given up in native code leaves its blocks when that code comes back.

Nothing here imports TensorFlow but the module of that name: its import is one of the things to be quiet.

- `stderr`, `loggers`, `symbols`: the three things that are changed.
- `tensorflow`: its quiet import.

Two more functions are here because of others who run at the same time: `files.write_whole`, for those who read what is
written, and `syntax.parse`, for threads that parse. `session` knows whether a person sits in front of the process.
"""

from tapelab.process.loggers import quiet_logger
from tapelab.process.stderr import quiet_log, quiet_stderr
from tapelab.process.symbols import replaced, replaced_everywhere

__all__ = ["quiet_log", "quiet_logger", "quiet_stderr", "replaced", "replaced_everywhere"]
