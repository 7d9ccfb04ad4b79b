"""One batch to a part elsewhere, and its answer back: the side of the container, in the thread that runs the batch.

The first message of a link says what is built, each later message is a batch, and when the link ends, the part
is closed. The description of what was built, log records and warnings travel through a socket of their own,
at any moment. The other side is in `headrace_process.far`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Container
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from headrace.errors import BackendError, ContractError, DeadlineExceededError, InputError
from headrace.isolation import ChildConfig, error_text, parts_go_to
from headrace_process.packing import Packed, apply, faults, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.keys import Request
    from headrace_process.running import RunningBatch
    from headrace_process.supervisor import Child

    Faults = dict[int, Exception]

Outcomes = list[Exception | None] | None

_IMPORTABLE = "Put it into a module, or into a file that the configuration names under `import`."


@dataclass
class Sent:
    """A batch that is on its way to a part elsewhere and back.

    Attributes:
        child: Where it was sent.
        batch: Its requests.
        left: Those of them that were sent.
        running: The batch of the instance.
        errors: The errors of the others, by the identity of the request.
    """

    child: Child
    batch: list[Request]
    left: list[Request]
    running: RunningBatch
    errors: Faults


@dataclass(frozen=True)
class Exchange:
    """How batches go to a part elsewhere, and what comes back of them.

    Attributes:
        keys: The keys whose values are sent.
        read: Those of ``keys`` that X reads: a request fails when the value of one cannot be pickled.
        kill_after_s: How long to wait after the last deadline of a batch. None for ever.
        inside: X: says whether its backends are measured, and takes the durations.
        reports: Whether the clock of X is the one of the container, so that it can take them.
    """

    keys: Container[str]
    read: Container[str]
    kill_after_s: float | None
    inside: ChildConfig
    reports: bool = True

    def send(self, child: Child, batch: list[Request], running: RunningBatch) -> Sent:
        """Send a batch. A request that its caller has taken back meanwhile is left out.

        Args:
            child: What was started.
            batch: The requests.
            running: The batch of the instance: callers may leave with their requests once there is a copy.

        Raises:
            EOFError: The part has ended.
        """
        link, may_leave = child.link, running.may_leave
        errors: Faults = {}
        left = _present(batch, running, errors) if may_leave else batch
        packed, bad = pack(left, link, self.keys)
        if bad:
            packed, left = self._without(bad, packed, left, errors)
        sent = Sent(child, batch, left, running, errors)
        if not left:
            return sent
        taken = [*map(parts_go_to, left)]
        streams = taken.count(None) < len(taken)
        child.take_part = taken.__getitem__ if streams else None
        child.sent += 1
        child.answers.note_batch(child.sent, left, running, threading.get_ident())
        limits = [*map(running.limits_of, left)] if self.reports else None
        measures = self.reports and bool(self.inside.asked)
        link.send((child.sent, packed, measures, streams, limits), awaits=True)
        if may_leave:
            # X works on copies: from now on a caller whose deadline passes may leave with its request.
            running.lend(left)
        return sent

    def patience_s(self, running: RunningBatch) -> float | None:
        """Return for how long (seconds) from now a batch may run. None for ever."""
        last = running.last_deadline
        if last is None or self.kill_after_s is None:
            return None
        return max(last + self.kill_after_s - time.monotonic(), 0.001)

    def receive(self, sent: Sent) -> Outcomes:
        """Wait for the answer to a batch, and write it into the requests.

        Raises:
            EOFError: The part has ended.
            TimeoutError: The part still runs the batch after the last deadline, and is to be killed.
        """
        child, batch, left = sent.child, sent.batch, sent.left
        running, errors = sent.running, sent.errors
        if not left:
            return [errors.get(id(request)) for request in batch]
        link = child.link
        _, reported, packed, others, lost, runs = self.answer(sent)
        child.wait_reported(reported)
        child.take_part = None
        child.answers.note_batch(child.sent, [], None, 0)
        self.inside.report(runs)
        answers, unknown = unpack(packed, link)
        wrong = _wrong(packed, lost, unknown) if lost or unknown else [None] * len(left)
        rows = zip(left, answers, others, wrong, strict=True)
        _write(rows, running, errors)
        return [errors.get(id(request)) for request in batch] if errors else None

    def answer(self, sent: Sent) -> Any:
        """Wait for the answer to a batch; one that comes once more, to an earlier batch, is nobody's. It raises as `receive`."""
        child, patience_s = sent.child, self.patience_s(sent.running)
        while True:
            answer = child.link.receive(patience_s)
            if answer[0] == child.sent:
                return answer

    def _without(
        self, bad: Faults, packed: Packed, batch: list[Request], errors: Faults
    ) -> tuple[Packed, list[Request]]:
        """Leave out values that cannot be pickled; where X reads such a value, its request fails."""
        values, tables = packed
        for request, table, wrong in zip(batch, tables, faults(packed, bad), strict=True):
            for key, error in wrong.items():
                del table[key]
                if key in self.read and id(request) not in errors:
                    problem = f"it cannot be sent to another process: {error_text(error)}"
                    expected, got = "something that pickle takes", type(request[key]).__name__
                    failure = InputError(problem, key=key, expected=expected, got=got)
                    failure.__cause__ = error
                    errors[id(request)] = failure
        here = [id(request) not in errors for request in batch]
        return (values, list(compress(tables, here))), list(compress(batch, here))


def _write(rows: Iterable[Any], running: RunningBatch, errors: Faults) -> None:
    """Write answers into the requests whose callers still wait, and collect errors."""
    for request, new, (same, gone), unusable in rows:
        if not running.take_back(request):
            errors[id(request)] = caller_left()
            continue
        error = new.pop(None, None) or unusable
        if error is not None:
            errors[id(request)] = error
        if unusable is None:
            try:
                apply(same, new, gone, request)
            except Exception as odd:  # noqa: BLE001 - the dict is the user's, and may raise anything
                errors[id(request)] = odd


def _present(batch: list[Request], running: RunningBatch, errors: Faults) -> list[Request]:
    """Return the requests whose callers still wait."""
    left = [*filter(running.take_back, batch)]
    if len(left) < len(batch):
        here = {*map(id, left)}
        errors |= {id(request): caller_left() for request in batch if id(request) not in here}
    return left


def caller_left() -> DeadlineExceededError:
    """Return the outcome of a request without a caller. Without one it would count as a fault of X."""
    return DeadlineExceededError("its caller has left")


def _wrong(
    packed: Packed, lost: dict[int, str], unknown: list[dict[Any, Exception]]
) -> list[Exception | None]:
    """Return per request the error of a value that could not be sent back, or whose class is unknown here."""
    errors: list[Exception | None] = []
    unknown = unknown or [{} for _ in packed[1]]
    for unsent, unmade in zip(faults(packed, lost), unknown, strict=True):
        error: Exception | None = None
        for key, text in unsent.items():
            problem = f"what it wrote to {key!r} cannot be sent back from its process: {text}"
            hint = "Write what pickle takes: arrays, numbers, texts, lists, dicts."
            error = ContractError(problem, hint=hint)
        for key, cause in unmade.items():
            problem = f"what it wrote to {key!r} is unknown outside of its process: "
            error = ContractError(problem + error_text(cause), hint=_IMPORTABLE)
            if key is None:
                error = BackendError(f"its error is unknown here: {error_text(cause)}")
        errors.append(error)
    return errors
