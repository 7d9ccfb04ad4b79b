"""One recording of a trace: what threads of a pipeline note, and the thread that writes it."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
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
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from headrace.hookspecs import BatchRecord

__all__ = ["Recording"]

_log = logging.getLogger("headrace.observe.trace")

_FIELDS_OF_A_REQUEST = 5

_MOST_BATCHES = 20_000
"""So many of the last batches are known when a request is given its own."""

_MOST_INSIDE = 10_000
"""So many elements are kept of one batch."""


class Recording:
    """Records what it is told until `finish`. Its other methods may be called by any thread.

    Args:
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file.

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
        self._names: dict[int, str] = {}
        self._inside: dict[tuple[str, int], deque[tuple[Any, ...]]] = {}
        self._ran: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._aside = Aside(self._keep, self._make, name="headrace-trace")

    # What is called while requests run. What it leaves are plain tuples, which `_made` reads.

    def element(
        self, node: str, instance: int, path: str, size: int, started: float, ended: float
    ) -> None:
        """Note an element that has run, in the thread that ran it."""
        me = get_ident()
        if me not in self._names:
            self._names[me] = threading.current_thread().name
        self._inside_of(node, instance).append((path, size, started, ended, me))

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
        times = float(started), float(ended)
        self._inside_of(node, instance).append((path, str(name), *times, str(track)))

    def _inside_of(self, node: str, instance: int) -> deque[tuple[Any, ...]]:
        try:
            return self._inside[node, instance]
        except KeyError:
            return self._inside.setdefault((node, instance), deque(maxlen=_MOST_INSIDE))

    def batch(self, record: BatchRecord) -> None:
        """Note a batch that has run, if any of its requests is in the sample."""
        node, instance, thread, requests, started, ended, weight, errors = record
        inside = self._inside.pop((node, instance), ())
        if self._sample < 1:
            requests = [one for one in requests if random.random() < self._sample]  # noqa: S311
            if not requests:
                return
        number = next(self._numbers)
        if thread not in self._names:
            self._names[thread] = threading.current_thread().name
        if len(self._ran) > MOST_PENDING:  # of requests whose owners had gone before they ran
            self._ran.clear()
        for one in requests:
            self._ran[id(one.request)] = number
        failed = len(errors) - errors.count(None)
        about = (number, node, instance, thread, started, ended, len(errors), weight, failed)
        self._aside.leave((*about, tuple(inside)))

    def request(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has its outcome, if it is in the sample."""
        number = self._ran.pop(id(request), None)
        if number is None and self._sample < 1:
            chosen = error is not None and random.random() < self._sample  # noqa: S311
            if not chosen:  # it ran and is not in the sample, or it never ran
                return
        code = None if error is None else code_of(error)
        self._aside.leave((node, started, ended, code, number))

    # In the thread that writes.

    def _keep(self, note: tuple[Any, ...]) -> None:
        try:
            self._notes.add(note)
        except OSError as error:
            self._fail(error)

    def _make(self) -> None:
        maker = EventMaker(self._origin, self._names)
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
        self._aside.finish()


def _heard(notes: Iterable[tuple[Any, ...]]) -> Iterator[BatchHeard | RequestHeard]:
    """Read what was noted, and give each request its batch."""
    batches: dict[int, BatchHeard] = {}
    for note in notes:
        if len(note) != _FIELDS_OF_A_REQUEST:
            inside: Sequence[Any] = note[-1]
            found = [
                ElementHeard(*one) if isinstance(one[1], int) else SpanHeard(*one) for one in inside
            ]
            heard = BatchHeard._make((*note[:-1], found))
            if len(batches) >= _MOST_BATCHES:
                del batches[next(iter(batches))]
            batches[heard.number] = heard._replace(inside=())
            yield heard
        else:
            node, started, ended, code, number = note
            batch = batches.get(number)
            if batch is not None and batch.node != node:
                batch = None
            yield RequestHeard(node, started, ended, code, batch)
