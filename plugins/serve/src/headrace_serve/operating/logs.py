"""What ``headrace serve`` writes to stderr: its messages, and the records of its loggers, as lines of text or of JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import traceback
from datetime import datetime, timezone
from logging.handlers import QueueHandler
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace_serve.monitoring.access_log import logger as access_logger
from headrace_serve.monitoring.failures import instead_of_library

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LogFormat", "printing_logs", "quoted", "say"]

LogFormat = Literal["text", "json"]

_SAID: Final = "headrace.serve"
_MOST_LINES: Final = 10_000
_LAST_S: Final = 1.0
_BECAUSE: Final = "The above exception was the direct cause of the following exception:"
_WHILE: Final = "During handling of the above exception, another exception occurred:"


def quoted(text: str) -> str:
    """Return a text in one line that cannot steer a terminal: ends of lines and other characters of control as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _told(error: traceback.TracebackException) -> Iterator[str]:
    """Give the lines of a traceback as Python writes it, with the text of each exception quoted."""
    before, how = error.__cause__, _BECAUSE
    if before is None and not error.__suppress_context__:
        before, how = error.__context__, _WHILE
    if before is not None:
        yield from _told(before)
        yield from ("", how, "")
    yield "Traceback (most recent call last):"
    yield "".join(error.stack.format()).rstrip("\n")
    yield quoted("".join(error.format_exception_only()).rstrip("\n"))
    for inner in getattr(error, "exceptions", None) or ():
        yield from _told(inner)


class _Text(logging.Formatter):
    """Lines for people: those of the access log with their time, warnings with the text of their error.

    What an exception says is quoted: it may repeat what a client has sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; an error has its traceback below."""
        text = getattr(record, "said", "") or quoted(record.getMessage())
        if record.levelno < logging.WARNING:
            timed = record.name == access_logger.name
            return f"{self.formatTime(record)} {text}" if timed else text
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.ERROR or error is None:
            return f"warning: {text}" + ("" if error is None else f": {quoted(str(error))}")
        lines = _told(traceback.TracebackException.from_exception(error))
        return "\n".join([f"{self.formatTime(record)} error: {text}", *lines])


class _Json(logging.Formatter):
    """One object a line.

    Args:
        worker: The number of the worker process. None: the server is one process.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._fixed = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record: time, level, logger, message or the fields of the access log, exception."""
        when = datetime.fromtimestamp(record.created, timezone.utc)
        fields: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            **self._fixed,
        }
        if record.name != access_logger.name:
            fields["message"] = record.getMessage()
        fields |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["exception"] = f"{type(error).__name__}: {error}"
            fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(fields, default=str)


class _Stderr(QueueHandler):
    """Writes each record as a line to stderr, in a thread of its own while `writing`: nobody else waits for who reads them.

    If that reader stands still, lines that find no room in the queue are dropped, and counted in the next one that does.
    """

    queue: Queue[str | None]
    _writes = False
    _dropped = 0

    def prepare(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return self.format(record)

    def enqueue(self, record: Any) -> None:
        """Hand on a line, one call at a time."""
        if not self._writes:
            _write(record)
            return
        with contextlib.suppress(Full):
            self._dropped += 1
            if self._dropped > 1:
                text = f"{self._dropped - 1} lines before this one are lost: stderr is not read"
                lost = logging.LogRecord(_SAID, logging.WARNING, __file__, 0, text, None, None)
                self.queue.put_nowait(self.format(lost))
                self._dropped = 1
            self.queue.put_nowait(record)
            self._dropped = 0

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Write in another thread until the block ends, which waits a moment for the lines that are left."""
        thread = threading.Thread(target=self._write_all, name="headrace-serve-log", daemon=True)
        thread.start()
        self._writes = True
        try:
            yield
        finally:
            with contextlib.suppress(Full):
                self.queue.put(None, timeout=_LAST_S)
            thread.join(_LAST_S)
            self._writes = thread.is_alive()

    def _write_all(self) -> None:
        for line in iter(self.queue.get, None):
            with contextlib.suppress(Exception):  # nobody can be told
                _write(line)


def _write(line: str) -> None:
    """Write a line to what is stderr at that moment; past the lock of Python's, which a thread that waits would keep until the end."""
    if sys.stderr is not sys.__stderr__:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
        return
    out: Any = sys.stderr
    left = f"{line}\n".encode(out.encoding, out.errors)
    while left:
        left = left[os.write(out.fileno(), left) :]


_HANDLER: Final = _Stderr(Queue(_MOST_LINES))
_HANDLER.setFormatter(_Text())


def say(text: str) -> None:
    """Write a message to stderr, for the person who runs the server."""
    level = logging.WARNING if text.startswith("warning: ") else logging.INFO
    text = text.removeprefix("warning: ")
    record = logging.LogRecord(_SAID, level, __file__, 0, text, None, None)
    record.said = "\n".join(map(quoted, text.split("\n")))
    _HANDLER.handle(record)


@contextlib.contextmanager
def printing_logs(kind: LogFormat, *, access: bool, worker: int | None = None) -> Iterator[None]:
    """Write records to stderr until the block ends, also those of requests that fail.

    Args:
        kind: ``text``: the records of loggers of Headrace, warnings and more. ``json``: those of all loggers, one object a line.
        access: Whether the access log is written.
        worker: The number of the worker process. None: the server is one process.
    """
    as_json = kind == "json"
    target = logging.getLogger(None if as_json else "headrace")
    before, level = _HANDLER.formatter, access_logger.level
    if as_json:
        _HANDLER.setFormatter(_Json(worker))
        logging.captureWarnings(capture=True)
    if access:
        access_logger.setLevel(logging.INFO)
    target.addHandler(_HANDLER)
    try:
        with instead_of_library(), _HANDLER.writing():
            yield
    finally:
        target.removeHandler(_HANDLER)
        access_logger.setLevel(level)
        if as_json:
            logging.captureWarnings(capture=False)
            _HANDLER.setFormatter(before)
