"""What the tests do with processes, threads and conditions."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from pathlib import Path

from processes import run_process

FAILS_LATE_S = 180.0
"""A test that hangs fails after this; nothing else is measured in seconds."""


def raylet_of(node):
    """Return the process id of the raylet of a node."""
    return node.all_processes["raylet"][0].process.pid


def parent_of(process):
    """Return the process id of the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until_gone(process):
    """Wait for the end of a process that somebody else waits for, too."""
    try:
        end = os.pidfd_open(process)
    except ProcessLookupError:
        return
    with contextlib.closing(os.fdopen(end)) as watched:
        assert select.select([watched], [], [], FAILS_LATE_S)[0], "it has not ended"


def built(pipe):
    """Return what the first instance says of itself: process, node, address."""
    return pipe.describe()["nodes"]["main"]["tree"]["built"]


def until(condition):
    """Wait until a condition holds; return what it gave."""
    poll = threading.Event()
    fails_at = time.monotonic() + FAILS_LATE_S
    while not (found := condition()):
        poll.wait(0.05)
        assert time.monotonic() < fails_at, "it never came to that"
    return found


class Client(threading.Thread):
    """Calls a function in a thread of its own and keeps what came of it."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self._call = (function, args)
        self.value = self.error = None
        self.start()

    def run(self):
        function, args = self._call
        try:
            self.value = function(*args)
        except BaseException as error:
            self.error = error

    def outcome(self):
        self.join(FAILS_LATE_S)
        assert not self.is_alive(), "the caller got no answer"
        if self.error is not None:
            raise self.error
        return self.value


def run_program(path, *args, **environment):
    """Run a program with this Python; return how it ended and what it printed."""
    return run_process(
        [sys.executable, str(path), *args], timeout=FAILS_LATE_S, env={**os.environ, **environment}
    )
