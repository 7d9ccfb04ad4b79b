"""The base class of this plugin's backends: it works on one request at a time, a bad one fails alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypedDict

import headrace
from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["TRACKED", "Each", "ReadsData", "ReadsSize", "ReadsSource", "need", "no_tracks"]

TRACKED = "supervision.Detections with tracker_id"


class ReadsData(TypedDict):
    """What is always read."""

    data: Any


class ReadsSize(ReadsData, total=False):
    """What says where the pixels of the network's input lie in the source image."""

    letterbox: Any
    image: Any


class ReadsSource(ReadsData, total=False):
    """What says of which source a frame is."""

    context: Any


def need(request: Request, key: str, expected: str) -> Any:
    """Return the value of a key.

    Raises:
        InputError: The request has no such key. The error quotes ``expected``.
    """
    if key not in request:
        raise InputError(f"the request has no {key!r}", key=key, expected=expected, got="nothing")
    return request[key]


def no_tracks(text: str) -> InputError:
    """Return the error for detections that nobody has tracked."""
    hint = "Put Track before this word."
    return InputError(text, expected=TRACKED, got="tracker_id = None", hint=hint)


class Each(headrace.Backend, ABC):
    """A backend that works on one request at a time."""

    rerun = True
    reads: tuple[str, ...] | type = ("data",)
    _work: Callable[[Request], None]

    @abstractmethod
    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Import what computes, and return the function that works on one request."""

    def init(self, options: Any, context: InitContext) -> None:
        """Build the function that works on one request."""
        self._work = self.build(options, context)

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Process each request on its own; the error of one does not touch the others."""
        outcomes: list[Exception | None] | None = None
        for index, request in enumerate(batch):
            try:
                self._work(request)
            except Exception as error:  # noqa: BLE001 - any error is the outcome of this item
                if isinstance(error, InputError) and error.key is None:
                    error.key = "data"
                outcomes = outcomes or [None] * len(batch)
                outcomes[index] = error
        return outcomes
