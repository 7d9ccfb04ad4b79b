"""What runs in a process of its own: it builds its part, runs batches, and closes.

Its first message says what to build; each other one is a batch. The end of its input is the end, also
when the process that started it has died.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from headrace._build.at import At, BuildSettings, Commons
from headrace._build.batch_end import BatchEnd
from headrace._build.elements import ElementBuilder
from headrace._build.parcels import CLOSE_S, Changes, changes, receive, send, unpacked
from headrace._build.parts import Parts
from headrace._context import Shared
from headrace._describe import describe_element
from headrace._plan.element import NodePlan, PipelinePlan
from headrace._plan.needs import needed_keys
from headrace._portable import error_text, portable
from headrace._registry import run_imports
from headrace.errors import ContractError, SetupError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["main"]


def main() -> None:
    """Serve the process that started this one, until it closes the pipe."""
    # What is printed goes to stderr: the output is the pipe. Ctrl-C is for the process that started it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    closed = threading.Event()
    threading.Thread(target=_read, args=(source, messages, closed), daemon=True).start()
    parts = Parts()
    try:
        _serve(messages, sink, parts)
    finally:
        parts.close()
        closed.set()


def _read(source: BinaryIO, messages: queue.SimpleQueue[Any], closed: threading.Event) -> None:
    """Read what comes; once nothing can come any more, see that the process ends."""
    try:
        while True:
            messages.put(receive(source))
    except (OSError, EOFError):
        messages.put(None)
    if not closed.wait(CLOSE_S):
        os._exit(1)  # it hangs, and nobody else ends it


def _serve(messages: queue.SimpleQueue[Any], sink: BinaryIO, parts: Parts) -> None:
    first = messages.get()
    if first is None:
        return
    try:
        backend, about = _built(first, parts)
    except Exception as error:  # noqa: BLE001 - it is raised where the pipeline is built
        send(sink, _telling(error))
        return
    send(sink, about)
    while (parcels := messages.get()) is not None:
        send(sink, _run(backend, parcels))


def _telling(error: Exception) -> Any:
    found = portable(error)
    return found if isinstance(found, BaseException) else SetupError(error_text(error))


def _built(message: dict[str, Any], parts: Parts) -> tuple[Backend, dict[str, Any]]:
    """Build the part of the expression that lives here."""
    files = run_imports([(path, Path()) for path in message["files"]])
    try:
        about = unpacked(message["plan"])
    except Exception as error:
        raise SetupError(
            f"something in Process is not known in another process: {error_text(error)}",
            hint="Put it into a module, or into a file that the configuration imports.",
        ) from error
    element, keys = about["element"], about["keys"]
    node = None
    if keys is not None:
        node = NodePlan(about["node"], keys, {}, element, None, None)  # type: ignore[arg-type]
    plan = PipelinePlan({}, [], files=files, allow_import=about["allow_import"])
    settings = BuildSettings(about["threads"], lambda: False, _no_queue)
    builder = ElementBuilder(plan, node, {}, Shared(), Commons(), set(), settings)
    at = replace(At.begin(parts, index=about["index"]), end=BatchEnd())
    backend = at.end.around(builder.element(element, at), element)
    return backend, {
        "min": backend.min,
        "max": backend.max,
        "rerun": backend.rerun,
        "reads": needed_keys(element, builder.by_element),
        "process": os.getpid(),
        "tree": describe_element(element, builder.by_element),
    }


def _no_queue(backends: list[Backend]) -> Scheduler:
    raise SetupError("a queue stands in the process of the pipeline")


def _run(backend: Backend, parcels: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Run a batch; give per request what has become of it, and its outcome."""
    batch: list[Request] = [pickle.loads(one) for one in parcels]  # noqa: S301 - from our own process
    before = [dict(request) for request in batch]
    outcomes: Any = backend(batch) or [None] * len(batch)
    return list(map(_answer, before, batch, outcomes))


def _answer(before: Request, after: Request, outcome: Exception | None) -> tuple[bytes, bytes]:
    try:
        found = pickle.dumps(changes(before, after), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - whatever its values raise
        found = pickle.dumps(Changes({}, {}, []), pickle.HIGHEST_PROTOCOL)
        outcome = outcome or ContractError(
            f"what it wrote cannot be sent back from its process: {error_text(error)}",
            hint="Write what pickle takes: arrays, numbers, texts, lists, dicts.",
        )
    return found, pickle.dumps(portable(outcome), pickle.HIGHEST_PROTOCOL)
