"""One recording of a trace: threads of the pipeline note what they do, and the file is made of the notes at the end."""

from __future__ import annotations

import logging
import threading
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import SetupError, code_of
from headrace_observe.files import check_writable, write_whole
from headrace_observe.probes.packed import Packed
from headrace_observe.probes.trace_events import BatchHeard, EventMaker, InsideHeard, RequestHeard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headrace.hookspecs import BatchRecord

__all__ = ["Recording"]

_log = logging.getLogger("headrace.observe.trace")

_NOTHING: list[Any] = []

_FIELDS_INSIDE = 5

_MOST_INSIDE = 10_000 * _FIELDS_INSIDE
"""The most fields that are kept of the elements and spans inside one batch."""

_SMALLER = 8
"""Notes of an eighth of the size of the file are kept: their events are larger at least by so much."""

_HASHES = 1 << 32
"""A request is in the sample if the hash of its identity and its arrival, modulo this, is below the sample's share.
So its batch and its failure, which are reported separately, are either both in the sample or both not.
"""


class Recording:
    """Records batches, requests, elements and spans until `finish`. Any thread may call the methods that note them.

    Args:
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file.

    Attributes:
        names: The names of threads, by their identifier.
        inside: For each node and instance, the elements and spans that ran since the instance's last batch ended: five
            fields for an element (path, size, started, ended, thread) or span (path, name, started, ended, track).

    Raises:
        SetupError: The file cannot be written.
    """

    def __init__(self, path: Path, sample: float, max_bytes: int) -> None:
        self.path = path
        self._sample, self._most_bytes = sample, max_bytes
        self._drawn = int(sample * _HASHES)
        try:
            check_writable(path)
        except OSError as error:
            raise SetupError(f"the trace {path} cannot be written: {error.strerror}") from error
        self._notes = Packed(max_bytes // _SMALLER, block=16)
        self._origin = time.monotonic()
        self.names: dict[int, str] = {}
        self.inside: dict[tuple[str, int], list[Any]] = {}
        self._error: OSError | None = None
        self._ends = threading.Event()
        # It starts here, since no thread starts any more while the interpreter ends.
        self._maker = threading.Thread(target=self._make, name="headrace-trace", daemon=True)
        self._maker.start()

    # The next methods are called while requests run. Work that can wait is done by `_make` at the end.

    def element(
        self, node: str, instance: int, path: str, size: int, started: float, ended: float
    ) -> None:
        """Record an element that has run; this method is called most often."""
        thread = get_ident()
        if thread not in self.names:
            self.names[thread] = threading.current_thread().name
        inside = self.inside.get((node, instance))
        if inside is None:
            inside = self.inside.setdefault((node, instance), [])
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
        within = (*inside,)
        del inside[: len(within)]
        if me not in self.names:
            self.names[me] = threading.current_thread().name
        ran: list[Any] = []
        for request, error in zip(requests, errors, strict=True):
            key = (id(request[0]), request[1])
            if hash(key) % _HASHES < self._drawn:
                ran += (*key, None if error is None else str(code_of(error)))
        if ran:
            failed = len(errors) - errors.count(None)
            about = (node, instance, me, started, ended, len(errors), weight, failed)
            self._notes.add((about, reason, ran, within))

    def request(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has failed, perhaps without a batch, if it is in the sample."""
        if error is not None and hash((id(request), started)) % _HASHES < self._drawn:
            self._notes.add((node, id(request), started, ended, str(code_of(error))))

    # At the end.

    def finish(self) -> None:
        """Write the file. It is whole when this returns. A second call waits for the first.

        A first Ctrl-C meanwhile is raised afterwards, so that the file is whole. A second one ends the wait.

        Raises:
            OSError: It could not be written. A file at the path is unchanged.
        """
        self._ends.set()
        try:
            self._maker.join()
        except KeyboardInterrupt:
            self._maker.join()
            raise
        if self._error is not None:
            raise self._error

    def _make(self) -> None:
        self._ends.wait()
        try:
            write_whole(self.path, self._write)
        except OSError as error:
            _log.error("the trace %s cannot be written: %s", self.path, error)
            self._error = error

    def _write(self, part: Path) -> None:
        """Write the events of the newest notes, of as many as fit."""
        blocks = self._notes.blocks()
        about = {
            "headrace": headrace.__version__,
            "clock": "time.monotonic() since the trace began",
            "sample": self._sample,
        }
        while True:
            maker = EventMaker(self._origin, self.names)
            with part.open("w", encoding="ascii") as file:
                file.write(maker.head(about))
                for event in _events(maker, blocks):
                    file.write(",\n" + event)
                file.write("".join(f",\n{track}" for track in maker.tracks()) + "\n]}\n")
                size = file.tell()
            if size <= self._most_bytes or not blocks:
                return
            del blocks[: max(1, round(len(blocks) * (1 - self._most_bytes / size)))]


def _events(maker: EventMaker, blocks: Sequence[bytes]) -> Iterator[str]:
    """Give the events of notes. A request that has left while it ran failed before its batch has ended."""
    ended_at: dict[tuple[str, int, float], float] = {}
    early: dict[tuple[str, int, float], RequestHeard] = {}
    number = 0
    for note in (note for block in blocks for note in Packed.unpacked(block)):
        if isinstance(note[0], str):
            node, identity, arrival, ended, code = note
            if (node, identity, arrival) not in ended_at:
                early[node, identity, arrival] = RequestHeard(node, arrival, ended, code, None)
            continue
        about, reason, ran, within = note
        places = range(0, len(within), _FIELDS_INSIDE)
        inside = [InsideHeard(*within[k : k + _FIELDS_INSIDE]) for k in places]
        number += 1
        heard = BatchHeard._make((number, *about, inside, reason))
        yield from maker.batch(heard)
        for identity, arrival, code in zip(ran[::3], ran[1::3], ran[2::3], strict=True):
            key = (heard.node, identity, arrival)
            since = ended_at.get(key, arrival)  # it may run several times
            request = RequestHeard(heard.node, since, heard.ended, code, heard)
            left = early.pop(key, None)
            if left is not None:
                request = request._replace(ended=left.ended, code=left.code)
            ended_at[key] = request.ended
            yield from maker.request(request)
    for request in early.values():
        yield from maker.request(request)
