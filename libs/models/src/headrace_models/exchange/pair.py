"""A request that both models run, and which outcome its client gets."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace import keys
from headrace.errors import ContractError, InputError
from headrace.futures import RelayFuture

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future

    from headrace import Pipeline
    from headrace.futures import RequestFuture
    from headrace.keys import Request
    from headrace_models.exchange.options import Exchange

__all__ = ["CANCELLED", "ON_DEVICE", "Pair", "is_on_device", "tell"]

_HOST = {1, 3, 11, 13}
"""The kinds of devices of DLPack whose memory the CPU reads."""
CANCELLED = RuntimeError("cancelled")
"""The error of a side whose request was cancelled."""
ON_DEVICE = "on a device"
"""Why a request or an answer in the memory of a device is not compared."""


class Pair:
    """A request that both models run.

    Attributes:
        request: The client's request.
        twin: The copy that the new model runs.
        inputs: A copy that nobody changes, if inputs are kept.
        sender: The client; see `headrace_models.exchange.sample.client_of`.
        running: The future of the new model. None: that has refused the request at once.
        client: What the client waits for: the outcome of the old model, in a canary that of the new one if it has an answer.
        answers, errors, ms: The results, errors and milliseconds, those of the old model first.
        kind: Why the answers cannot be compared. ``""`` if they can.
    """

    running: RequestFuture | None = None

    def __init__(
        self,
        request: Request,
        sender: str,
        exchange: Exchange,
        both_ended: Callable[[Pair], object],
    ) -> None:
        """Copy a request.

        Args:
            request: The request.
            sender: The client.
            exchange: Says which answer the client gets, and whether inputs are kept.
            both_ended: Called once both models have ended it.
        """
        self.request, self.twin = request, deepcopy({**request})
        self.sender = sender
        self._both_ended = both_ended
        self.inputs = deepcopy(self.twin) if exchange.keep_inputs else {}
        self.client = RelayFuture()
        self.answers: list[Any] = [None, None]
        self.errors: list[BaseException | None] = [None, None]
        self.ms, self.kind = [0.0, 0.0], ""
        self._waits_for_both = exchange.compare == "canary"
        self._given = {*request} - {keys.RESULT}
        self._open, self._lock, self._is_answered = {0, 1}, threading.Lock(), False
        self._begun = perf_counter()

    def start(self, pipe: Pipeline, how: Mapping[str, Any]) -> None:
        """Let the new model run the copy.

        Args:
            pipe: Its pipeline.
            how: Timeout and priority.
        """
        try:
            self.running = running = pipe.submit(self.twin, **how)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the new model
            self.note(1, error)
        else:
            running.add_done_callback(partial(self.note_done, side=1))

    def note_done(self, done: Future[Any], side: int = 0) -> None:
        """Note that the future of the old model, or of the other side, has ended."""
        self.note(side, CANCELLED if done.cancelled() else done.exception())

    def note(self, side: int, error: BaseException | None) -> None:
        """Note that one side has ended, and answer the client if it waits for nothing else."""
        ms, answer, kind = 1e3 * (perf_counter() - self._begun), None, ""
        if error is None:
            try:
                answer = (self.twin if side else self.request)[keys.RESULT]
                kind = ON_DEVICE if is_on_device(answer) else ""
                answer = None if kind else deepcopy(answer)
            except Exception:  # noqa: BLE001 - an object may refuse to be copied in any way
                kind = "not copied"
        with self._lock:
            if side not in self._open:
                return  # it was cancelled
            self._open.remove(side)
            self.ms[side], self.answers[side], self.errors[side] = ms, answer, error
            self.kind, both = self.kind or kind, not self._open
            awaited = self.running if self._waits_for_both and not both else None
        if both:
            self._both_ended(self)
        if 0 not in self._open:
            if awaited is not None:
                self.client.follow(awaited, lambda _: None)  # its end is noted, too
            else:
                self._answer()

    def _answer(self) -> None:
        """Give the client the old answer, in a canary the new one if there is one."""
        with self._lock:
            if self._is_answered:
                return
            self._is_answered = True
        error = self.errors[0]
        if error is CANCELLED:  # the request is the client's again
            return
        has_new = self._waits_for_both and 1 not in self._open and self.errors[1] is None
        if has_new and not (getattr(error, "abandoned", False) or _is_refusal(error)):
            error = None
            fresh = {key: value for key, value in self.twin.items() if key not in self._given}
            self.request.update(fresh)
        self.client.finish(self.request if error is None else error)

    def end(self) -> None:
        """Let the client have the outcome of the old model as soon as that has one, and withdraw the copy if it waits."""
        self.end_wait()  # first: a client must not wait for what is withdrawn
        if self.running is not None:
            self.running.cancel()

    def end_wait(self) -> None:
        """Let the client have the outcome of the old model as soon as that has one."""
        with self._lock:
            self._waits_for_both = False
            has_old = 0 not in self._open
        if has_old:
            self._answer()

    def result(self) -> Request:
        """Wait for the answer of the client, in its thread, once the old model has ended."""
        try:
            return self.client.result()
        except ContractError:
            if self.client.done():
                raise
            self.end_wait()  # the new model waits for this very thread
            return self.client.result()


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether a request was refused before any node had it, as where its dict is on its way already."""
    return isinstance(error, InputError) and error.node is None


def is_on_device(value: Any) -> bool:
    """Return whether a value holds an array whose memory the CPU does not read."""
    if isinstance(value, Mapping):
        return any(map(is_on_device, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(is_on_device, value))
    place = getattr(value, "__dlpack_device__", None)
    return place is not None and int(place()[0]) not in _HOST


def tell(loop: asyncio.AbstractEventLoop, end: Callable[[], object], _: object) -> None:
    """Call a function in an event loop, as what a future calls at its end."""
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(end)
