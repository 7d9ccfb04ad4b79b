"""One recording of a trace: threads of the pipeline note what they do, and one thread writes the notes."""

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
"""The first field of a note that stands for a batch of one request, and for that request as well."""

_ENDED = 5
"""The index of the field with the end of the batch."""

_FIELDS_OF_A_BATCH = 9

_FIELDS_INSIDE = 5

_MOST_INSIDE = 10_000 * _FIELDS_INSIDE
"""The most fields that are kept of the elements and spans inside one batch."""


class Recording:
    """Records batches, requests, elements and spans until `finish`. Any thread may call the methods that note them.

    Args:
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file.

    Attributes:
        numbers: The number of each thread, from 1, by its identifier; notes with numbers are smaller.
        names: The names of threads, by number.
        inside: For each node and instance, the elements and spans that ran since the instance's last batch ended: five
            fields for an element (path, size, started, ended, thread) or span (path, name, started, ended, track).

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

    # The next methods are called while requests run. They leave one tuple of plain values per batch and per request,
    # since every further object that lives until it is written costs the garbage collector. Work that can wait, such
    # as finding the batch in which a request ran, is left to `_heard` at the end.

    def element(
        self, node: str, instance: int, path: str, size: int, started: float, ended: float
    ) -> None:
        """Note an element that has run; of all methods this one is called most often."""
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
        """Note a span that a backend reports, of a part of its work or of a device."""
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
        # This is the branch below with less work, for swift backends, most of whose batches hold one request.
        if size == 1:
            if self._samples and random.random() >= self._sample:  # noqa: S311
                return
            only, error = requests[0], errors[0]
            alone = id(only[0])
            if only[1] is started and not self._samples:
                # The request began with the batch, so its caller runs the batch in this thread and `request` is called
                # next. One note is enough for both.
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
            # Entries stay behind for requests whose owners gave up before the batch ran.
            if len(self._chosen) > MOST_PENDING:
                self._chosen.clear()
            self._chosen.update(ids)
        self._aside.append(note)

    def _number(self, identifier: int) -> int:
        """Give a number to the calling thread, which has none yet."""
        number = self.numbers.setdefault(identifier, next(self._count))
        self.names[number] = threading.current_thread().name
        return number

    def request(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has its outcome, if it is in the sample."""
        me = get_ident()
        alone = self._run_alone.get(me)
        # The same float object means the same reading of the clock, so the note is that of this request's batch.
        if alone is not None and alone[_ENDED] is ended:
            del self._run_alone[me]
            self._aside.leave(alone)
            return
        identity = id(request)
        if self._samples:
            if identity in self._chosen:
                self._chosen.discard(identity)
            elif error is None or random.random() >= self._sample:  # noqa: S311
                return  # not in the sample: its batch was drawn in `batch`, a request that never ran is drawn here
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
        # These notes still wait for their call of `request`: the probe was detached between the two calls.
        for alone in [*self._run_alone.values()]:
            self._aside.append(alone)
        self._aside.finish()


def _heard(notes: Iterable[tuple[Any, ...]]) -> Iterator[BatchHeard | RequestHeard]:
    """Read the notes, and find for each request the batch in which it ran.

    A request is known by the identity of its dict, which a later request may reuse once this one is
    answered. So the batch of a request is the last one that ran with that identity, at the same node and not before
    the request arrived.
    """
    ran: dict[int, BatchHeard] = {}
    numbers = itertools.count(1)
    for note in notes:
        if note[0]:  # the note of a batch: the number of its requests in the sample, or _ALONE
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
            # Entries stay behind for requests whose owners gave up before the batch ran.
            if len(ran) > MOST_PENDING:
                ran.clear()
            ran.update(dict.fromkeys(note[_FIELDS_OF_A_BATCH:end], heard._replace(inside=())))
        else:
            _, identity, node, started, ended, code = note
            batch = ran.pop(identity, None)
            if batch is not None and (batch.node != node or batch.started < started):
                batch = None
            yield RequestHeard(node, started, ended, code, batch)
