"""One recording of a trace: what threads of a pipeline note, and the thread that writes it."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import headrace
from headrace.errors import SetupError, code_of
from headrace_observe.aside import MOST_PENDING, Aside
from headrace_observe.trace_events import (
    TAIL,
    BatchHeard,
    ElementHeard,
    EventMaker,
    RequestHeard,
    SpanHeard,
)
from headrace_observe.trace_notes import NoteStore
from headrace_observe.trace_store import TraceStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.hookspecs import BatchRecord

__all__ = ["Recording"]

_log = logging.getLogger("headrace.observe.trace")

_NOTHING: list[Any] = []

_ALONE = -1
"""The first field of the note of a batch of one request and of that request."""

_ENDED = 5
"""The field of a batch that says when it ended."""

_FIELDS_OF_A_BATCH = 9

_FIELDS_INSIDE = 5

_MOST_INSIDE = 10_000 * _FIELDS_INSIDE
"""So many fields are kept of what is reported inside one batch."""


class Recording:
    """Records what it is told until `finish`. Its other methods may be called by any thread.

    Args:
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file.

    Attributes:
        numbers: The numbers of threads, from 1, by identifier: notes are smaller with them.
        names: The names of threads, by number.
        inside: Per node and instance what has run since its last batch ended: five fields per
            element (path, size, started, ended, thread) or span (path, name, started, ended, track).

    Raises:
        SetupError: The folder of the file cannot be written.
    """

    def __init__(self, path: Path, sample: float, max_bytes: int) -> None:
        self.path = path
        self._sample = sample
        try:
            self._store = TraceStore(path, max_bytes)
        except OSError as error:
            raise SetupError(f"the trace {path} cannot be written: {error.strerror}") from error
        self._notes = NoteStore(self._store.folder, max_bytes // 2)
        self._origin = time.monotonic()
        self._samples = sample < 1
        self._count = itertools.count(1)
        self.numbers: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.inside: dict[tuple[str, int], list[Any]] = {}
        self._chosen: set[int] = set()
        self._run_alone: dict[int, tuple[Any, ...]] = {}
        self._aside = Aside(self._keep, self._make, name="headrace-trace")

    # What is called while requests run: it leaves tuples of plain values, one per batch and per request,
    # since every further object that is held until it is written costs the garbage collector. Whatever
    # can wait, such as which request ran in which batch, is found out by `_heard` at the end.

    def element(
        self, node: str, instance: int, path: str, size: int, started: float, ended: float
    ) -> None:
        """Note an element that has run; this is what is called most often."""
        try:
            inside, thread = self.inside[node, instance], self.numbers[get_ident()]
        except KeyError:
            inside = self.inside.setdefault((node, instance), [])
            thread = self._number(get_ident())
        if len(inside) < _MOST_INSIDE:
            inside += (path, size, started, ended, thread)

    def span(
        self,
        node: str,
        instance: int,
        path: str,
        name: str,
        started: float,
        ended: float,
        track: str,
    ) -> None:
        """Note what a backend reports of its inside or of a device."""
        inside = self.inside.setdefault((node, instance), [])
        if len(inside) < _MOST_INSIDE:
            inside += (path, str(name), float(started), float(ended), str(track))

    def batch(self, record: BatchRecord) -> None:
        """Note a batch that has run, if any of its requests is in the sample."""
        node, instance, me, requests, started, ended, weight, errors = record
        inside = self.inside.get((node, instance), _NOTHING)
        try:
            thread = self.numbers[me]
        except KeyError:
            thread = self._number(me)
        within, size = (*inside,), len(errors)
        del inside[: len(within)]
        if size == 1:  # as below, with less work: most batches of a swift backend
            if self._samples and random.random() >= self._sample:  # noqa: S311
                return
            only, error = requests[0], errors[0]
            alone = id(only[0])
            if only[1] is started and not self._samples:
                # Its caller runs it, and `request` is to follow in this thread: one note is enough for both.
                code = None if error is None else code_of(error)
                note = (_ALONE, node, instance, thread, started, ended, 1, weight, code, *within)
                if self._run_alone.setdefault(me, note) is note:
                    return
            failed = 0 if error is None else 1
            note = (1, node, instance, thread, started, ended, 1, weight, failed, alone, *within)
            ids = [alone] if self._samples else _NOTHING
        else:
            ids = [id(one[0]) for one in requests]
            if self._samples:
                ids = [one for one in ids if random.random() < self._sample]  # noqa: S311
            if not ids:
                return
            failed = size - errors.count(None)
            about = (node, instance, thread, started, ended, size, weight, failed)
            note = (len(ids), *about, *ids, *within)
        if self._samples:
            if len(self._chosen) > MOST_PENDING:  # of requests whose owners had gone
                self._chosen.clear()
            self._chosen.update(ids)
        self._aside.append(note)

    def _number(self, identifier: int) -> int:
        """Give the number of the calling thread, which is seen for the first time."""
        number = self.numbers.setdefault(identifier, next(self._count))
        self.names[number] = threading.current_thread().name
        return number

    def request(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has its outcome, if it is in the sample."""
        me = get_ident()
        alone = self._run_alone.get(me)
        if alone is not None and alone[_ENDED] is ended:  # the very reading of the clock
            del self._run_alone[me]
            self._aside.leave(alone)
            return
        identity = id(request)
        if self._samples:
            if identity in self._chosen:
                self._chosen.discard(identity)
            elif error is None or random.random() >= self._sample:  # noqa: S311
                return  # it ran and is not in the sample; one that never ran has a draw of its own
        code = None if error is None else code_of(error)
        self._aside.leave((0, identity, node, started, ended, code))

    # In the thread that writes.

    def _keep(self, notes: list[tuple[Any, ...]]) -> None:
        try:
            self._notes.add(notes)
        except OSError as error:
            self._fail(error)

    def _make(self) -> None:
        maker = EventMaker(self._origin, self.names)
        about: dict[str, object] = {
            "headrace": headrace.__version__,
            "clock": "time.monotonic() since the trace began",
            "sample": self._sample,
        }
        try:
            for heard in _heard(self._notes.take()):
                made = maker.batch(heard) if isinstance(heard, BatchHeard) else maker.request(heard)
                for event in made:
                    self._store.add(event)
            self._store.finish(maker.head(about), TAIL)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        self._store.discard()
        _log.error("the trace %s ended: it cannot be written: %s", self.path, error)
        raise error

    def finish(self) -> None:
        """Write the file; it is whole when this returns.

        Raises:
            OSError: It could not be written; what was at the path is untouched.
        """
        # Of these the pipeline let go of the probe before it told of the request.
        for alone in [*self._run_alone.values()]:
            self._aside.append(alone)
        self._aside.finish()


