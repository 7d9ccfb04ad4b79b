"""Pauses before something that has failed is tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["back_off"]


def back_off(
    failures: int,
    *,
    first_s: float = 0.5,
    most_s: float = 30.0,
    chance: Callable[[], float] = lambda: 0.5,
) -> float:
    """Return the seconds before the next attempt: twice as many after each failure.

    Args:
        failures: How many attempts have failed since it went well, the last one not counted.
        first_s: The pause after the first failure, and the shortest.
        most_s: The longest pause.
        chance: Returns a number from 0 to 1, for pauses from three to five quarters, so that many that have failed together
            do not come together. Without it no pause is left to chance.
    """
    pause_s = first_s * 2.0 ** min(failures, 64) * (0.75 + 0.5 * chance())
    return float(min(most_s, max(first_s, pause_s)))
