"""The word of the servers that test_kubernetes_balancer starts: it holds some requests, and tells in which process they run."""

import fcntl
import os
from pathlib import Path

import headrace

FOLDER = Path(os.environ["HELD_FOLDER"])


@headrace.register("Held")
class Held(headrace.Backend):
    """Returns a name; before that, one that begins with "held" is told with the process, and waits for the file lock."""

    def forward(self, batch):
        for request in batch:
            name = bytes(request["data"]).decode()
            if name.startswith("held"):
                with (FOLDER / "told").open("w") as told:
                    told.write(f"{name} {os.getpid()}\n")
                with (FOLDER / "lock").open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_SH)  # until whoever holds it alone lets it go
            request["result"] = name
