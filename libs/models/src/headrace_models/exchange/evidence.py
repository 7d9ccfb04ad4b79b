"""What the pairs of an exchange have shown, and whether the new model has proved itself."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import (
    BackendError,
    ClosedError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
)
from headrace_models.exchange.pair import CANCELLED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_models.exchange.options import Exchange

__all__ = ["ANSWERED", "Evidence", "kind_of"]

ANSWERED: Final = "answered"
_NEW_FAILED: Final = "new failed"
_NEW_CRASHED: Final = "new crashed"
_OLD_FAILED: Final = "old failed"
_BOTH_FAILED: Final = "both failed"
_CANCELLED: Final = "cancelled"
_ENDS: Final = {
    "deadline": DeadlineExceededError,
    "overloaded": OverloadedError,
    "closed": ClosedError,
}
"""Errors that tell of the load, the client or the operator, and nothing of a model."""
_COUNTING: Final = (ANSWERED, _NEW_FAILED, _NEW_CRASHED)
_KINDS: Final = (*_COUNTING, _OLD_FAILED, _BOTH_FAILED, _CANCELLED, *_ENDS)

_WORST = 10


def kind_of(errors: Sequence[BaseException | None]) -> str:
    """Return the kind of a pair by the errors of both models, that of the old one first.

    ``answered``: by both. ``new failed``: the old model has answered. ``new crashed``: the old model has refused the request with
    `InputError`, and the new one fails with `BackendError`. ``old failed``: the new model has answered. ``both failed``: all other
    failures of both. ``cancelled``, ``deadline``, ``overloaded`` and ``closed``: so has at least one of them ended.
    """
    for error in errors:
        if error is CANCELLED:
            return _CANCELLED
        for kind, cls in _ENDS.items():
            if isinstance(error, cls):
                return kind
    old, new = errors
    if old is None:
        return ANSWERED if new is None else _NEW_FAILED
    if new is None:
        return _OLD_FAILED
    is_crash = isinstance(old, InputError) and isinstance(new, BackendError)
    return _NEW_CRASHED if is_crash else _BOTH_FAILED


class Evidence:
    """What the pairs have shown. The old model comes first in each pair.

    Attributes:
        pairs: How many pairs there were of each kind; see `kind_of`.
        clients: The clients of those that count.
        rows, differing: How many rows were compared, and how many of them differ.
    """

    def __init__(self) -> None:
        self.pairs = Counter(dict.fromkeys(_KINDS, 0))
        self.clients: set[str] = set()
        self.rows = self.differing = 0
        self._ms: tuple[list[float], list[float]] = [], []
        self._worst: list[tuple[float, int, dict[str, Any]]] = []
        self._number = itertools.count()

    @property
    def compared(self) -> int:
        """How many pairs have an answer of the old model."""
        return self.pairs[ANSWERED] + self.pairs[_NEW_FAILED]

    def note(self, kind: str, client: str) -> bool:
        """Count a pair of a client, and return whether it counts for the verdict."""
        self.pairs[kind] += 1
        if counts := kind in _COUNTING:
            self.clients.add(client)
        return counts

    def note_rows(
        self,
        ms: Sequence[float],
        distances: Sequence[float],
        about: Callable[[int], dict[str, Any]],
    ) -> None:
        """Count the rows of a pair of answers.

        Args:
            ms: The milliseconds of each model.
            distances: How far each row is apart. Above 1 it differs.
            about: Gives what is told of a row, if it is among the worst.
        """
        self.rows += len(distances)
        for side, side_ms in enumerate(ms):
            self._ms[side].append(side_ms)
        for row, far in enumerate(distances):
            if far > 1:
                self.differing += 1
                if len(self._worst) < _WORST:
                    heapq.heappush(self._worst, (far, next(self._number), about(row)))
                elif far > self._worst[0][0]:
                    heapq.heapreplace(self._worst, (far, next(self._number), about(row)))

    def verdict(self, exchange: Exchange) -> tuple[str, str]:
        """Return ``passed`` or ``failed`` and the reasons, ``""`` for both as long as there is too little evidence.

        More failures than may be of all that are to be compared are enough: no further pair changes that.
        """
        crashed = self.pairs[_NEW_CRASHED]
        worse, total = self.pairs[_NEW_FAILED] + crashed, self.compared + crashed
        if worse / (exchange.requests + crashed) > exchange.errors:
            failures = f"it fails {worse} of {total} requests that the old one answers or refuses"
            return "failed", f"{failures}, and {exchange.errors:.2%} may be"
        if self.compared < exchange.requests:
            return "", ""
        texts = [] if self.rows else ["both have answered no request"]
        for name, (old, new) in self._times().items():
            if new > exchange.slower * old:
                most = f"{exchange.slower:g} times {old:.3g} ms"
                texts.append(f"{name} is {new:.3g} ms, and {most} may be")
        part = self.differing / max(1, self.rows)
        if part > exchange.differ:
            texts.append(f"{part:.2%} of the rows differ, and {exchange.differ:.2%} may")
        return "failed" if texts else "passed", "; ".join(texts)

    def _times(self) -> dict[str, list[float]]:
        ordered = [sorted(times) for times in self._ms]
        if not ordered[0]:
            return {}
        return {
            f"p{part}": [times[math.ceil(len(times) * part / 100) - 1] for times in ordered]
            for part in (50, 99)
        }

    def summary(self, requests: int) -> str:
        """Return in a few words how many pairs there were of each kind, and how many clients."""
        kinds = ", ".join(f"{number} {kind}" for kind, number in self.pairs.items() if number)
        text = f"{self.compared} of {requests} requests compared, clients: {len(self.clients)}"
        return f"{text}, pairs: {kinds or 0}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        pairs = {**self.pairs}
        old_failed = pairs[_NEW_CRASHED] + pairs[_OLD_FAILED] + pairs[_BOTH_FAILED]
        new_failed = pairs[_NEW_CRASHED] + pairs[_NEW_FAILED] + pairs[_BOTH_FAILED]
        worst = sorted(self._worst, key=lambda pair: (-pair[0], pair[1]))
        return {
            "compared": self.compared,
            "clients": len(self.clients),
            "pairs": pairs,
            "failed": [old_failed, new_failed],
            "rows": self.rows,
            "differ": self.differing,
            "ms": self._times(),
            "worst": [
                {"distance": far if math.isfinite(far) else None, **row} for far, _, row in worst
            ],
        }
