"""Who may wait at a node: its bound, who waits for room, and the requests that are counted here and wait elsewhere.

The bound holds where a request enters. It counts requests that entered at the node and wait, there or at another node. Running
ones do not count.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any

from headrace._running.entry import OUTSIDE
from headrace._running.refusals import overload_error

if TYPE_CHECKING:
    from headrace._running.entry import Entry


class Ticket:
    """Counts one request against the bound of the node at which it entered, wherever its entries wait.

    Attributes:
        home: The node at which the request entered. None where no bound counts it: a backend runs on the request.
        priority, arrival: Of the request, for who is shed first.
        entered: Whether it was let in: from then on no bound stops its entries.
        waiting: Its entries that wait.
        listed: Whether it stands in the list of its home by age.
        walks: Whether a graph leads the request from node to node, so that it may go on at another one.
    """

    __slots__ = ("arrival", "entered", "home", "listed", "priority", "waiting", "walks")

    def __init__(
        self,
        home: Any,
        priority: int = 0,
        arrival: float = 0.0,
        *,
        entered: bool = True,
        walks: bool = False,
    ) -> None:
        self.home, self.entered, self.walks = home, entered, walks
        self.priority, self.arrival = priority, arrival
        self.listed = False
        self.waiting: dict[Entry, None] = {}

    def waits(self, entry: Entry) -> None:
        """Note that an entry waits."""
        self.entered = True
        if self.home is not None:
            self.waiting[entry] = None
            self.home.room.tickets.add(self)

    def leave(self, entry: Entry) -> None:
        """Note that an entry waits no more."""
        if self.waiting.pop(entry, self) is None and not self.waiting:
            self.home.room.tickets.remove(self)
            if self.home.room.outside:
                self.home.note_change()


class Tickets:
    """The requests that entered at one node with a ticket, and wait there or elsewhere.

    Attributes:
        count: How many there are.
    """

    def __init__(self) -> None:
        self.count = 0
        self._by_age: list[tuple[int, float, int, Ticket]] = []
        self._order = itertools.count()

    def add(self, ticket: Ticket) -> None:
        """Note that an entry of a ticket waits."""
        if len(ticket.waiting) == 1:
            self.count += 1
            if not ticket.listed:
                ticket.listed = True
                key = (ticket.priority, ticket.arrival, next(self._order))
                heapq.heappush(self._by_age, (*key, ticket))

    def remove(self, _: Ticket) -> None:
        """Note that no entry of a ticket waits any more; its place in the list goes when it is come upon."""
        self.count -= 1
        if len(self._by_age) > 64 + 4 * self.count:
            gone = [one[3] for one in self._by_age if not one[3].waiting]
            for ticket in gone:
                ticket.listed = False
            self._by_age = [one for one in self._by_age if one[3].waiting]
            heapq.heapify(self._by_age)

    def snapshot(self) -> list[Entry]:
        """Return the entries that wait; in any thread."""
        return [entry for one in self._by_age.copy() for entry in one[3].waiting.copy()]

    def oldest_of_lowest(self) -> Ticket | None:
        """Return the oldest ticket of the lowest priority that waits; None for none."""
        while self._by_age:
            ticket = self._by_age[0][3]
            if ticket.waiting:
                return ticket
            heapq.heappop(self._by_age)
            ticket.listed = False
        return None


class Room:
    """The bound of one node. All but `may_be_full` is steps.

    Attributes:
        outside: The entries that wait for room, first come first served.
        tickets: The requests that entered here with a ticket, and wait.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self.outside: dict[Entry, None] = {}
        self.tickets = Tickets()

    @property
    def waiting(self) -> int:
        """How many requests wait, at this node or another, that entered here."""
        queue = self._node.queue
        return int(queue.count - queue.ticketed + self.tickets.count)

    @property
    def full(self) -> bool:
        """Whether as many wait as ``queue_size`` allows."""
        return bool(self.waiting >= self._node.limits.queue_size)

    def may_be_full(self, count: int) -> bool:
        """Tell whether some of ``count`` newcomers may have to wait for room, behind those that are in the box; in any thread.

        Threads that ask at the same moment do not see each other.
        """
        box = self._node.box
        ahead = self.waiting + len(box.steps) + len(box.arrivals)
        return bool(self.outside) or bool(ahead + count > self._node.limits.queue_size)

    def waiting_entries(self) -> list[Entry]:
        """Return the entries that wait, here or elsewhere, of requests that entered here; in any thread, as `snapshot` does."""
        here = [one for one in self._node.queue.snapshot() if one.ticket is None]
        return here + self.tickets.snapshot()

    def has_room(self, entry: Entry) -> bool:
        """Tell whether an entry may go into the queue; else it waits outside, or is refused."""
        if entry.ticket is not None and entry.ticket.entered:
            return True
        if not self.outside and not self.full:
            return True
        self._node.dispatch()  # it may make room
        if not self.outside and not self.full:
            return True
        waiting, rule = self.waiting, self._node.limits.queue_full
        if rule == "wait":
            self.outside[entry] = None
            entry.state = OUTSIDE
            return False
        if rule == "shed_oldest" and self._shed_oldest(entry.priority, waiting):
            return True
        self._node.settle(entry, overload_error(self._node, waiting, shed=False))
        return False

    def _shed_oldest(self, priority: int, waiting: int) -> bool:
        """Fail the oldest request of the lowest priority, if that is ``priority`` or lower, here or at another node."""
        here, elsewhere = self._node.queue.oldest_of_lowest(), self.tickets.oldest_of_lowest()
        found = [(one.priority, one.arrival) for one in (here, elsewhere) if one is not None]
        if not found or min(found)[0] > priority:
            return False
        if elsewhere is not None and (elsewhere.priority, elsewhere.arrival) == min(found):
            here = next(iter(elsewhere.waiting))
        assert here is not None  # noqa: S101 - one of the two was found
        here.node.fail_waiting(overload_error(self._node, waiting, shed=True), [here])
        return True

    def put_in(self) -> None:
        """Let entries that wait for room into the queue."""
        while self.outside and not self.full:
            entry = next(iter(self.outside))
            del self.outside[entry]
            self._node.queue.add(entry)
            if entry.room is not None:
                entry.room()
