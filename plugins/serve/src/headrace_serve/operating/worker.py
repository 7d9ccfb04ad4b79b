"""A worker process, one of those that share the ports: ``python -m headrace_serve.operating.worker``, started by `workers`.

The supervisor writes to standard input: one line of JSON with the settings, then the messages of
`headrace_serve.operating.worker_changes`. Standard input ends when the supervisor ends. The worker process then ends as after
SIGTERM. The first line names a file descriptor to which the worker process writes messages for the supervisor:
``ready``, with the number of threads that each model may run, once its models take requests, then its side of the changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace_serve.operating.init_process import hangups
from headrace_serve.operating.logs import printing_logs, say
from headrace_serve.operating.running import run
from headrace_serve.operating.settings import Settings
from headrace_serve.operating.worker_changes import WorkerChanges

if TYPE_CHECKING:
    from headrace_serve.operating.server import Server

__all__ = ["main"]

_WRONG = 2


def main() -> int:
    """Serve, and return the exit status: 2 if the configuration is wrong."""
    setup = json.loads(sys.stdin.readline())
    number, ready = setup["worker"], setup["ready"]

    os.set_inheritable(ready, False)
    reports = os.fdopen(ready, "w", encoding="utf-8")

    def send(message: dict[str, Any]) -> None:
        # A broken pipe means that the supervisor has ended, which `listen` notices.
        with contextlib.suppress(BrokenPipeError):
            reports.write(json.dumps(message) + "\n")
            reports.flush()

    worker_changes = WorkerChanges(send)

    def listen() -> None:
        for line in sys.stdin:  # ends when the supervisor ends
            worker_changes.take(json.loads(line))
        worker_changes.end()
        os.kill(os.getpid(), signal.SIGTERM)

    def started(server: Server) -> None:
        send({"ready": server.threads()})

    threading.Thread(target=listen, name="headrace-serve-parent", daemon=True).start()
    settings = Settings.from_json(setup["settings"])
    logs = printing_logs(settings.log_format, access=settings.access_log, worker=number)
    with hangups() as early, logs:
        try:
            return run(
                settings,
                worker=number,
                worker_changes=worker_changes,
                started=started,
                listen_first=setup["listen_first"],
                early=early,
            )
        except HeadraceError as error:
            say(f"worker {number}: error: {error}")
            return _WRONG


if __name__ == "__main__":
    sys.exit(main())
