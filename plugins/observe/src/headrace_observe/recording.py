"""One recording of a trace: threads of the pipeline note what they do, and one thread writes the notes."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import headrace
from headrace.errors import SetupError, code_of
from headrace_observe.aside import MOST_PENDING, Aside
from headrace_observe.files import check_writable
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
"""The first field of a note of both a batch of one request and that request."""

_ENDED = 5
"""The index of the field with the end of the batch."""

_FIELDS_OF_A_BATCH = 10

_FIELDS_INSIDE = 5

_MOST_INSIDE = 10_000 * _FIELDS_INSIDE
"""The most fields that are kept of the elements and spans inside one batch."""

_HASHES = 1 << 32
"""A request is in the sample if the hash of its identity and its arrival, modulo this, is below the sample's share.
So its batch and its outcome, which are reported separately, are either both in the sample or both not.
"""

_LAST_HASH = _HASHES - 1

_MOST_EARLY = 10_000
"""The most failed requests that wait, while the file is made, for a batch that ended after them."""


class Recording:
    """Records batches, requests, elements and spans until `finish`. Any thread may call the methods that note them.

    Args:
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file.

    Attributes:
        numbers: The number of each thread, from 1, by its identifier. Notes with numbers are smaller.
        names: The names of threads, by number.
        inside: For each node and instance, the elements and spans that ran since the instance's last batch ended: five
            fields for an element (path, size, started, ended, thread) or span (path, name, started, ended, track).

    Raises:
        SetupError: The file cannot be written.
    """

    def __init__(self, path: Path, sample: float, max_bytes: int) -> None:
        self.path = path
        self._sample = sample
        self._drawn = int(sample * _HASHES)
        try:
            check_writable(path)
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
        self._run_alone: dict[int, tuple[Any, ...]] = {}
        self._aside = Aside(self._keep, self._make, name="headrace-trace")

    # The next methods are called while requests run. They make one tuple of plain values per batch and per request,
    # because every further object that lives until it is written costs time in the garbage collector. Work that can
    # wait, such as finding the batch of a request, is done by `_heard` at the end.

    def element(
        self, node: str, instance: int, path: str, size: int, started: float, ended: float
    ) -> None:
        """Record an element that has run; this method is called most often."""
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
        node, instance, me, requests, started, ended, weight, errors, reason = record
        inside = self.inside.get((node, instance), _NOTHING)
        try:
            thread = self.numbers[me]
        except KeyError:
            thread = self._number(me)
        within, size = (*inside,), len(errors)
        del inside[: len(within)]
        # This is the branch below with less work, for swift backends, most of whose batches hold one request.
        if size == 1:
            only, error = requests[0], errors[0]
            alone = id(only[0])
            if self._samples and hash((alone, only[1])) & _LAST_HASH >= self._drawn:
                return
            if only[1] is started:
                # The request began with the batch, so its caller runs the batch in this thread and `request` is called
                # next. One note is enough for both.
                code = None if error is None else code_of(error)
                note = (
                    *(_ALONE, node, instance, thread, started, ended, 1, weight, code, reason),
                    *within,
                )
                if self._run_alone.setdefault(me, note) is note:
                    return
            failed = 0 if error is None else 1
            note = (
                *(1, node, instance, thread, started, ended, 1, weight, failed, reason, alone),
                *within,
            )
        else:
            if self._samples:
                both = [(id(one[0]), one[1]) for one in requests]
                ids = [one[0] for one in both if hash(one) & _LAST_HASH < self._drawn]
            else:
                ids = [id(one[0]) for one in requests]
            if not ids:
                return
            failed = size - errors.count(None)
            about = (node, instance, thread, started, ended, size, weight, failed, reason)
            note = (len(ids), *about, *ids, *within)
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
        if self._samples and hash((identity, started)) & _LAST_HASH >= self._drawn:
            return
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
        if error.errno is not None:
            error.filename = str(self.path)  # a full disk names no file
        raise error

    def finish(self) -> None:
        """Write the file. It is whole when this returns. A second call waits for the first.

        Raises:
            OSError: It could not be written. A file at the path is unchanged.
        """
        # For these notes `request` was not called, because the probe was detached between the two calls.
        for me in [*self._run_alone]:
            if (alone := self._run_alone.pop(me, None)) is not None:
                self._aside.append(alone)
        self._aside.finish()


def _heard(notes: Iterable[tuple[Any, ...]]) -> Iterator[BatchHeard | RequestHeard]:
    """Read the notes, and find for each request the batch in which it ran."""
    matched = _Matched()
    numbers = itertools.count(1)
    for note in notes:
        if not note[0]:
            yield from matched.request(*note[1:])
            continue
        # The note of a batch begins with the number of its requests in the sample, or _ALONE.
        alone = note[0] == _ALONE
        end = _FIELDS_OF_A_BATCH + (0 if alone else note[0])
        groups = [note[k : k + _FIELDS_INSIDE] for k in range(end, len(note), _FIELDS_INSIDE)]
        inside = [
            ElementHeard(*one) if isinstance(one[1], int) else SpanHeard(*one) for one in groups
        ]
        *about, failed, reason = note[1:_FIELDS_OF_A_BATCH]
        if alone:
            code, failed = failed, 0 if failed is None else 1
        heard = BatchHeard._make((next(numbers), *about, failed, inside, reason))
        yield heard
        heard = heard._replace(inside=())
        if alone:
            yield RequestHeard(heard.node, heard.started, heard.ended, code, heard)
        yield from matched.batch(heard, note[_FIELDS_OF_A_BATCH:end])
    yield from matched.early.values()


class _Matched:
    """Requests and batches, matched.

    A request is identified by its node and its dict's identity, which a later request may reuse once this one is
    answered and its batch has ended. So the batch of a request is the last one with that identity at that node that
    ended before the request and began after its arrival. If its owner left while it ran, it is the next one.

    Attributes:
        early: Failed requests without a batch until now.
    """

    def __init__(self) -> None:
        self._ran: dict[tuple[str, int], BatchHeard] = {}
        self.early: dict[tuple[str, int], RequestHeard] = {}

    def batch(self, heard: BatchHeard, identities: Iterable[int]) -> Iterator[RequestHeard]:
        """Add a batch; return the requests whose batch is now known, or that are now known to have never run."""
        if len(self._ran) > MOST_PENDING:
            self._ran.clear()  # entries of requests whose owners stopped waiting before the start
        for identity in identities:
            key = heard.node, identity
            early = self.early.pop(key, None)
            if early is not None and early.ended >= heard.started:
                yield early._replace(batch=heard)
                continue
            if early is not None:  # it never ran, and another request has its identity now
                yield early
            self._ran[key] = heard

    def request(
        self, identity: int, node: str, started: float, ended: float, code: str | None
    ) -> Iterator[RequestHeard]:
        """Add a request that has its outcome; return requests as `batch` does."""
        key = node, identity
        batch = self._ran.pop(key, None)
        if batch is not None and batch.started < started:
            batch = None
        if key in self.early:
            yield self.early.pop(key)
        done = RequestHeard(node, started, ended, code, batch)
        if batch is not None or code is None:
            yield done
            return
        self.early[key] = done
        if len(self.early) > _MOST_EARLY:
            yield from self.early.values()
            self.early.clear()
