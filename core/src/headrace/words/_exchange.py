"""How a `Process` sends a batch to its child process and gets the answer back: the code of both sides.

`Exchange` runs in this process, in the thread that runs the batch; `main` runs in the child process. The
first message says what the child process builds, each later message is a batch, and when the channel ends,
the child process closes its backend and ends. The description of what it has built, its log records and its
warnings travel through a socket of their own, at any moment.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import time
import traceback
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import compress
from logging.handlers import QueueHandler
from typing import TYPE_CHECKING, Any

from headrace._build.channel import Channel, Packed, apply, changes, faults, pack, unpack
from headrace._build.elsewhere import IMPORTABLE, BuiltElsewhere, ChildPlan
from headrace._portable import caused, error_text, portable
from headrace._process import end_with_parent, use_cpus
from headrace._scheduling.parts import SentParts, elsewhere, parts_of
from headrace._scheduling.threads import took_token
from headrace.errors import BackendError, ContractError, InputError, InstanceLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable

    from headrace._checked import Answers, Outcomes
    from headrace._scheduling.entry import Entry
    from headrace.keys import Request
    from headrace.words._supervisor import Child

    Entries = dict[int, Entry]
    """The entries whose requests nobody touches but this batch, by the identity of the request."""

    Faults = dict[int, Exception]

    Answer = tuple[Packed, list[tuple[dict[str, str], list[str]]], dict[int, str], list[Any]]


@dataclass(frozen=True)
class Exchange:
    """How batches go to a process, and what comes back of them.

    Attributes:
        keys: The keys whose values are sent.
        read: Those of ``keys`` that X reads: a request fails when the value of one cannot be pickled.
        kill_after_s: How long to wait after the last deadline of a batch; None for ever.
        plan: The plan of X: says whether its backends are measured, and takes the durations.
    """

    keys: Container[str]
    read: Container[str]
    kill_after_s: float | None
    plan: ChildPlan

    def run(
        self, child: Child, batch: list[Request], entries: Entries, last: float | None
    ) -> Outcomes:
        """Send a batch, wait for the answer, and write it into the requests.

        A request that its owner has taken back meanwhile is left out.

        Args:
            child: The process.
            batch: The requests.
            entries: Those of them with which their owners may leave once the process has a copy.
            last: The last deadline of the batch, see `last_deadline`.

        Raises:
            EOFError: The process has died.
            TimeoutError: The process still runs the batch after the last deadline, and is to be killed.
        """
        channel = child.channel
        errors: Faults = {}
        left = [one for one in batch if taken_back(entries, one)] if entries else batch
        packed, bad = pack(left, channel, self.keys)
        if bad:
            packed, left = self._without(bad, packed, left, errors)
        if not left:
            return [errors.get(id(one)) for one in batch]
        reads = [parts_of(one, None) for one in left]
        streams = any(one is not None for one in reads)
        child.part = reads.__getitem__ if streams else None
        channel.send((packed, self.plan.measures, streams), awaits=True)
        if entries:
            # X works on copies: from now on an owner whose deadline passes may leave with its request.
            lend(entry for one in left if (entry := entries.get(id(one))) is not None)
        patience_s = None
        if last is not None and self.kill_after_s is not None:
            patience_s = max(last + self.kill_after_s - time.monotonic(), 0.001)
        reported, packed, others, lost, runs = channel.receive(patience_s)
        child.wait_reported(reported)
        child.part = None
        self.plan.report(runs)
        answers, unknown = unpack(packed, channel)
        wrong = _wrong(packed, lost, unknown) if lost or unknown else [None] * len(left)
        rows = zip(left, answers, others, wrong, strict=True)
        for request, new, (same, gone), unusable in rows:
            if entries and not taken_back(entries, request):
                continue
            error = new.pop(None, None) or unusable
            if error is not None:
                errors[id(request)] = error
            if unusable is None:
                try:
                    apply(same, new, gone, request)
                except Exception as odd:  # noqa: BLE001 - the dict is the user's, and may raise anything
                    errors[id(request)] = odd
        return [errors.get(id(one)) for one in batch] if errors else None

    def _without(
        self, bad: Faults, packed: Packed, batch: list[Request], errors: Faults
    ) -> tuple[Packed, list[Request]]:
        """Leave out values that cannot be pickled; where X reads such a value, its request fails."""
        values, found = packed
        for request, held, wrong in zip(batch, found, faults(packed, bad), strict=True):
            for key, error in wrong.items():
                del held[key]
                if key in self.read and id(request) not in errors:
                    what = f"it cannot be sent to another process: {error_text(error)}"
                    expected, got = "something that pickle takes", type(request[key]).__name__
                    failure = InputError(what, key=key, expected=expected, got=got)
                    errors[id(request)] = caused(failure, error)
        here = [id(one) not in errors for one in batch]
        return (values, list(compress(found, here))), list(compress(batch, here))


def last_deadline(entries: Collection[Entry]) -> float | None:
    """Return the last deadline of a batch; None where one of its requests has none."""
    known = [entry.deadline for entry in entries if entry.deadline is not None]
    return max(known) if known and len(known) == len(entries) else None


def is_over(last: float | None) -> bool:
    """Tell whether nobody waits any more for a batch with this last deadline."""
    return last is not None and time.monotonic() >= last


def lend(entries: Iterable[Entry]) -> None:
    """Let the owners of requests leave with them, until `taken_back` ends that for each request."""
    for entry in entries:
        if entry.lent is None:
            entry.lent = [None]


def taken_back(entries: Entries, request: Request) -> bool:
    """End what `lend` allowed for a request; False when its owner has left with the request."""
    entry = entries.get(id(request))
    if entry is not None and entry.lent is not None:
        if not took_token(entry.lent):
            return False
        entry.lent = None
    return True


def _wrong(packed: Packed, lost: dict[int, str], unknown: list[dict[Any, Exception]]) -> Answers:
    """Return per request the error of a value that could not be sent back, or whose class is unknown here."""
    found: Answers = []
    unknown = unknown or [{} for _ in packed[1]]
    for unsent, unmade in zip(faults(packed, lost), unknown, strict=True):
        error: Exception | None = None
        for key, text in unsent.items():
            what = f"what it wrote to {key!r} cannot be sent back from its process: {text}"
            hint = "Write what pickle takes: arrays, numbers, texts, lists, dicts."
            error = ContractError(what, hint=hint)
        for key, cause in unmade.items():
            what = f"what it wrote to {key!r} is unknown outside of its process: "
            error = ContractError(what + error_text(cause), hint=IMPORTABLE)
            if key is None:
                error = BackendError(f"its error is unknown here: {error_text(cause)}")
        found.append(error)
    return found


# What runs in the child process.


def main(files: tuple[int, int, int, int], parent: int) -> None:
    """Serve the process that started this one, until it closes the channel.

    Args:
        files: Descriptors: the three of the channel, and the socket for all messages that are no answers.
        parent: The process id of the process that started this one.
    """
    for file in files:
        os.set_inheritable(file, False)
    reports = _Reports(socket.socket(fileno=files[3]))
    end_with_parent(parent, reports.wait_for_end)
    channel = Channel(*files[:3])
    with suppress(EOFError), ExitStack() as closing:
        _serve(channel, reports, closing)
    reports.end()


class _Reports(QueueHandler):
    """Sends all messages that are no answers to the process that started this one; any thread may use it."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.count = 0
        self._socket = connection
        self._sending = threading.RLock()

    def send(self, kind: str, content: Any) -> None:
        """Send one message."""
        message = pickle.dumps((kind, pickle.dumps(content, 5)), 5)
        with self._sending, suppress(OSError):
            self.count += 1
            self._socket.sendall(message)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a log record, as `QueueHandler` has made it ready."""
        self.send("log", {key: portable(one) for key, one in vars(record).items()})

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
        self._socket.recv(1)

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


def _serve(channel: Channel, reports: _Reports, closing: ExitStack) -> None:
    try:
        first: Any = channel.receive()
        reports.begin(first["levels"])
        if first["cpus"] is not None:
            use_cpus(str(first["cpus"]))
        backend = first["plan"].build(own_thread=False)
        closing.callback(backend.close)
        names = ("min", "max", "rerun", "needs", "reads", "keys")
        about = {name: getattr(backend, name) for name in names}
        about |= {"process": os.getpid(), "tree": backend.describe()}
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001 - `Supervisor.start` raises it in the other process
        reports.send("built", _noted(error))
        return
    reports.send("built", about)
    while True:
        packed, measures, streams = channel.receive()
        answer = run(backend, packed, measures, reports.part if streams else None, channel)
        channel.send((reports.count, *answer))


def run(
    backend: BuiltElsewhere,
    packed: Packed,
    measures: bool,
    send: Callable[[int, Any], object] | None,
    channel: Channel,
) -> Answer:
    """Run a batch in the child process, and make the answer; ``send`` sends the parts of answers, where somebody reads them.

    Returns:
        The new values of the requests, with the outcome of a failed request under the key None; per
        request the keys that hold what another key held, and the keys that were taken out; the text of
        the error for each value that cannot be sent, by the number of the value; the runs of backends.
    """
    requests, bad = unpack(packed, channel)
    unknown = bad or [{} for _ in requests]
    batch = [one for one, wrong in zip(requests, unknown, strict=True) if not wrong]
    before = [dict(request) for request in batch]
    runs: list[Any] = []
    if send:
        elsewhere.update({id(one): SentParts(send, n) for n, one in enumerate(requests)})
    try:
        outcomes, runs = backend.measured(batch) if measures else (backend(batch), runs)
    except BaseException as error:  # noqa: BLE001 - SystemExit, for one, must not end this process
        what = f"{backend._label()} raised {type(error).__name__}"
        outcomes = [caused(BackendError(what, backend=backend._label()), error) for _ in batch]
    elsewhere.clear()
    if backend._liveness is not None and backend._liveness.lost:
        # Without a node, `Checked` takes these errors there for those of its instance, and marks it as lost.
        for lost_here in (one for one in outcomes or () if isinstance(one, InstanceLostError)):
            lost_here.node = None
    ran = zip(before, batch, outcomes or [None] * len(batch), strict=True)
    answers: list[dict[Any, Any]] = []
    others: list[tuple[dict[str, str], list[str]]] = []
    for wrong in unknown:
        earlier, request, outcome = ({}, {}, _unknown(wrong)) if wrong else next(ran)
        same, new, gone = changes(earlier, request)
        answers.append(new if outcome is None else {**new, None: _noted(outcome)})
        others.append((same, gone))
    packed, lost = pack(answers, channel)
    return packed, others, {number: error_text(error) for number, error in lost.items()}, runs


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
    what = f"what was sent is unknown in another process: {error_text(error)}"
    expected = "something of a class in a module, or in a file that the configuration imports"
    return InputError(what, key=key, expected=expected)
