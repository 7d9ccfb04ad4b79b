"""The probes of a pipeline, and what they are told: whatever one of them raises is counted and harms nobody."""

from __future__ import annotations

import logging
import threading
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._scheduling.calls import served_by
from headrace._scheduling.locks import main_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.keys import Request


_log = logging.getLogger("headrace.probes")


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


class _Guarded:
    """One probe: whatever it raises is counted and harms nobody."""

    def __init__(self, name: str, probe: Any) -> None:
        self.name = name
        self.probe = probe
        self.errors = 0
        self.last: str | None = None
        self._lock = threading.Lock()

    def failed(self, error: BaseException) -> None:
        """Take note of what a method has raised; only Ctrl-C, where the main thread waits, is raised."""
        if isinstance(error, KeyboardInterrupt) and _for_main_thread():
            raise error
        try:
            text = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - the text of an error is anybody's code
            text = type(error).__name__
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
    """The probes of one pipeline, by the text that switched each on."""

    def __init__(self, probes: dict[str, Any]) -> None:
        self._all = [_Guarded(name, probe) for name, probe in probes.items()]
        self._heard = {name: _with(self._all, name) for name in _METHODS}
        self._in_service: dict[tuple[str, int], None] = {}
        self._closed: list[bool] = []  # what `teller` gives holds it, and not this object
        self.batch_done = self.teller("batch_done") if self.hears("batch_done") else None
        self.batch_ran = self.teller("batch_ran") if self.hears("batch_ran") else None
        self.request_done = self.teller("request_done")

    def hears(self, what: str) -> bool:
        """Tell whether a probe has the method ``what``; what none has is not measured."""
        return bool(self._heard[what])

    def tell(self, what: str, *args: Any) -> None:
        """Call the method ``what`` of each probe that has it."""
        self.teller(what)(*args)

    def teller(self, what: str, *about: Any) -> Callable[..., None]:
        """Give a function that calls the method ``what`` of each probe that has it, with ``about`` first."""
        heard = [(one, partial(method, *about)) for one, method in self._heard[what]]
        closed = self._closed

        def tell(*args: Any) -> None:
            if not closed:
                for guarded, method in heard:
                    try:
                        method(*args)
                    except BaseException as error:  # noqa: BLE001 - whatever it is harms nobody
                        guarded.failed(error)

        return tell

    def instance_changed(self, node: str, instance: int, state: str) -> None:
        """Report what has become of an instance: ready, lost, retired or closed."""
        if state == "ready":
            self._in_service[node, instance] = None
        else:
            self._in_service.pop((node, instance), None)
        self.tell("instance_changed", node, instance, state)

    def statistics(self) -> dict[str, Any]:
        """Give what ``stats()`` shows of the probes: how often each has failed, and how last."""
        return {one.name: {"errors": one.errors, "last": one.last} for one in self._all}

    def close(self) -> None:
        """Close those that have a ``close``, once; they hear of nothing any more."""
        if self._closed:
            return
        for node, instance in list(self._in_service):
            self.instance_changed(node, instance, "closed")
        self._closed.append(True)
        for guarded, method in _with(self._all, "close"):
            try:
                method()
            except BaseException as error:  # noqa: BLE001 - whatever it is harms nobody
                guarded.failed(error)


_METHODS = (
    *("batch_done", "request_done", "batch_ran", "element_began", "element_done", "span_done"),
    *("instance_changed", "pipeline_started"),
)
"""What a probe may have."""


def _with(probes: list[_Guarded], name: str) -> list[tuple[_Guarded, Callable[..., Any]]]:
    methods = [(one, getattr(one.probe, name, None)) for one in probes]
    return [(one, method) for one, method in methods if callable(method)]


def _for_main_thread() -> bool:
    """Tell whether the calling thread is the main thread, or one that it waits for."""
    return main_thread.ident in served_by(get_ident())
