"""How often a part elsewhere is started again."""

from __future__ import annotations

from collections import deque

_FIRST_PAUSE_S = 0.1
_MINUTE_S = 60.0


class Restarts:
    """How often a part elsewhere may be started again, and after which pause.

    Args:
        limit: How often within a minute; None for without limit.
        longest_pause_s: No pause is longer (seconds); None for without limit.
    """

    def __init__(self, limit: int | None, longest_pause_s: float | None = None) -> None:
        self._limit, self._longest_pause_s = limit, longest_pause_s
        self._deaths: deque[float] = deque()

    def pause_s(self, now: float) -> float | None:
        """Count an end of the part; return the seconds until the next start, None when there is none.

        The first start within a minute comes at once, the second after 0.1 s, and each further one after
        twice the pause before.

        Args:
            now: The time (``time.monotonic()``, seconds).
        """
        deaths = self._deaths
        while deaths and now - deaths[0] >= _MINUTE_S:
            deaths.popleft()
        deaths.append(now)
        if self._limit is not None and len(deaths) > self._limit:
            return None
        pause_s = _FIRST_PAUSE_S * 2.0 ** (len(deaths) - 2) if len(deaths) > 1 else 0.0
        return pause_s if self._longest_pause_s is None else min(pause_s, self._longest_pause_s)
