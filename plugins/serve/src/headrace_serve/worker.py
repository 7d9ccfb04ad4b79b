"""One of the processes that share the ports: ``python -m headrace_serve.worker``, started by `workers`.

Standard input brings one line of JSON, and ends when the starting process does: then this one ends as
by SIGTERM. The file that is named in that line takes, once this one listens, how many threads each model may run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace_cli.for_plugins import printing_warnings
from headrace_serve.running import run, say
from headrace_serve.settings import Settings

if TYPE_CHECKING:
    from headrace_serve.server import Server

__all__ = ["main"]

_WRONG = 2


def main() -> int:
    """Serve, and give the exit status: 2 where the configuration is wrong."""
    told = json.loads(sys.stdin.readline())
    number, ready = told["worker"], told["ready"]

    def watch() -> None:
        sys.stdin.read()  # ends with the process that started this one
        os.kill(os.getpid(), signal.SIGTERM)

    def started(server: Server) -> None:
        with os.fdopen(ready, "w", encoding="utf-8") as told_back:
            json.dump(server.threads(), told_back)
        threading.Thread(target=watch, name="headrace-serve-parent", daemon=True).start()

    settings = Settings.from_json(told["settings"])
    listener = None if told["listener"] is None else socket.socket(fileno=told["listener"])
    try:
        with printing_warnings():
            return run(settings, worker=number, listener=listener, started=started)
    except HeadraceError as error:
        say(f"worker {number}: error: {error}")
        return _WRONG


if __name__ == "__main__":
    sys.exit(main())
