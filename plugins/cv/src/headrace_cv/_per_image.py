"""What the backends of this plugin share: one request at a time, a bad one fails alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import headrace
from headrace.errors import InputError
from headrace_cv._opencv import limit_opencv_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["PerImage"]


class PerImage(headrace.Backend):
    """A backend that is a function of one request, most of one image: ``result = function(data)``.

    Attributes:
        expected: What ``data`` must be, in words, for the error when it is missing.
        function: Made by `build` when the backend is initialised.
    """

    rerun = True
    expected: ClassVar[str]
    function: Callable[[Any], Any]

    def build(self, options: Any) -> Callable[[Any], Any]:
        """Import what computes, and give the function from ``data`` to ``result``."""
        raise NotImplementedError

    def init(self, options: Any, context: InitContext) -> None:
        """Import OpenCV, whose threads are limited once per process, and build the function."""
        limit_opencv_threads()
        self.function = self.build(options)

    def one(self, request: Request) -> None:
        """Process one request."""
        request["result"] = self.function(self.read(request, "data", self.expected))

    def read(self, request: Request, key: str, expected: str) -> Any:
        """Give what ``request`` holds under ``key``, or say what it should hold."""
        if key not in request:
            raise InputError(
                f"the request has no {key!r}", key=key, expected=expected, got="nothing"
            )
        return request[key]

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Process each request on its own; the error of one does not touch the others."""
        outcomes: list[Exception | None] | None = None
        for index, request in enumerate(batch):
            try:
                self.one(request)
            except Exception as error:  # noqa: BLE001 - any error is the outcome of this item
                if isinstance(error, InputError) and error.key is None:
                    error.key = "data"
                outcomes = outcomes or [None] * len(batch)
                outcomes[index] = error
        return outcomes
