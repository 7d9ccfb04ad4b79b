"""What operators read of requests that failed: a line per kind of failure, at most one a second."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace._pickling import rebuild
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_log = logging.getLogger("headrace.requests")

EVERY_S = 1.0
"""How long a kind of failure is counted, and not logged, after a line about it."""

_KINDS = 256
"""How many kinds of failure are told apart. More come from texts in the names of classes."""


class FailureLog:
    """Logs at ERROR what the backends of one node raise, with traceback and identifier.

    A kind is the backend, the code and the class of what was raised. The first failure of a kind is
    logged at once, then at most one a second, with the number of those in between. The record has
    the attributes ``node``, ``backend``, ``code``, ``request_id`` and ``unlogged`` besides.
    Failures that are the sender's (`InputError`), or the load's, are not logged.

    Args:
        node: The name of the node.
        clock: Gives seconds.
    """

    def __init__(self, node: str, clock: Callable[[], float]) -> None:
        self._node = node
        self._clock = clock
        # Per kind when the last line was, and how many there were since.
        self._kinds: dict[tuple[str | None, str, type], list[float]] = {}

    def on_failed(self, request: Mapping[str, Any], error: BaseException) -> None:
        """Log the failure of a request, or count it. In no step. It raises no Exception."""
        with suppress(Exception):  # of a handler, of the user's dict, of a class of errors
            here = (None, self._node)
            if isinstance(error, BackendError) and error.backend and error.node in here:
                self._note(error, request)

    def _note(self, error: BackendError, request: Mapping[str, Any]) -> None:
        raised = error.__cause__ or error
        kind, now = (error.backend, error.code, type(raised)), self._clock()
        if len(self._kinds) >= _KINDS and kind not in self._kinds:
            self._kinds.clear()
        # Two threads may log the first failure of a kind each; no count is needed to be exact here.
        last = self._kinds.get(kind)
        if last is not None and now - last[0] < EVERY_S:
            last[1] += 1
            return
        unlogged = 0 if last is None else int(last[1])
        self._kinds[kind] = [now, 0]
        name = _identifier(request)
        about = "" if name is None else f" {name}"
        more = f" ({unlogged} more like it since the last line)" if unlogged else ""
        known: dict[str, Any] = {"node": self._node, "backend": error.backend, "code": error.code}
        known |= {"request_id": name, "unlogged": unlogged}
        _log_error(f"request{about} failed: {error}{more}", raised, known)


def _log_error(text: str, raised: BaseException, known: dict[str, Any]) -> None:
    if not _log.isEnabledFor(logging.ERROR):
        return
    info: Any = (type(raised), raised, raised.__traceback__)
    record = _log.makeRecord(
        _log.name, logging.ERROR, __file__, 0, "%s", (text,), info, None, known
    )
    _log.handle(record)
    # Who keeps the record (a test, a ring of the last lines) would keep the request by the frames
    # of the traceback: from here on it has that as text, and an exception without one.
    record.exc_text = record.exc_text or "".join(traceback.format_exception(*info)).rstrip()
    record.exc_info = (type(raised), rebuild(type(raised), raised.args, {}), None)


def _identifier(request: Mapping[str, Any]) -> Any:
    """Return the ``request_id`` of a request, else that of its ``context``, else None."""
    context: Any = request.get("context")
    name = context.get("request_id") if hasattr(context, "get") else None
    return request.get("request_id", name)
