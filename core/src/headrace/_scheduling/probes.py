"""The probes of a pipeline, and what they are told: whatever one of them raises is counted and harms nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._portable import error_text
from headrace._scheduling.calls import served_by
from headrace._scheduling.locks import main_thread
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance

_log = logging.getLogger("headrace.probes")
_make = tuple.__new__


class BatchRequest(NamedTuple):
    """One request of a batch.

    Attributes:
        request: The request: the dict that ``request_done`` is given as well; read it, do not keep it.
        arrival: When it arrived at the node, in seconds.
        cut: When it was put into the batch; the arrival where its caller ran it itself.
        weight: Its ``request_size``.
    """

    request: Request
    arrival: float
    cut: float
    weight: int


class BatchRecord(NamedTuple):
    """A batch that has run.

    Attributes:
        node: The node.
        instance: Index of the instance, from 0.
        thread: Identifier of the thread that ran it, as `threading.get_ident`.
        requests: Its requests, in order; copies that ``pad`` added are none.
        started, ended: Before and after its run, in seconds on the clock of ``time.monotonic()``.
        weight: The sum of their weights.
        errors: One exception or None per request, in order.
    """

    node: str
    instance: int
    thread: int
    requests: Sequence[BatchRequest]
    started: float
    ended: float
    weight: int
    errors: Sequence[BaseException | None]


class Guarded:
    """One probe: whatever it raises is counted and harms nobody.

    Attributes:
        name: As ``stats()`` shows it.
        gone: Whether it hears of nothing any more.
    """

    def __init__(self, name: str, probe: Any) -> None:
        self.name = name
        self.probe = probe
        self.gone = False
        self.errors = 0
        self.last: str | None = None
        self._lock = threading.RLock()

    def guarding(self, method: Callable[..., Any]) -> Callable[..., None]:
        """Give a method that harms nobody."""

        def tell(*args: Any) -> None:
            if not self.gone:
                try:
                    method(*args)
                except BaseException as error:  # noqa: BLE001 - whatever it is harms nobody
                    self.failed(error)

        return tell

    def failed(self, error: BaseException) -> None:
        """Take note of what a method has raised; only Ctrl-C, where the main thread waits, is raised."""
        if isinstance(error, KeyboardInterrupt) and _for_main_thread():
            raise error
        text = error_text(error)
        with self._lock:
            self.errors += 1
            self.last = text
            first = self.errors == 1
        if first:
            _log.warning(
                "the probe %s failed: %s; further errors are only counted, see stats()",
                self.name,
                text,
                exc_info=error,
            )


class Probes:
    """The probes of one pipeline at one time; those of a later time are other ones.

    Args:
        probes: Each with the name that ``stats()`` shows.

    Attributes:
        all: The same.
        listening: Whether any of them has a method that a request, or an instance, gives cause to call.
        reentrant: Whether all of them say that a signal handler may call them inside of one another.
        in_service: The instances that have not been reported as gone, by node and index.
    """

    def __init__(self, probes: Sequence[Guarded] = ()) -> None:
        self.all = probes
        self.in_service: dict[tuple[str, int], None] = {}
        self._heard = {name: _with(probes, name) for name in _METHODS}
        self.listening = any(self.hears(what) for what in _METHODS if what != "pipeline_started")
        self.reentrant = all(getattr(one.probe, "reentrant", False) is True for one in probes)
        self.batch_done = self.notifier("batch_done") if self.hears("batch_done") else None
        self.batch_ran = self.notifier("batch_ran") if self.hears("batch_ran") else None
        self.request_done = self.notifier("request_done")

    def hears(self, what: str) -> bool:
        """Tell whether a probe has the method ``what``; what none has is not measured."""
        return bool(self._heard[what])

    def notify(self, what: str, *args: Any) -> None:
        """Call the method ``what`` of each probe that has it."""
        self.notifier(what)(*args)

    def notifier(self, what: str, *about: Any) -> Callable[..., None]:
        """Give a function that calls the method ``what`` of each probe that has it, with ``about`` first."""
        heard = self._heard[what]
        calls = [one.guarding(partial(call, *about) if about else call) for one, call in heard]
        if len(calls) == 1:
            return calls[0]

        def notify(*args: Any) -> None:
            for call in calls:
                call(*args)

        return notify

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Report what has become of an instance: ready, lost, retired or closed."""
        if state == "ready":
            self.in_service[node, instance] = None
        else:
            self.in_service.pop((node, instance), None)
        self.notify("instance_changed", node, instance, state)

    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the probes: how often each has failed, and how last."""
        return {one.name: {"errors": one.errors, "last": one.last} for one in self.all}

    def close(self) -> None:
        """Close those that have a ``close``, once; they hear of nothing any more."""
        for node, instance in list(self.in_service):
            self.instance_changed(node, instance, "closed")
        left = [one for one in self.all if not one.gone]
        for guarded in left:
            guarded.gone = True
        for guarded, method in _with(left, "close"):
            try:
                method()
            except BaseException as error:  # noqa: BLE001 - whatever it is harms nobody
                guarded.failed(error)


class Reporter:
    """Tells the probes what happens at one node. None of its methods is called under a lock but `settled`.

    An owner has its answer after the probes: see `headrace._scheduling.node.Node.settle`.

    Args:
        node: The name of the node.
        clock: That of its scheduler.
        probes: The probes.

    Attributes:
        probes: Those of now.
        returning: What has its outcome, from which time on, and whose dict is yet to be given back.
    """

    def __init__(self, node: str, clock: Callable[[], float], probes: Probes) -> None:
        self.probes = probes
        self.returning: dict[Entry, float] = {}
        self._node = node
        self._clock = clock
        self._inside: dict[
            int, int
        ] = {}  # threads that are inside a probe; each changes its own number

    def settled(self, entry: Entry) -> None:
        """Take note that an entry has its outcome; `answers` is to follow."""
        self.returning[entry] = self._clock()

    def answers(self, entry: Entry) -> None:
        """Report an outcome of which the owner is to be notified; a second time does nothing."""
        if entry in self.returning:
            try:
                entry.give_back()
            finally:
                ended = self.returning.pop(entry)
            self._end(entry.request, entry.arrival, ended, entry.error)

    def cancelled(self, entry: Entry) -> None:
        """Report a request whose owner asks for no outcome any more."""
        self._end(entry.request, entry.arrival, self._clock(), CancelledError())

    def refused(self, request: Any, error: BaseException) -> None:
        """Report a request that was refused before it entered."""
        now = self._clock()
        self._end(request, now, now, error)

    def _end(self, request: Any, started: float, ended: float, error: BaseException | None) -> None:
        me = get_ident()
        self._inside[me] = self._inside.get(me, 0) + 1
        try:
            self.probes.request_done(self._node, request, started, ended, error)
        finally:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]

    def changed(self, state: str, instances: Iterable[Instance]) -> None:
        """Report what has become of instances."""
        for instance in instances:
            self.probes.instance_changed(self._node, instance.index, state)

    def holds(self, ident: int) -> bool:
        """Tell whether thread ``ident``, or one that waits for it, is inside a probe."""
        inside = self._inside  # asked for each, not gone through: other threads change it meanwhile
        return any(one in inside for one in served_by(ident))

    def ran(
        self,
        instance: int,
        requests: Iterable[tuple[Any, ...]],
        started: float,
        ended: float,
        errors: Sequence[BaseException | None],
    ) -> None:
        """Report a batch that has run, to probes that may not call its instance meanwhile.

        Of each request it is given what makes a `BatchRequest`.
        """
        node, probes = self._node, self.probes
        if probes.batch_done is not None:
            probes.batch_done(node, instance, len(errors), started, ended, [*errors])
        if probes.batch_ran is not None:
            batch, me = [*map(BatchRequest._make, requests)], get_ident()
            weight = sum([one.weight for one in batch])
            about = (node, instance, me, batch, started, ended, weight, [*errors])
            probes.batch_ran(BatchRecord(*about))

    def ran_alone(
        self,
        instance: int,
        request: Request,
        started: float,
        ended: float,
        error: BaseException | None,
    ) -> None:
        """Report a request that its caller ran, and its batch; `ran` and `_end` in one, for they are felt."""
        node, probes = self._node, self.probes
        try:
            if probes.batch_done is not None:
                probes.batch_done(node, instance, 1, started, ended, [error])
            if probes.batch_ran is not None:
                weight, me = request.get("request_size", 1), get_ident()
                # As the classes make them, without a call of Python each.
                alone = [_make(BatchRequest, (request, started, started, weight))]
                about = (node, instance, me, alone, started, ended, weight, [error])
                probes.batch_ran(_make(BatchRecord, about))
        finally:
            probes.request_done(node, request, started, ended, error)


_METHODS = (
    *("batch_done", "request_done", "batch_ran", "element_began", "element_done", "span_done"),
    *("instance_changed", "pipeline_started"),
)
"""What a probe may have."""


def _with(probes: Sequence[Guarded], name: str) -> list[tuple[Guarded, Callable[..., Any]]]:
    methods = [(one, getattr(one.probe, name, None)) for one in probes]
    return [(one, method) for one, method in methods if callable(method)]


def _for_main_thread() -> bool:
    """Tell whether the calling thread is the main thread, or one that it waits for."""
    return main_thread.ident in served_by(get_ident())
