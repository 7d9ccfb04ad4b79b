"""The base class of this plugin's backends: it works on one request at a time, a bad one fails alone."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import headrace
from headrace.errors import InputError
from headrace_cv._allocator import keep_freed_memory
from headrace_cv._opencv import limit_opencv_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["IMAGE", "PerImage", "of_data", "read_key"]

IMAGE = "an image: uint8 or float32 [H, W, C] or [H, W]"
"""The image that most of the backends expect as ``data``, as errors quote it."""

_LONGEST_KEY = 200
"""Longer keys are not compared with the right one: it takes the square of their length."""


def read_key(request: Request, key: str, expected: str) -> Any:
    """Return the value that ``request`` holds under ``key``.

    Raises:
        InputError: The request has no such key. The error quotes ``expected``, a description of
            the value, and the key that was perhaps meant.
    """
    try:
        return request[key]
    except KeyError:
        problem, hint = f"the request has no {key!r}", _meant(key, request)
        raise InputError(problem, key=key, expected=expected, got="nothing", hint=hint) from None


def _meant(key: str, request: Request) -> str | None:
    """Return a hint with the key of ``request`` that is most like ``key``. None: none is like it."""
    there = [k for k in islice(request, 100) if type(k) is str and len(k) <= _LONGEST_KEY]
    alike = {known.lower(): known for known in reversed(there)}
    near = difflib.get_close_matches(key.lower(), alike, 1)
    return f"It has {alike[near[0]]!r}. Did you mean {key!r}?" if near else None


def of_data(function: Callable[[Any], Any], expected: str) -> Callable[[Request], None]:
    """Give a function that works on one request: ``result = function(data)``.

    Args:
        function: Computes ``result`` from ``data``.
        expected: The description of ``data`` in the error when ``data`` is missing.
    """

    def work(request: Request) -> None:
        if "data" in request:
            request["result"] = function(request["data"])
        else:
            read_key(request, "data", expected)

    return work


class PerImage(headrace.Backend, ABC):
    """A backend that works on one request at a time, mostly on one image.

    Attributes:
        expected: The description of ``data`` in the error when ``data`` is missing.
    """

    rerun = True
    reads: tuple[str, ...] | type = ("data",)
    expected: ClassVar[str] = IMAGE
    _work: Callable[[Request], None]

    @abstractmethod
    def build(self, options: Any) -> Callable[[Request], None]:
        """Import the library, and return the function for one request.

        `forward` calls the function for each request, with the interpreter lock held: every lookup
        of an attribute in it costs all threads time. `build` runs once. Look up options and
        functions of OpenCV here.
        """

    @classmethod
    def auto_instances(cls, options: Any, device: str | None, threads: int) -> int | None:
        """Return one for each thread: OpenCV computes without the interpreter lock."""
        return threads

    def init(self, options: Any, context: InitContext) -> None:
        """Import OpenCV, whose threads are limited once per process, and build the function."""
        limit_opencv_threads()
        keep_freed_memory()
        self._work = self.build(options)

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Process each request on its own; the error of one request does not touch the others."""
        outcomes: list[Exception | None] | None = None
        work = self._work
        for index, request in enumerate(batch):
            try:
                work(request)
            except Exception as error:  # noqa: BLE001 - any error is the outcome of this item
                if isinstance(error, InputError) and error.key is None:
                    error.key = "data"
                    error.hint = error.hint or self._hint_of(request.get("data"))
                outcomes = outcomes or [None] * len(batch)
                outcomes[index] = error
        return outcomes

    def _hint_of(self, data: Any) -> str | None:
        """Return what to do about data that is no array at all."""
        if isinstance(data, dict):
            return 'A model with several outputs gives a dict: outputs = ["NAME"] there gives one.'
        if callable(getattr(data, "read", None)):
            return "Send the content of the file: FILE.read()."
        encoded = isinstance(data, (bytes, bytearray)) and self.expected == IMAGE
        return "DecodeMat before it reads the bytes of a picture." if encoded else None
