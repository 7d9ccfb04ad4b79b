"""The bound of a node: who may wait there, who waits for room, and who counts and waits elsewhere.

The bound holds where a request enters. It counts requests that entered at the node and wait, there
or at another node. Running ones do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._run.requests.entry import OUTSIDE
from headrace._run.requests.refusals import overload_error

if TYPE_CHECKING:
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry


class Ticket:
    """Counts a request against the bound of the node where it entered, wherever its entries wait.

    Attributes:
        home: The node at which the request entered. None where no bound counts it, because a
            backend runs on the request.
        entered: Whether it was let in: from then on no bound stops its entries.
        waiting: Its entries that wait.
        walks: Whether a graph leads the request, which may go on at another node.
    """

    __slots__ = ("entered", "home", "waiting", "walks")

    def __init__(self, home: Node | None, *, entered: bool = True, walks: bool = False) -> None:
        self.home, self.entered, self.walks = home, entered, walks
        self.waiting: dict[Entry, None] = {}

    def waits(self, entry: Entry) -> None:
        """Note that an entry waits, in a queue or an inbox; in any thread."""
        self.entered = True
        if self.home is not None:
            self.waiting[entry] = None
            self.home.room.tickets[self] = None

    def leave(self, entry: Entry) -> None:
        """Note that an entry waits no more."""
        home = self.home
        if home is not None and self.waiting.pop(entry, self) is None and not self.waiting:
            home.room.tickets.pop(self, None)
            if home.room.outside:
                home.note_change()


class Room:
    """The bound of one node. All but `is_over` is steps.

    Attributes:
        outside: The entries that wait for room, first come first served.
        tickets: The requests that entered here with a ticket, and wait.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.outside: dict[Entry, None] = {}
        self.tickets: dict[Ticket, None] = {}

    @property
    def waiting(self) -> int:
        """How many requests that entered here wait, at any node, but for its inbox."""
        queue = self._node.queue
        return queue.count - queue.ticketed + len(self.tickets)

    @property
    def full(self) -> bool:
        """Whether as many wait as ``queue_size`` allows."""
        return self.waiting >= self._node.limits.queue_size

    @property
    def is_over(self) -> bool:
        """Whether somebody in the queue or the inbox has to wait for room; in any thread."""
        queue, ahead = self._node.queue, len(self._node.inbox) + len(self.tickets)
        ahead += queue.count - queue.ticketed
        return bool(self.outside) or ahead > self._node.limits.queue_size

    def waiting_entries(self) -> list[Entry]:
        """Return the entries that wait, here or elsewhere, of requests that entered here.

        It runs in any thread, as `RequestQueue.snapshot` does.
        """
        here = [entry for entry in self._node.queue.snapshot() if entry.ticket is None]
        return here + [entry for ticket in self.tickets.copy() for entry in ticket.waiting.copy()]

    def has_room(self, entry: Entry) -> bool:
        """Tell whether an entry may go into the queue; else it waits outside, or is refused."""
        entered = entry.ticket is not None and entry.ticket.entered
        if entered or not (self.outside or self.full):
            return True
        self._node.dispatch()  # it may make room
        if not (self.outside or self.full):
            return True
        if self._node.limits.queue_full == "wait":
            self.outside[entry] = None
            entry.state = OUTSIDE
        else:
            self._node.settle(entry, overload_error(self._node, self.waiting))
        return False

    def put_in(self) -> None:
        """Let entries that wait for room into the queue."""
        while self.outside and not self.full:
            entry = next(iter(self.outside))
            del self.outside[entry]
            self._node.queue.add(entry)
            if entry.room is not None:
                entry.room()
