"""This process: whether it was forked from the one in which pipelines were built, and how many cores it may use, with whom."""

from __future__ import annotations

import logging
import os
from typing import Final

from headrace.errors import SetupError

__all__ = ["CPU_COUNT", "Process", "is_crowded"]

logger = logging.getLogger("headrace.serve")

CPU_COUNT: Final = "PYTHON_CPU_COUNT"
"""The environment variable with the number of cores that Python, and pipelines, may use in a process."""

_FORKED: Final = (
    "the models were loaded before this process was forked, and their threads exist only in its parent, so it can answer no"
    " request: build the application in each worker process (gunicorn without --preload, or in its hook post_fork)"
)


class Process:
    """The process in which an object was made."""

    def __init__(self) -> None:
        self._number = os.getpid()
        self._said = False

    def is_other(self) -> bool:
        """Return whether this is a forked child of that process, and log once at ERROR what to do then."""
        if os.getpid() == self._number:
            return False
        if not self._said:
            self._said = True
            _log(_FORKED)
        return True

    def check(self) -> None:
        """Check that this is that process.

        Raises:
            SetupError: It is a forked child.
        """
        if self.is_other():
            raise SetupError(_FORKED)


def is_crowded() -> bool:
    """Return whether the whole machine had more to run than cores in the last minute; False where it does not say."""
    if not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] > 1.25 * (os.cpu_count() or 1)


def _log(text: str) -> None:
    """Log at ERROR; to stderr where no handler writes what Headrace's loggers say, as in a program that sets up no logging."""
    logger.error("%s", text)
    place: logging.Logger | None = logger
    while place is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in place.handlers):
            return
        place = place.parent if place.propagate else None
    if logging.lastResort is not None:
        record = logging.LogRecord(logger.name, logging.ERROR, __file__, 0, text, None, None)
        logging.lastResort.handle(record)
