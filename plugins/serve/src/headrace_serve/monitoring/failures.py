"""Logs requests that fail in the server: with exception, traceback, node, model and request, each kind at most once a second.

The logger is ``headrace.serve.requests``, level ERROR. The library logs what backends raise under ``headrace.requests``,
but knows neither model nor client. `instead_of_library` makes this module log that, too.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from headrace_serve.errors import ItemError, lacks_company, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["FailureLog", "instead_of_library"]

logger = logging.getLogger("headrace.serve.requests")

_LIBRARY: Final = logging.getLogger("headrace.requests")
_EVERY_S: Final = 1.0
"""How long a kind of failure is counted, and not logged, after a line about it."""
_MOST_KINDS: Final = 256


def _dropped(record: logging.LogRecord) -> bool:
    """Drop a record of the library."""
    return False


@contextlib.contextmanager
def instead_of_library() -> Iterator[None]:
    """Log in this process what the library logs of requests, until the block ends: for a process that only serves."""
    _LIBRARY.addFilter(_dropped)
    try:
        yield
    finally:
        _LIBRARY.removeFilter(_dropped)


class FailureLog:
    """Logs failures of requests that are neither the client's nor the load's. Used by one event loop.

    A kind is the model, the node, the backend, the code and the class of the error. The first failure of a kind is logged
    at once, then at most one a second, with the number of those in between.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[Any, ...], list[float]] = {}

    def note(self, error: BaseException, describe: Callable[[], dict[str, Any]]) -> None:
        """Log a failure, or count it.

        Args:
            error: What was raised.
            describe: Gives what is known of the request: model, version, route, request_id, trace_id, client, key.
        """
        while isinstance(error, ItemError):
            error = error.error
        alone = lacks_company(error)
        if not isinstance(error, Exception) or (refusal(error).status != 500 and not alone):
            return
        node, backend = getattr(error, "node", None), getattr(error, "backend", None)
        if node is not None and not alone and _dropped not in _LIBRARY.filters:
            return  # the library has logged it
        raised = error.__cause__ or error
        code, now = refusal(error).code, self._clock()
        about = {name: value for name, value in describe().items() if value}
        kind = (about.get("model"), node, backend, code, type(raised))
        if len(self._kinds) >= _MOST_KINDS and kind not in self._kinds:
            self._kinds.clear()
        last = self._kinds.get(kind)
        if last is not None and now - last[0] < _EVERY_S:
            last[1] += 1
            return
        unlogged = 0 if last is None else int(last[1])
        self._kinds[kind] = [now, 0]
        said = " ".join(f"{name}={_text(value)}" for name, value in about.items())
        fields = {"code": code, "node": node, "backend": backend, **about, "unlogged": unlogged}
        more = f" ({unlogged} more like it since the last line)" if unlogged else ""
        info = (type(raised), raised, raised.__traceback__)
        logger.error("%s [%s]%s", error, said, more, exc_info=info, extra={"fields": fields})


def _text(value: Any) -> str:
    text = str(value)
    return text if text.isalnum() else repr(text)
