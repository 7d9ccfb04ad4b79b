"""One batch to the process of a `Process` and back, in the thread that runs the batch."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace._build.channel import UnreadableError, pickled
from headrace._build.parcels import Changes, apart, apply, parcels, together
from headrace._portable import error_text
from headrace._scheduling.entry import claimed
from headrace.errors import BackendError, ContractError, InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headrace._build.channel import Content
    from headrace._scheduling.entry import Entry
    from headrace.keys import Request
    from headrace.words._supervisor import Child

    Entries = dict[int, Entry]
    """The entries whose requests nobody touches but this batch, by the identity of the request."""

    Answer = tuple[Changes, "Exception | None"]

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
        """Send a batch, wait for the answers, and do what they say to the requests.

        A request that its owner has taken back meanwhile is left out.

        Raises:
            EOFError: The process has died.
            TimeoutError: It is to be killed, since it still runs after the last deadline.
        """
        here = [taken_back(entries.get(id(one))) for one in batch] if entries else ()
        if all(here):
            return self._run(child, batch, entries)
        left = [one for one, is_here in zip(batch, here, strict=True) if is_here]
        found = self._run(child, left, entries) if left else None
        outcomes = iter(found or [None] * len(left))
        return [next(outcomes) if is_here else None for is_here in here]

    def _run(
        self, child: Child, batch: list[Request], entries: Entries
    ) -> list[Exception | None] | None:
        errors: list[Exception | None] = [None] * len(batch)
        try:
            content = pickled(("batch", parcels(batch, self._keys)))
        except Exception:  # noqa: BLE001 - whatever the values raise; which of them, is found out below
            answers = None
        else:
            answers = self._answers(child, content, batch, entries)
        alive: Iterable[int] = range(len(batch))
        if answers is None:
            each = [self._parcel(one, place, errors) for place, one in enumerate(batch)]
            content = pickled(("apart", [one for one in each if one is not None]))
            alive = [place for place in alive if each[place] is not None]
            answers = self._answers(child, content, batch, entries) if alive else ()
        for place, (found, errors[place]) in zip(alive, answers or (), strict=True):
            if not entries or taken_back(entries.get(id(batch[place]))):
                apply(found, batch[place])
        return errors if any(errors) else None

    def _answers(
        self, child: Child, content: Content, batch: list[Request], entries: Entries
    ) -> Iterable[Answer] | None:
        """Send a batch and wait for what has become of it; None when it could not be read there."""
        channel = child.channel
        channel.send(content, awaits=True)
        if entries:  # their owners may go away with them from now on: there are copies
            lend(entry for one in batch if (entry := entries.get(id(one))) is not None)
        try:
            kind, heard, answers = channel.receive(self._patience_s(entries) if entries else None)
        except UnreadableError:
            channel.send(pickled(("again", None)), awaits=True)
            kind, heard, answers = channel.receive()
        child.wait_heard(heard)
        if kind == "apart":
            return map(_remade, answers)
        return None if kind == "unread" else answers

    def _patience_s(self, entries: Entries) -> float | None:
        """Give how long to wait for an answer before the process is killed; None for ever."""
        if self._kill_after_s is None:
            return None
        deadlines = [entry.deadline for entry in entries.values()]
        ends = [at for at in deadlines if at is not None]
        if not ends or len(ends) < len(deadlines):
            return None
        return max(max(ends) + self._kill_after_s - time.monotonic(), 0.001)

    def _parcel(
        self, request: Request, place: int, errors: list[Exception | None]
    ) -> dict[str, bytes] | None:
        """Give each value by itself, without those that cannot be copied and that nobody reads there."""
        good, bad = apart({key: one for key, one in request.items() if key in self._keys})
        for key, error in bad.items():
            if key in self._read:
                failure = errors[place] = InputError(
                    f"it cannot be sent to another process: {error_text(error)}",
                    key=key,
                    expected="something that pickle takes",
                    got=type(request[key]).__name__,
                )
                failure.__cause__ = error
                return None
        return good


def lend(entries: Iterable[Entry]) -> None:
    """Let the owners of requests go away with them, until they are taken back."""
    for entry in entries:
        if entry.lent is None:
            entry.lent = [None]


def taken_back(entry: Entry | None) -> bool:
    """Take a request back that was lent to its owner; False when that has gone away with it."""
    if entry is not None and entry.lent is not None:
        if not claimed(entry.lent):
            return False
        entry.lent = None
    return True


def _remade(answer: tuple[dict[str, str], dict[str, bytes], list[str], bytes]) -> Answer:
    """Give what has become of a request, of which each value was sent by itself."""
    same, parts, gone, outcome = answer
    good, bad = together(parts)
    if bad:
        key, error = next(iter(bad.items()))
        failure = ContractError(
            f"what it wrote to {key!r} is unknown outside of its process: {error_text(error)}",
            hint=_EVERYWHERE,
        )
        return ({}, ({}, {}), []), failure
    found, unknown = together({"outcome": outcome})
    for error in unknown.values():
        found["outcome"] = BackendError(f"its error is unknown here: {error_text(error)}")
    return (same, (good, {}), gone), found["outcome"]
