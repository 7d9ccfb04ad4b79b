"""What requests see of a pipeline during an exchange: those that are drawn go to both models."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace import Pipeline
from headrace.errors import RequestsFailed
from headrace_models.exchange.pair import CANCELLED, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.futures import RequestFuture
    from headrace_models.exchange.comparison import Trial
    from headrace_models.exchange.pair import Pair

__all__ = ["Sampled"]


class Sampled(Pipeline):
    """A pipeline during an exchange: all is as before, and requests that are drawn are run by the new model too.

    Attributes:
        original: The pipeline.
    """

    def __init__(self, trial: Trial) -> None:
        vars(self).update(vars(trial.original))  # it is the same pipeline, called in another way
        self.original, self._trial = trial.original, trial

    def __call__(self, data: Any, **how: Any) -> Any:
        """Run one request, or a list of them, and wait; see `headrace.Pipeline.__call__`."""
        if isinstance(data, list):
            futures = self.submit(data, **how)
            try:
                errors = [future.exception() for future in futures]
            except BaseException as error:  # Ctrl-C: those that wait are withdrawn
                left = [not (future.cancel() or future.done()) for future in futures]
                error.abandoned = any(left)  # type: ignore[attr-defined]
                raise
            return _checked(data, errors)
        pair = self._trial.take(data, how)
        if pair is None:
            return super().__call__(data, **how)
        with _noting(pair):
            super().__call__(data, **how)
        return pair.result()

    async def call_async(self, data: Any, **how: Any) -> Any:
        """Run one request, or a list of them; see `headrace.Pipeline.call_async`."""
        if isinstance(data, list):
            errors: list[BaseException | None] = [None] * len(data)

            async def run(place: int) -> None:
                try:
                    await self.call_async(data[place], **how)
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - an outcome
                    errors[place] = error

            try:
                await asyncio.gather(*map(run, range(len(data))))
            except asyncio.CancelledError as error:
                left = [getattr(each, "abandoned", False) for each in errors]
                error.abandoned = any(left)  # type: ignore[attr-defined]
                raise
            return _checked(data, errors)
        pair = self._trial.take(data, how)
        if pair is None:
            return await super().call_async(data, **how)
        with _noting(pair):
            await super().call_async(data, **how)
        return pair.client.result() if pair.client.done() else await pair.client

    def submit(self, data: Any, **how: Any) -> Any:
        """Let requests run; see `headrace.Pipeline.submit`."""
        if how.get("on_part") is not None:
            self._trial.refuse_stream()
            return super().submit(data, **how)
        several = isinstance(data, list)
        pairs = [self._trial.take(request, how) for request in (data if several else [data])]
        with _noting_refused(*pairs):
            running = super().submit(data, **how)  # a list enters, or is refused, as a whole
        futures = [*map(_client_of, pairs, running if several else [running])]
        return futures if several else futures[0]

    def call_soon(self, data: Any, done: Any, **how: Any) -> Any:
        """Begin one request in an event loop; see `headrace.Pipeline.call_soon`."""
        pair = self._trial.take(data, how)
        if pair is None:
            return super().call_soon(data, done, **how)
        call = _Call(pair, done)
        with _noting_refused(pair):
            call.running = super().call_soon(data, call.note, **how)
        return call

    def stream(self, *data: Any, **how: Any) -> Any:
        """Read an answer in parts, of the old model; see `headrace.Pipeline.stream`."""
        self._trial.refuse_stream()
        return super().stream(*data, **how)

    def stream_async(self, *data: Any, **how: Any) -> Any:
        """Read an answer in parts, of the old model; see `headrace.Pipeline.stream_async`."""
        self._trial.refuse_stream()
        return super().stream_async(*data, **how)


class _Call:
    """A request begun in an event loop, which both models run: what `headrace.Pipeline.call_soon` gives.

    Attributes:
        request: The dict.
        error: Its error once it has ended, None for success.
        running: The call of the old model.
    """

    running: Any
    error: BaseException | None = None

    def __init__(self, pair: Pair, done: Any) -> None:
        self.request = pair.request
        self._pair, self._done = pair, done

    def note(self, running: Any) -> None:
        """Note that the old model has ended; in the event loop."""
        error, running.error = running.error, None
        client, loop = self._pair.client, asyncio.get_running_loop()
        self._pair.note(0, error)
        if client.done():
            self._end()
        else:
            client.add_done_callback(partial(tell, loop, self._end))

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self.error = self._pair.client.exception()
            done(self)

    def cancel(self) -> bool:
        """Give the request up, untold. True where a backend still runs on its dict."""
        self._done = None
        abandoned = bool(self.running.cancel())
        self._pair.note(0, CANCELLED)
        return abandoned


@contextmanager
def _noting(pair: Pair) -> Iterator[None]:
    """Let a pair know the outcome of the old model, which is not raised here."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the client gets it, or the answer of the new model
        pair.note(0, error)
    except BaseException:
        pair.note(0, CANCELLED)
        raise
    else:
        pair.note(0, None)


@contextmanager
def _noting_refused(*pairs: Pair | None) -> Iterator[None]:
    """Let pairs know that the old model has refused the requests, which is raised."""
    try:
        yield
    except BaseException as error:
        for pair in pairs:
            if pair is not None:
                pair.note(0, error)
        raise


def _client_of(pair: Pair | None, running: RequestFuture) -> RequestFuture:
    """Return the future for the client of a request that the old model runs, and with a pair the new one as well."""
    if pair is None:
        return running
    pair.client.add_done_callback(
        lambda done: pair.note(0, CANCELLED) if done.cancelled() else None
    )
    pair.client.follow(running, pair.note_done)
    return pair.client


def _checked(data: list[Any], errors: list[BaseException | None]) -> list[Any]:
    if any(error is not None for error in errors):
        raise RequestsFailed(errors)
    return data
