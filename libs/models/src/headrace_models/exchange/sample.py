"""Which requests of an exchange both models run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_models.exchange.options import Exchange

__all__ = ["CLIENT_DIGEST", "Sample", "client_of"]

CLIENT_DIGEST: Final = "client_digest"
"""The key of ``context`` that tells the clients of requests apart, a text. Requests without it are those of one client."""

_MOST_OPEN = 64
"""So many sampled requests are in flight, or wait to be compared."""
_FEW_CLIENTS = 3
"""From so many clients on the pairs of each are bounded."""


def client_of(request: Mapping[str, Any]) -> str:
    """Return what tells the client of a request from others, ``""`` where nothing does."""
    context, client = request.get(keys.CONTEXT), None
    if isinstance(context, Mapping):
        with suppress(Exception):  # a mapping of the user may raise anything
            client = context.get(CLIENT_DIGEST)
    return client if isinstance(client, str) else ""


class Sample:
    """Draws requests, and gives places to those that both models run.

    Attributes:
        not_sampled: How many were drawn, and not run or compared, by the reason.
    """

    def __init__(
        self,
        exchange: Exchange,
        draw: Callable[[], float],
        *,
        queue_size: int,
        is_stateful: bool,
    ) -> None:
        """Begin with no request.

        Args:
            exchange: Gives the shares.
            draw: Returns a random number in [0, 1).
            queue_size: How many requests may wait for the new model.
            is_stateful: Whether the requests are those of sequences.
        """
        self._exchange, self._draw = exchange, draw
        self._most_open = min(_MOST_OPEN, queue_size)
        self._is_stateful = is_stateful
        self._lock = threading.Lock()
        self._open = 0
        self._of_client = Counter[str]()
        self.not_sampled = Counter[str]()

    def is_drawn(self) -> bool:
        """Draw, and return whether both models are to run a request."""
        return self._draw() < self._exchange.share

    def take(self, client: str) -> bool:
        """Take a place for a request that is drawn. False, and counted, if there is none for it."""
        with self._lock:
            if reason := self._refusal(client):
                self.not_sampled[reason] += 1
                return False
            self._open += 1
            self._of_client[client] += 1
            return True

    def _refusal(self, client: str) -> str:
        if self._is_stateful:
            return "sequences"
        if self._open >= self._most_open:
            return "no room"
        pairs, clients = self._of_client[client], len({*self._of_client, client})
        part = (pairs + 1) / self._exchange.requests
        is_above = pairs > 0 and clients >= _FEW_CLIENTS and part > self._exchange.per_client
        return "of one client" if is_above else ""

    def give_back(self, client: str, *, counts: bool) -> None:
        """Give a place back. A pair that does not count for the verdict does not count for its client either."""
        with self._lock:
            self._open -= 1
            if not counts:
                self._of_client[client] -= 1
                if not self._of_client[client]:
                    del self._of_client[client]

    def refuse(self, reason: str) -> None:
        """Count a request that cannot be compared."""
        with self._lock:
            self.not_sampled[reason] += 1
