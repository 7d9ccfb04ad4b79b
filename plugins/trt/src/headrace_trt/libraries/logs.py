"""TensorRT's log messages: passed on to Python's logging, and collected so that errors can quote them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_trt.libraries.tensorrt import Library

__all__ = ["Collected", "collecting", "logger_for", "recent_errors", "warn"]

_log = logging.getLogger("headrace.trt")
_LEVELS = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.DEBUG,
    "VERBOSE": logging.DEBUG,
}
_MOST_KEPT = 50

_lock = threading.Lock()
_loggers: dict[str, Any] = {}
_listeners: list[tuple[int, Callable[[str, str], None]]] = []
"""The listeners, each with the identifier of the thread that has added it."""

_recent: deque[str] = deque(maxlen=3)


class Collected:
    """The messages of one piece of work.

    Attributes:
        errors: The messages that were logged as errors, the oldest first.
        warnings: The messages that were logged as warnings.
        layers: The list of layers that the builder logs at its end, as text. One entry per build.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.layers: list[str] = []

    def add(self, severity: str, message: str) -> None:
        """Take a message."""
        if severity in ("ERROR", "INTERNAL_ERROR"):
            texts = self.errors
        elif severity == "WARNING":
            texts = self.warnings
        elif message.startswith("Layers:\n"):
            self.layers.append(message.removeprefix("Layers:\n"))
            return
        else:
            return
        if len(texts) < _MOST_KEPT and message not in texts:
            texts.append(message)

    def text(self, most: int = 5) -> str:
        """Return the first errors (or warnings, if there is no error) as one text."""
        chosen = (self.errors or self.warnings)[:most]
        return "; ".join(chosen) if chosen else "TensorRT logged no reason"


def logger_for(library: Library) -> Any:
    """Return the one ``ILogger`` of a library in this process.

    TensorRT keeps the first logger that is passed to it, for messages that belong to no object. So there is only one
    logger, and code that wants its messages uses `collecting`. Errors and warnings go to the logger ``headrace.trt``
    of Python's logging, all other messages go there as debug messages.
    """
    with _lock:
        if library.name not in _loggers:
            _loggers[library.name] = _make_logger(library)
        return _loggers[library.name]


def _make_logger(library: Library) -> Any:
    base: Any = library.trt.ILogger

    class Logger(base):  # type: ignore[misc]
        """Passes every message on."""

        def __init__(self) -> None:
            base.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            """Receive a message, in any thread; never raise, because native code would lose the error."""
            name = severity.name
            level = _LEVELS.get(name, logging.INFO)
            listeners = _listeners_here()
            for listener in listeners:
                listener(name, msg)
            if level == logging.ERROR:
                _recent.append(msg)
            # A listener will raise an error that quotes the message, so the message itself is logged as DEBUG only.
            if listeners and level == logging.ERROR:
                level = logging.DEBUG
            if _log.isEnabledFor(level):
                _log.log(level, "%s", msg)

    return Logger()


def _listeners_here() -> list[Callable[[str, str], None]]:
    """Return the listeners of this thread; all listeners if it has none, because it may be a thread of TensorRT."""
    here, listeners = threading.get_ident(), tuple(_listeners)
    own = [listener for thread, listener in listeners if thread == here]
    return own or [listener for _, listener in listeners]


@contextlib.contextmanager
def collecting() -> Iterator[Collected]:
    """Collect the messages that TensorRT logs during the block, in this thread and in threads without a listener.

    So two builds at a time, each in a thread of its own, do not collect messages of each other's threads.
    """
    collected = Collected()
    listener = threading.get_ident(), collected.add
    _listeners.append(listener)
    try:
        yield collected
    finally:
        _listeners.remove(listener)


def warn(message: str) -> None:
    """Log a warning of this plugin, and pass it to the collectors of this thread."""
    here = threading.get_ident()
    for thread, listener in tuple(_listeners):
        if thread == here:
            listener("WARNING", message)
    _log.warning("%s", message)


def recent_errors() -> str:
    """Return the last errors that TensorRT has logged in this process, and drop them."""
    errors = list(_recent)
    _recent.clear()
    return "; ".join(errors) or "TensorRT logged no reason"
