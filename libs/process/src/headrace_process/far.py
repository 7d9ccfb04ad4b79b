"""What runs where a part of an expression lives: it is built there, its batches run, and it is closed.

Each batch comes as the values of its requests, and back go their changes. See `headrace_process.exchange` for the
other side.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
import traceback
import warnings
from contextlib import ExitStack, suppress
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError, InputError, InstanceLostError
from headrace.isolation import elsewhere, error_text, portable
from headrace_process import asking
from headrace_process.packing import changes, pack, unpack
from headrace_process.spawning import use_cpus

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from headrace_process.packing import Packed
    from headrace_process.parts import BuiltPart
    from headrace_process.places import Link

    Answer = tuple[Packed, list[tuple[dict[str, str], list[str]]], dict[int, str], list[Any]]


class Reports(QueueHandler):
    """Sends all messages that are no answers to the process that started this one; any thread may use it.

    Args:
        connection: The socket.
        answers: Whether that process answers questions on it.
    """

    def __init__(self, connection: socket.socket, *, answers: bool = False) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.count = 0
        self._socket = connection
        self._sending = threading.RLock()
        self.home = asking.Home(connection, self.send, answers=answers)

    def send(self, kind: str, content: Any) -> None:
        """Send one message."""
        message = pickle.dumps((kind, pickle.dumps(content, 5)), 5)
        with self._sending, suppress(OSError):
            self.count += 1
            self._socket.sendall(message)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a log record, as `QueueHandler` has made it ready."""
        self.send("log", {key: portable(value) for key, value in vars(record).items()})

    def part(self, number: int, part: Any) -> None:
        """Send a part of the answer of one request of the batch."""
        self.send("part", (number, part))

    def warn(self, message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        """Send a warning; this replaces `warnings.showwarning`."""
        try:
            self.send("warning", (str(message), category, filename, lineno))
        except Exception:  # noqa: BLE001 - the warning's class cannot be pickled
            self.send("warning", (str(message), UserWarning, filename, lineno))

    def wait_for_end(self) -> None:
        """Wait until the process that started this one has ended."""
        self.home.wait_for_end()

    def end(self) -> None:
        """Send nothing any more."""
        logging.getLogger().removeHandler(self)
        warnings.simplefilter("ignore")
        self._socket.close()

    def begin(self, levels: dict[str, int]) -> None:
        """Send log records and warnings from now on: the process that started this one shows them."""
        for name, level in levels.items():
            logging.getLogger(name or None).setLevel(level)
        logging.getLogger().addHandler(self)
        warnings.simplefilter("always")  # the filters of the process that started this one decide
        warnings.showwarning = self.warn  # type: ignore[assignment]


class _SentParts:
    """The parts of a request in a process that runs it for another one: ``send(number, part)`` sends them there.

    The connection takes no more than the other side reads, so ``send`` waits where parts wait there.

    Attributes:
        item: The batch of the request, and its number there.
        limits: The end of its time (``time.monotonic()``, seconds, None for never), and its priority.
    """

    closed = False

    def __init__(
        self,
        send: Callable[[int, Any], object] | None,
        number: int,
        batch: int,
        limits: tuple[float | None, int],
    ) -> None:
        self._send, self._number = send, number
        self.item, self.limits = (batch, number), limits
        self.begun = False

    def add(self, part: Any, waits: bool) -> bool:
        """Send a part, where somebody reads it."""
        if self._send is None:
            return False
        self.begun = True
        self._send(self._number, part)
        return True


def serve(link: Link, reports: Reports) -> None:
    """Build what the other side sends, run its batches, and close what was built when the link ends."""
    with suppress(EOFError), ExitStack() as closing:
        _serve(link, reports, closing)
    reports.end()


def _serve(link: Link, reports: Reports, closing: ExitStack) -> None:
    try:
        first: Any = link.receive()
        reports.begin(first["levels"])
        asking.home = reports.home
        if first["cpus"] is not None:
            use_cpus(str(first["cpus"]))
        backend = first["part"].build(first["seen"])
        closing.callback(backend.close)
        names = ("min", "max", "rerun", "needs", "reads", "keys")
        about = {name: getattr(backend, name) for name in names}
        about |= {"process": os.getpid(), "tree": backend.describe()}
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001 - `Supervisor.start` raises it on the other side
        reports.send("built", _noted(error))
        return
    reports.send("built", about)
    while True:
        number, packed, measures, streams, limits = link.receive()
        send = reports.part if streams else None
        answer = run(backend, packed, measures, send, link, number, limits)
        link.send((number, reports.count, *answer))


def run(
    backend: BuiltPart,
    packed: Packed,
    measures: bool,
    send: Callable[[int, Any], object] | None,
    link: Link,
    number: int = 0,
    limits: list[tuple[float | None, int]] | None = None,
) -> Answer:
    """Run a batch, and make the answer. ``send`` sends the parts of answers that are streamed.

    Returns:
        The new values of the requests, with the outcome of a failed request under the key None. Per
        request the keys that hold what another key held, and the keys that were taken out. The text of
        the error for each value that cannot be sent, by the number of the value. The runs of backends.
    """
    requests, bad = unpack(packed, link)
    unknown = bad or [{} for _ in requests]
    batch = [request for request, wrong in zip(requests, unknown, strict=True) if not wrong]
    before = [dict(request) for request in batch]
    runs: list[Any] = []
    known = limits or [(None, 0)] * len(requests)
    parts = [_SentParts(send, n, number, limit) for n, limit in enumerate(known)]
    elsewhere.update(zip(map(id, requests), parts, strict=True))
    try:
        outcomes, runs = backend.measured(batch) if measures else (backend(batch), runs)
    except BaseException as error:  # noqa: BLE001 - SystemExit, for one, must not end this process
        name = backend.name
        problem = f"{name} raised {type(error).__name__}"
        outcomes = [_failed(problem, name, error) for _ in batch]
    finally:
        elsewhere.clear()
    if backend.lost:
        # Without a node, `Checked` takes these errors there for those of its instance, and marks it as lost.
        for outcome in outcomes or ():
            if isinstance(outcome, InstanceLostError):
                outcome.node = None
    ran = zip(before, batch, outcomes or [None] * len(batch), strict=True)
    answers: list[dict[Any, Any]] = []
    others: list[tuple[dict[str, str], list[str]]] = []
    for wrong in unknown:
        earlier, request, outcome = ({}, {}, _unknown(wrong)) if wrong else next(ran)
        same, new, gone = changes(earlier, request)
        answers.append(new if outcome is None else {**new, None: _noted(outcome)})
        others.append((same, gone))
    packed, lost = pack(answers, link)
    return packed, others, {number: error_text(error) for number, error in lost.items()}, runs


def _failed(problem: str, name: str, error: BaseException) -> BackendError:
    failure = BackendError(problem, backend=name)
    failure.__cause__ = error
    return failure


def _noted(error: Exception) -> Any:
    """Return an error ready to be sent, with a note of where its cause was raised: a traceback cannot be pickled."""
    cause = error.__cause__
    with suppress(Exception):  # the cause is of a user's class, and Python 3.10 has no notes
        if cause is not None and cause.__traceback__ is not None:
            raised = "".join(traceback.format_exception(cause))
            error.add_note(f"In its process:\n{raised}")  # type: ignore[attr-defined,unused-ignore]
    return portable(error)


def _unknown(wrong: dict[str, Exception]) -> InputError:
    key, error = next(iter(wrong.items()))
    problem = f"what was sent is unknown in another process: {error_text(error)}"
    expected = "something of a class in a module, or in a file that the configuration imports"
    return InputError(problem, key=key, expected=expected)
