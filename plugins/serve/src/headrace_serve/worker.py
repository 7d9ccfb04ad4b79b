"""One of the processes that share the ports: ``python -m headrace_serve.worker``, started by `workers`.

Standard input brings one line of JSON, then the messages of `headrace_serve.everywhere`, and ends when the starting
process does: then this one ends as by SIGTERM. The file that is named in the first line takes messages for that
process: ``ready``, with how many threads each model may run, once this one listens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace_cli.for_plugins import printing_warnings
from headrace_serve.everywhere import Everywhere
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

    os.set_inheritable(ready, False)
    told_back = os.fdopen(ready, "w", encoding="utf-8")

    def send(message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `listen` notices
            told_back.write(json.dumps(message) + "\n")
            told_back.flush()

    everywhere = Everywhere(send)

    def listen() -> None:
        for line in sys.stdin:  # it ends with the process that started this one
            everywhere.take(json.loads(line))
        everywhere.end()
        os.kill(os.getpid(), signal.SIGTERM)

    def started(server: Server) -> None:
        send({"ready": server.threads()})

    threading.Thread(target=listen, name="headrace-serve-parent", daemon=True).start()
    settings = Settings.from_json(told["settings"])
    listener = None if told["listener"] is None else socket.socket(fileno=told["listener"])
    try:
        with printing_warnings():
            return run(
                settings,
                worker=number,
                listener=listener,
                everywhere=everywhere,
                started=started,
            )
    except HeadraceError as error:
        say(f"worker {number}: error: {error}")
        return _WRONG


if __name__ == "__main__":
    sys.exit(main())
