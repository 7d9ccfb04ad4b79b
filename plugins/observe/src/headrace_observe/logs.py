"""Sets up Headrace's logging by one call; no other logger or handler is changed."""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from headrace_formats import write_json

if TYPE_CHECKING:
    from typing import TextIO

    _Handler = logging.StreamHandler[TextIO]
else:
    _Handler = logging.StreamHandler  # Python 3.10 gives it no parameters

__all__ = ["setup_logging"]

_AREA = "headrace"
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_lock = threading.Lock()


class _OurHandler(_Handler):
    """The handler that `setup_logging` adds; its class lets a second call find and replace it."""


class _JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``thread``, ``message``."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line of one record; an error adds ``error`` with its traceback."""
        row = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="microseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["error"] = self.formatException(record.exc_info)
        return write_json(row)


def setup_logging(
    level: int | str = "INFO", json: bool = False, *, stream: TextIO | None = None
) -> None:
    """Let the loggers of Headrace write to standard error.

    Only the logger ``headrace`` is changed. Its level and handler hold for all loggers below it. Other
    libraries' loggers, the root logger and handlers that were there before stay as they are. A second
    call replaces the handler and the level of the first.

    Args:
        level: ``"DEBUG"``, ``"INFO"``, ``"WARNING"``, ..., in any case, or the number.
        json: Write one JSON object a line, with ``time``, ``level``, ``logger``, ``thread`` and
            ``message``, and ``error`` if there is a traceback. False: write text.
        stream: Where to write. Default: ``sys.stderr``.

    Raises:
        ValueError: There is no such level.
        TypeError: The level is neither text nor a number.
    """
    if isinstance(level, bool) or not isinstance(level, (int, str)):
        raise TypeError(f"a level is a name or a number, got {level!r}")
    if isinstance(level, str) and level.upper() not in _LEVELS:
        raise ValueError(
            f"there is no level {level!r}; known are {', '.join(_LEVELS)}, or a number"
        )
    handler = _OurHandler(stream)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s [%(threadName)s] %(message)s")
    handler.setFormatter(_JsonLines() if json else text)
    logger = logging.getLogger(_AREA)
    with _lock:
        for former in [each for each in logger.handlers if isinstance(each, _OurHandler)]:
            logger.removeHandler(former)
        logger.addHandler(handler)
        logger.setLevel(level.upper() if isinstance(level, str) else level)