def _heard(notes: Iterable[tuple[Any, ...]]) -> Iterator[BatchHeard | RequestHeard]:
    """Read what was noted, and give each request the batch in which it ran.

    A request is known by the identity of its dict, which the next request may have once this one is
    answered: what ran last under that identity, after the arrival, is its batch.
    """
    ran: dict[int, BatchHeard] = {}
    numbers = itertools.count(1)
    for note in notes:
        if note[0]:  # a batch, of so many requests in the sample
            alone = note[0] == _ALONE
            end = _FIELDS_OF_A_BATCH + (0 if alone else note[0])
            groups = [note[k : k + _FIELDS_INSIDE] for k in range(end, len(note), _FIELDS_INSIDE)]
            inside = [
                ElementHeard(*one) if isinstance(one[1], int) else SpanHeard(*one) for one in groups
            ]
            *about, failed = note[1:_FIELDS_OF_A_BATCH]
            if alone:
                code, failed = failed, 0 if failed is None else 1
            heard = BatchHeard._make((next(numbers), *about, failed, inside))
            yield heard
            if alone:
                yield RequestHeard(
                    heard.node, heard.started, heard.ended, code, heard._replace(inside=())
                )
                continue
            if len(ran) > MOST_PENDING:  # of requests whose owners had gone before they ran
                ran.clear()
            ran.update(dict.fromkeys(note[_FIELDS_OF_A_BATCH:end], heard._replace(inside=())))
        else:
            _, identity, node, started, ended, code = note
            batch = ran.pop(identity, None)
            if batch is not None and (batch.node != node or batch.started < started):
                batch = None
            yield RequestHeard(node, started, ended, code, batch)
