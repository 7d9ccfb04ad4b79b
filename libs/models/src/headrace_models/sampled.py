"""What requests see of a pipeline during an exchange: those that are drawn go to both models."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace import Pipeline
from headrace.errors import RequestsFailed
from headrace_models.trial import tell

if TYPE_CHECKING:
    from headrace_models.trial import Pair, Trial

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
            done = [self.submit(request, **how) for request in data]
            return _checked(data, [future.exception() for future in done])
        pair = self._begin(data, how)
        return super().__call__(data, **how) if pair is None else pair.client.result()

    async def call_async(self, data: Any, **how: Any) -> Any:
        """Run one request, or a list of them; see `headrace.Pipeline.call_async`."""
        if isinstance(data, list):
            runs = [self.call_async(request, **how) for request in data]
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
            return _checked(data, [o if isinstance(o, BaseException) else None for o in outcomes])
        over = asyncio.Event()
        call = self.call_soon(data, lambda _: over.set(), **how)
        try:
            await over.wait()
        except BaseException as error:
            error.abandoned = call.cancel()  # type: ignore[attr-defined]
            raise
        if call.error is not None:
            raise call.error
        return data

    def submit(self, data: Any, **how: Any) -> Any:
        """Let requests run; see `headrace.Pipeline.submit`."""
        if how.get("on_part") is not None:
            self._trial.refuse_stream()
            return super().submit(data, **how)
        if isinstance(data, list):
            return [self.submit(request, **how) for request in data]
        pair = self._begin(data, how)
        if pair is None:
            return super().submit(data, **how)
        pair.client.add_done_callback(lambda done: pair.cancel() if done.cancelled() else None)
        return pair.client

    def call_soon(self, data: Any, done: Any, **how: Any) -> Any:
        """Begin one request in an event loop; see `headrace.Pipeline.call_soon`."""
        loop = asyncio.get_running_loop()
        pair = self._begin(data, how, loop)
        if pair is None:
            return super().call_soon(data, done, **how)

        def end() -> None:
            if not pair.client.cancelled():
                pair.error = pair.client.exception()
                done(pair)

        pair.client.add_done_callback(partial(tell, loop, end))
        return pair

    def stream(self, *data: Any, **how: Any) -> Any:
        """Read an answer in parts, of the old model; see `headrace.Pipeline.stream`."""
        self._trial.refuse_stream()
        return super().stream(*data, **how)

    def stream_async(self, *data: Any, **how: Any) -> Any:
        """Read an answer in parts, of the old model; see `headrace.Pipeline.stream_async`."""
        self._trial.refuse_stream()
        return super().stream_async(*data, **how)

    def _begin(self, data: Any, how: Any, loop: Any = None) -> Pair | None:
        """Begin a request with both models, if it is drawn and can be."""
        pair = self._trial.take(data, how, loop)
        if pair is None:
            return None
        try:
            if loop is None:
                pair.running = super().submit(data, **how)
                pair.running.add_done_callback(pair.note_done)
            else:
                pair.running = super().call_soon(data, pair.note_call, **how)
        except BaseException as error:
            pair.note(0, error)
            raise
        return pair


def _checked(data: list[Any], errors: list[BaseException | None]) -> list[Any]:
    if any(error is not None for error in errors):
        raise RequestsFailed(errors)
    return data
