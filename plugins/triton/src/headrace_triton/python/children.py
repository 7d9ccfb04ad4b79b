"""Processes that a ``model.py`` starts: they end with the process of the model, however that ends."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

__all__ = ["end_children_with_this"]

_WATCH = "cat; kill -s TERM -- -{0}; sleep 1; kill -s KILL -- -{0}"


def end_children_with_this() -> None:
    """Let this process lead a group of its own, which a shell ends after it: SIGTERM, and SIGKILL a second later.

    The shell reads a pipe that this process alone holds open. So the death of this process by any signal ends what it has
    started, but for what has left the group.
    """
    if os.name != "posix":
        return
    with suppress(OSError):
        os.setpgid(0, 0)
    reads, writes = os.pipe()
    command = ["/bin/sh", "-c", _WATCH.format(os.getpgrp())]
    quiet = subprocess.DEVNULL
    subprocess.Popen(command, stdin=reads, stdout=quiet, stderr=quiet, start_new_session=True)  # noqa: S603
    os.close(reads)
    os.register_at_fork(after_in_child=lambda: os.close(writes))
