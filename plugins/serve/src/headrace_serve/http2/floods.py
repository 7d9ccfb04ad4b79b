"""What a client may ask of a connection that brings it no answer: pings, settings, cancelled streams, empty frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace_serve.http2.frames import ENHANCE_YOUR_CALM, ConnectionFaultError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Patience"]

_MOST: Final = 4096
"""So much may be spent at once."""

_EACH_SECOND: Final = 512
"""So much comes back in a second."""


class Patience:
    """A budget of a connection for frames that bring no answer. Answers give some of it back.

    A frame costs about a microsecond of the processor's time, a cancelled stream about a hundred: they cost 1 and 4 here.
    So a client that does nothing else holds the processor for some milliseconds, and then for less than a hundredth.

    Args:
        clock: Gives the time in seconds. It is asked where the budget is spent alone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._since_s = clock, clock()
        self._left = _MOST

    def spend(self, cost: int, what: str) -> None:
        """Pay for something.

        Raises:
            ConnectionFaultError: There is too much of it. ``what`` names it.
        """
        self._left -= cost
        if self._left >= 0:
            return
        now_s = self._clock()
        self._left += min(_MOST, int((now_s - self._since_s) * _EACH_SECOND))
        self._since_s = now_s
        if self._left < 0:
            raise ConnectionFaultError(ENHANCE_YOUR_CALM, f"too many {what}")

    def earn(self, gain: int) -> None:
        """Get some of the budget back, because the client got an answer."""
        self._left = min(_MOST, self._left + gain)
