"""The process of one run: papermill executes one notebook on one kernel, and this says where it is.

`single_run.run` starts it in an empty folder of its own as ``python -m tapelab.collection.running.child``. It reads the
job, one line of JSON, from standard input, and writes events, one line of JSON each, to standard output:

    ["ready"]               papermill is imported
    ["kernel", CELLS]       the kernel answers; so many code cells will run
    ["cell", NUMBER]        a code cell starts
    ["executed", NUMBER]    it has ended
    ["end", PROBLEM]        null, or {"kind": …, "message": …}

Whatever else is written to its standard output or error is the run's log. The end of standard input asks it to end:
that is how the process which started it calls a run off, and also what happens when that process is killed.
"""

import json
import os
import signal
import sys
import threading


def _end_with_the_starter():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(*event):
        print(json.dumps(event), file=events, flush=True)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_starter, daemon=True).start()

    from tapelab.collection.running import (  # these take a while, and SIGTERM ends this process until then
        execution,
        kernel,
    )

    def end_now(*_):
        """Raise SystemExit where the run is: papermill saves the notebook and ends the kernel on the way out."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if kernel.Kernel.current is not None:
            kernel.Kernel.current.shutdown_wait_time = 0.2  # seconds: in the middle of a cell it will not answer
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end_now)
    tell("ready")
    tell("end", execution.execute(job, tell))


if __name__ == "__main__":
    main()
