"""How long a fetch may take, how much it may bring, and when it asks again."""

from __future__ import annotations

import email.utils
import logging
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import SetupError
from headrace_formats import back_off

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Limits"]

_log = logging.getLogger("headrace.models")

_TIMEOUT_S: Final = 3600.0


class Limits:
    """The bounds of one fetch, from the variables ``HEADRACE_FETCH_TIMEOUT_S`` and ``HEADRACE_FETCH_BYTES``.

    Attributes:
        what: The address, without its query.

    Args:
        what: See the attribute.
        clock: Gives the time in seconds.
        wait: Waits for so many seconds.
    """

    def __init__(
        self,
        what: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self.what, self._clock = what, clock
        self._wait = wait or threading.Event().wait
        self._timeout_s = _number("HEADRACE_FETCH_TIMEOUT_S", _TIMEOUT_S)
        self._most_bytes = _number("HEADRACE_FETCH_BYTES", float("inf"))
        self._until = clock() + self._timeout_s
        self._pauses = 0

    def check(self) -> None:
        """Check that the time is not over.

        Raises:
            SetupError: It is.
        """
        if self._clock() >= self._until:
            raise self._over("")

    def _over(self, why: str) -> SetupError:
        text = f"{self.what} was not here after {self._timeout_s:g} s{why}"
        hint = "What is here is kept, to go on there. HEADRACE_FETCH_TIMEOUT_S is the bound."
        return SetupError(text, hint=hint)

    def pause(self, why: str, headers: Any = None, *, gained: bool = False) -> None:
        """Wait before the next attempt, longer after each one that has gained nothing.

        Args:
            why: What the last attempt has met.
            headers: Those of the answer, if there was one. ``Retry-After`` has seconds, or a date.
            gained: Whether the last attempt has brought much.

        Raises:
            SetupError: The time would be over.

        Source:
            RFC 9110, section 10.2.3 (Retry-After).
        """
        self._pauses = 0 if gained else self._pauses + 1
        pause_s = max(back_off(self._pauses), _asked_s(headers or {}))
        if self._clock() + pause_s >= self._until:
            raise self._over(f": {why}")
        _log.warning("%s: %s, asked again in %.1f s", self.what, why, pause_s)
        self._wait(pause_s)

    def check_bytes(self, size_bytes: int) -> None:
        """Check that so many bytes may come.

        Raises:
            SetupError: They may not.
        """
        if size_bytes > self._most_bytes:
            most = f"HEADRACE_FETCH_BYTES={self._most_bytes:.0f}"
            raise SetupError(f"{self.what} has {size_bytes} bytes or more, and {most}")

    def check_room(self, folder: Path, size_bytes: int | None) -> None:
        """Check that so many bytes may come, and have room.

        Raises:
            SetupError: They may not, or have none.
        """
        wanted = size_bytes or 0
        self.check_bytes(wanted)
        free = shutil.disk_usage(folder).free
        if wanted > free:
            text = f"{self.what} needs {wanted} bytes, and {folder} has {free}"
            raise SetupError(text, hint="HEADRACE_CACHE names another folder.")


def _number(name: str, otherwise: float) -> float:
    text = os.environ.get(name, "")
    try:
        number = float(text) if text else otherwise
    except ValueError:
        number = -1.0
    if not number > 0:
        raise SetupError(f"{name}={text!r} is no number above 0")
    return number


def _asked_s(headers: Any) -> float:
    """Return the seconds for which an answer asks to wait, from its own date on."""
    after = headers.get("Retry-After") or ""
    if after.strip().isdigit():
        return float(after)
    try:
        until, now = map(email.utils.parsedate_to_datetime, (after, headers.get("Date") or ""))
        return (until - now).total_seconds()
    except (TypeError, ValueError):
        return 0.0
