"""How many batches run at a time, and which waiting requests are next: for `Concurrency`."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import headrace

__all__ = ["Limit", "Room", "of_process"]

_OF_PROCESS: dict[str, Limit] = {}
_MAKING = threading.Lock()


class Kept(NamedTuple):
    """A request of a batch, with the context that keeps it as PENDING where it has to wait.

    Attributes:
        handle: Its handle.
        weight: Its weight.
        context: The context.
    """

    handle: Any
    weight: int
    context: headrace.InitContext


class Room:
    """Where the requests of one node wait. Only `Limit` looks into it, under its lock.

    Attributes:
        waits: The requests that wait by their handles, the oldest first. Who ends leaves.
        coming: The handles of the requests resumed because the node may run a batch. None where it may not.
        gathered: Whether they are the batch. Otherwise one of them has come first, and calls the others.
    """

    def __init__(self) -> None:
        self.waits: OrderedDict[Any, Kept] = OrderedDict()
        self.coming: set[Any] = set()
        self.gathered = False


class Limit:
    """So many batches run at a time, over nodes that wait in turn. Any thread may use it.

    A node that may run a batch has one request resumed, the newest. While that occupies the instance it calls as many as a
    batch takes, the oldest first, which then come together: resumed one by one to an idle node they would run one by one.

    Args:
        name: Its name.
        most: How many batches run at a time.
        shared: Whether the pipelines of the process share it.
    """

    def __init__(self, name: str, most: int, *, shared: bool) -> None:
        self.name, self.most, self.shared = name, most, shared
        self._lock = threading.Lock()
        self._running = self._batches = 0  # a node that was told to come counts as running
        self._line: deque[Room] = deque()
        self._rooms: list[Room] = []  # one per instance

    def check(self, most: int, *, shared: bool) -> None:
        """Refuse another size.

        Raises:
            SetupError: It is declared in another size, or shared in one place and not in the other.
        """
        if (self.most, self.shared) != (most, shared):
            what = f"Concurrency {self.name!r} has most = {self.most} and shared = {str(self.shared).lower()} already"
            hint = f"Write the same everywhere, not most = {most}, shared = {str(shared).lower()}."
            raise SetupError(what, hint=hint)

    def enter(self, room: Room, batch: Sequence[Kept], takes: float) -> bool:
        """Let a batch run, or keep it. True where it runs, and `leave` has to follow.

        Args:
            room: That of its node.
            batch: Its requests.
            takes: The greatest weight of a batch there.
        """
        told: list[tuple[Room, Kept]] = []
        waiting = {entry.handle: entry for entry in batch}
        with self._lock:
            expected = any(entry.handle in room.coming for entry in batch)
            if expected and (room.gathered or not room.waits):
                room.coming, room.gathered = set(), False
                told = self._line_up(room)
                self._batches += 1
                runs = True
            elif expected:
                told, runs = self._gather(room, takes), False
                room.waits.update(waiting)
            elif self._running < self.most and not self._line:
                self._running += 1
                self._batches += 1
                runs = True
            else:
                room.waits.update(waiting)
                told, runs = self._line_up(room), False
        if not runs:
            self._watch(room, batch)
        self._tell(told)
        return runs

    def _watch(self, room: Room, batch: Sequence[Kept]) -> None:
        """Have the room told once of the end of each request that waits in it, however often it does."""
        for entry in batch:
            notes, end = entry.handle.notes, partial(self._end, room)
            if Room not in notes:
                notes[Room] = room
                if not entry.context.request.on_end(entry.handle, end):
                    end(entry.handle)

    def _gather(self, room: Room, takes: float) -> list[tuple[Room, Kept]]:
        told: list[tuple[Room, Kept]] = []
        room.coming, room.gathered = set(), True
        while room.waits:
            entry = next(iter(room.waits.values()))
            takes -= entry.weight
            if takes < 0 and told:
                break
            room.waits.popitem(last=False)
            room.coming.add(entry.handle)
            told.append((room, entry))
        return told

    def _line_up(self, room: Room) -> list[tuple[Room, Kept]]:
        if room.waits and not room.coming and room not in self._line:
            self._line.append(room)
        return self._next()

    def _next(self) -> list[tuple[Room, Kept]]:
        """Return the requests to resume, each from the room that has waited longest."""
        told = []
        while self._running < self.most and self._line:
            room = self._line.popleft()
            handle, newest = room.waits.popitem()
            room.coming, room.gathered = {handle}, False
            self._running += 1
            told.append((room, newest))
        return told

    def _tell(self, told: Sequence[tuple[Room, Kept]]) -> None:
        for room, entry in told:
            asks = entry.context.request
            if not asks.resume(entry.handle) and asks.unwanted(entry.handle):
                self._end(room, entry.handle)  # Ctrl-C came before the room could hear of its end

    def _end(self, room: Room, handle: Any) -> None:
        """Note that a request of a room has ended, which waits or has been told to come."""
        with self._lock:
            if room.waits.pop(handle, None) is not None:
                if not room.waits and room in self._line:
                    self._line.remove(room)
                return
            if handle not in room.coming:
                return
            room.coming.remove(handle)
            if room.coming:
                return
            self._running -= 1
            told = self._line_up(room)
        self._tell(told)

    def leave(self) -> None:
        """End a batch."""
        with self._lock:
            self._running -= 1
            told = self._next()
        self._tell(told)

    def add(self, room: Room) -> None:
        """Count an instance whose requests wait in a room."""
        with _MAKING:
            self._rooms.append(room)
            if self.shared:
                _OF_PROCESS.setdefault(self.name, self)

    def remove(self, room: Room) -> None:
        """Forget an instance that is closed; after the last one another pipeline may declare another size."""
        with _MAKING:
            self._rooms.remove(room)
            if not self._rooms and _OF_PROCESS.get(self.name) is self:
                del _OF_PROCESS[self.name]

    def statistics(self) -> dict[str, int]:
        """Return how many batches run, may run and have run, and how many requests wait."""
        with self._lock:
            waits = sum(len(room.waits) for room in {*self._rooms})
            counts = {"running": self._running, "most": self.most, "waiting": waits}
            return {**counts, "batches": self._batches}


def of_process(name: str, most: int) -> Limit:
    """Return the limit of a name that the pipelines of this process share; the first that asks makes it."""
    with _MAKING:
        limit = _OF_PROCESS.get(name)
        if limit is None:
            limit = _OF_PROCESS[name] = Limit(name, most, shared=True)
        return limit


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OF_PROCESS.clear)  # nothing runs there
