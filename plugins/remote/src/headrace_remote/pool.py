"""Which server gets the next call: a breaker per server, and the fewest calls outstanding first."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from headrace_formats import back_off

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["Breaker", "Pool"]

_LONGEST_S: Final = 30.0
"""The longest time between two looks at a server that is away, in seconds."""


class Breaker:
    """Whether a server counts as there, and when to look at it again. It has no lock of its own.

    A server is away after one failure that says so itself, or after several others in a row. It is looked at
    after ``wait_s``, then after twice that, and so on up to 30 s, until a look succeeds.

    Args:
        failures: After how many failures in a row the server is away.
        wait_s: The time to the first look, in seconds.
        clock: Gives the time in seconds.
    """

    def __init__(
        self, failures: int, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.away = False
        self._most = failures
        self._wait_s = wait_s
        self._clock = clock
        self._failed = 0
        self._looks = 0
        self._due = clock() + wait_s

    def failed(self, *, at_once: bool = False) -> None:
        """Note a failure; ``at_once``: it alone says that the server is away."""
        self._failed += 1
        if at_once or self._failed >= self._most:
            self.away = True

    def succeeded(self) -> None:
        """Note that the server has answered."""
        self.away = False
        self._failed = self._looks = 0

    def looked(self, *, ready: bool) -> None:
        """Note what a look at the server has found, and when the next one is due."""
        if ready:
            self.succeeded()
        else:
            self.failed(at_once=True)
        wait = back_off(self._looks, first_s=self._wait_s, most_s=max(_LONGEST_S, self._wait_s))
        if not ready:
            self._looks += 1
        self._due = self._clock() + wait

    def due_in_s(self) -> float:
        """Return the seconds until the next look at the server; 0 if it is due."""
        return max(0.0, self._due - self._clock())


class Looked(Protocol):
    """A server as a `Pool` needs it."""

    @property
    def breaker(self) -> Breaker:
        """The server's breaker."""

    def close(self) -> None:
        """End the server's connection."""


S = TypeVar("S", bound=Looked)


class Pool(Generic[S]):
    """The servers of a node.

    Args:
        servers: The servers, at least one.
        look: Asks servers whether they are ready: a bool for each, None for one that does not answer. It is called in a
            thread of the pool.
        clock: Gives the time in seconds.
        silent: Is called with those that did not answer, once they count as away, to give up their calls. Calls of one
            that was away already are left to end: it may have said that it ends what it has begun.
    """

    def __init__(
        self,
        servers: Sequence[S],
        look: Callable[[Sequence[S]], Sequence[bool | None]],
        clock: Callable[[], float] = time.monotonic,
        silent: Callable[[Sequence[S]], object] = lambda _: None,
    ) -> None:
        self.servers = list(servers)
        self._look = look
        self._silent = silent
        self._clock = clock
        self._changed = threading.Condition()
        self._outstanding = [0] * len(self.servers)
        self._turn = 0
        self._closed = False
        self._thread: threading.Thread | None = None
        self._watchers: list[Callable[[bool], object]] = []
        self._told = False
        self._telling = threading.RLock()

    def watch(self, function: Callable[[bool], object]) -> None:
        """Have ``function(away)`` called whenever the last server goes away, or a first one is back; now, if none is there."""
        with self._telling:
            self._watchers.append(function)
            if self._told:
                function(True)

    def unwatch(self, function: Callable[[bool], object]) -> None:
        """End what `watch` has begun; without that do nothing."""
        with self._telling:
            if function in self._watchers:
                self._watchers.remove(function)

    def _tell(self) -> None:
        with self._telling:
            away = self.away
            if away is not self._told:
                self._told = away
                for function in [*self._watchers]:
                    function(away)

    def start(self) -> None:
        """Start the thread that looks at the servers."""
        self._thread = threading.Thread(
            target=self._keep_looking, name="headrace-remote", daemon=True
        )
        self._thread.start()

    def outstanding(self, server: S) -> int:
        """Return how many calls of a server have not ended."""
        return self._outstanding[self.servers.index(server)]

    def take(self, without: Collection[S] = ()) -> S | None:
        """Count a call of the server that has the fewest, among those that are there. `give_back` ends it.

        Of servers with equally many the one that comes next in turn is taken.

        Args:
            without: Servers that are not to be taken.

        Returns:
            The server. None if there is none.
        """
        with self._changed:
            number = len(self.servers)
            best = None
            for step in range(number):
                place = (self._turn + step) % number
                server = self.servers[place]
                fewer = best is None or self._outstanding[place] < self._outstanding[best]
                if fewer and not server.breaker.away and server not in without:
                    best = place
            if best is None:
                return None
            self._turn = best + 1
            self._outstanding[best] += 1
            return self.servers[best]

    def give_back(self, server: S) -> None:
        """End a call that `take` has counted."""
        with self._changed:
            self._outstanding[self.servers.index(server)] -= 1

    def answered(self, server: S) -> None:
        """Note that a server has answered a call."""
        if server.breaker.away:
            # A look has found it not ready meanwhile, or another call did: only a look brings it back.
            return
        server.breaker.succeeded()

    def failed(self, server: S, *, at_once: bool) -> None:
        """Note that a server could not be reached, or has not answered in time."""
        with self._changed:
            server.breaker.failed(at_once=at_once)
            self._changed.notify_all()
        self._tell()

    @property
    def away(self) -> bool:
        """Whether no server is there."""
        return all(server.breaker.away for server in self.servers)

    def wait(self, until: float, only: S | None = None) -> bool:
        """Wait until a server is there. False if none is at the time ``until`` of the clock, or the pool is closed.

        Args:
            until: The time on the clock.
            only: The server that must be there. Default: any.
        """
        among = self.servers if only is None else [only]
        with self._changed:
            while not self._closed:
                if any(not server.breaker.away for server in among):
                    return True
                left = until - self._clock()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return False

    @property
    def closed(self) -> bool:
        """Whether the pool was closed."""
        return self._closed

    def look(self) -> None:
        """Look at the servers for which it is time, and note what they say."""
        due = [server for server in self.servers if not server.breaker.due_in_s()]
        away = [server.breaker.away for server in due]
        answers = self._look(due) if due else ()
        with self._changed:
            for server, ready in zip(due, answers, strict=True):
                server.breaker.looked(ready=bool(ready))
            self._changed.notify_all()
        self._tell()
        silent = [
            server
            for server, ready, before in zip(due, answers, away, strict=True)
            if ready is None and not (before and self.outstanding(server))
        ]
        if silent:
            self._silent(silent)

    def _keep_looking(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                left = min(server.breaker.due_in_s() for server in self.servers)
                if left > 0:
                    self._changed.wait(left)
                    continue
            self.look()

    def close(self) -> None:
        """End the thread, free the waiting callers, and close the servers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for server in self.servers:
            server.close()  # what still runs there ends with an error
        if self._thread is not None:
            self._thread.join()
