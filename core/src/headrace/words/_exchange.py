"""One batch to the process of a `Process` and back, in the thread that runs the batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace._build.channel import Told, apply, faults, pack, unpack
from headrace._portable import caused, error_text
from headrace._scheduling.locks import claimed
from headrace.errors import BackendError, ContractError, InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headrace._scheduling.entry import Entry
    from headrace.keys import Request
    from headrace.words._supervisor import Child

    Entries = dict[int, Entry]
    """The entries whose requests nobody touches but this batch, by the identity of the request."""

_EVERYWHERE = "Put it into a module, or into a file that the configuration names under `import`."


class Exchange:
    """How batches go to a process, and what comes back of them.

    Args:
        keys: The keys that go there.
        read: Those of them that something there reads: without one that cannot be copied a request fails.
        kill_after_s: How long to wait after the last deadline of a batch; None for ever.
    """

    def __init__(
        self, keys: Collection[str], read: Collection[str], kill_after_s: float | None
    ) -> None:
        self._keys = frozenset(keys)
        self._read = frozenset(read)
        self._kill_after_s = kill_after_s

    def run(
        self, child: Child, batch: list[Request], entries: Entries
    ) -> list[Exception | None] | None:
        """Send a batch, wait for the answer, and do what it says to the requests.

        A request that its owner has taken back meanwhile is left out.

        Raises:
            EOFError: The process has died.
            TimeoutError: It is to be killed, since it still runs after the last deadline.
        """
        channel = child.channel
        errors: dict[int, Exception] = {}
        left = [one for one in batch if taken_back(entries, one)] if entries else batch
        told, bad = pack(left, channel, self._keys)
        if bad:
            told, left = self._without(bad, told, left, errors)
        if not left:
            return [errors.get(id(one)) for one in batch]
        channel.send(told, awaits=True)
        patience_s = None
        if entries:  # their owners may go away with them from now on: there are copies
            lend(entry for one in left if (entry := entries.get(id(one))) is not None)
            patience_s = self._patience_s(entries)
        heard, told, others, lost = channel.receive(patience_s)
        if child.heard < heard:
            child.wait_heard(heard)
        answers, unknown = unpack(told, channel)
        wrong = _wrong(told, lost, unknown) if lost or unknown else ()
        for place, (request, new, (same, gone)) in enumerate(
            zip(left, answers, others, strict=True)
        ):
            if entries and not taken_back(entries, request):
                continue
            error = new.pop(None, None) or (wrong and wrong[place]) or None
            if error is not None:
                errors[id(request)] = error
            if not (wrong and wrong[place]):
                apply(same, new, gone, request)
        return [errors.get(id(one)) for one in batch] if errors else None

    def _without(
        self,
        bad: dict[int, Exception],
        told: Told,
        batch: list[Request],
        errors: dict[int, Exception],
    ) -> tuple[Told, list[Request]]:
        """Leave out what cannot be sent: a request that is read there fails."""
        values, found = told
        for request, held, wrong in zip(batch, found, faults(told, bad), strict=True):
            for key, error in wrong.items():
                del held[key]
                if key in self._read and id(request) not in errors:
                    failure = InputError(
                        f"it cannot be sent to another process: {error_text(error)}",
                        key=key,
                        expected="something that pickle takes",
                        got=type(request[key]).__name__,
                    )
                    errors[id(request)] = caused(failure, error)
        here = [id(one) not in errors for one in batch]
        sent = [one for one, is_here in zip(found, here, strict=True) if is_here]
        return (values, sent), [one for one, is_here in zip(batch, here, strict=True) if is_here]

    def _patience_s(self, entries: Entries) -> float | None:
        """Give how long to wait for an answer before the process is killed; None for ever."""
        if self._kill_after_s is None:
            return None
        deadlines = [entry.deadline for entry in entries.values()]
        ends = [at for at in deadlines if at is not None]
        if not ends or len(ends) < len(deadlines):
            return None
        return max(max(ends) + self._kill_after_s - time.monotonic(), 0.001)


def lend(entries: Iterable[Entry]) -> None:
    """Let the owners of requests go away with them, until they are taken back."""
    for entry in entries:
        if entry.lent is None:
            entry.lent = [None]


def taken_back(entries: Entries, request: Request) -> bool:
    """Take a request back that was lent to its owner; False when that has gone away with it."""
    entry = entries.get(id(request))
    if entry is not None and entry.lent is not None:
        if not claimed(entry.lent):
            return False
        entry.lent = None
    return True


def _wrong(
    told: Told, lost: dict[int, str], unknown: list[dict[Any, Exception]]
) -> list[Exception | None]:
    """Give the error of each request of which something could not be sent, or is not known here."""
    found: list[Exception | None] = []
    for unsent, unmade in zip(faults(told, lost), unknown or [{} for _ in told[1]], strict=True):
        error: Exception | None = None
        for key, text in unsent.items():
            error = ContractError(
                f"what it wrote to {key!r} cannot be sent back from its process: {text}",
                hint="Write what pickle takes: arrays, numbers, texts, lists, dicts.",
            )
        for key, cause in unmade.items():
            what = f"what it wrote to {key!r} is unknown outside of its process: "
            error = ContractError(what + error_text(cause), hint=_EVERYWHERE)
            if key is None:
                error = BackendError(f"its error is unknown here: {error_text(cause)}")
        found.append(error)
    return found
