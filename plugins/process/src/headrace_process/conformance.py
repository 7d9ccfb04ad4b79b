"""For ``headrace conformance headrace-process``: expressions, requests, and a worker in this process."""

from __future__ import annotations

import atexit
import functools
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing import BackendConformance
from headrace_workers.secret import SECRET_BYTES, read_secret
from headrace_workers.worker import Worker

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["HostConformance", "ProcessConformance"]


class ProcessConformance(BackendConformance):
    """`Process`, whose child lives in a process of its own."""

    expression = "Process[Identity]"

    def make_item(self, k: int) -> Request:
        """Return a request whose numbers no other request has."""
        return {"data": [k, k + 1], "mask": k + 2}


@functools.cache
def _worker() -> tuple[str, str]:
    """Start a worker, which lives as long as this process; return its address and the file of its secret."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(SECRET_BYTES), encoding="ascii")
    worker = Worker("127.0.0.1:0", read_secret(secret))
    threading.Thread(target=worker.serve, name="headrace-worker", daemon=True).start()
    atexit.register(worker.close)
    return f"127.0.0.1:{worker.port}", str(secret)


class _Options(Mapping[str, Any]):
    """The options; the worker is started when they are first read, not when this module is imported."""

    def __getitem__(self, key: str) -> Any:
        address, secret = _worker()
        return {"at": [address], "secret_file": secret}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("at", "secret_file"))

    def __len__(self) -> int:
        return 2


class HostConformance(ProcessConformance):
    """`Host`, whose child lives in a process of a worker on this machine."""

    expression = "Host[Identity]"
    options: Mapping[str, Any] = _Options()
