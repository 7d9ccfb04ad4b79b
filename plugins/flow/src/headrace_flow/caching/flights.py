"""Requests that wait for the run of an equal request, and their answers: for `Once`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import headrace
    from headrace.keys import Request
    from headrace_flow.caching.answers import Answer

__all__ = ["AGAIN", "Flights"]


AGAIN = Exception("an equal request runs next")
"""Stands for the answer of a run that is for nobody but its own request."""


class Flight:
    """What runs, or is to run next, for all requests of one content.

    Attributes:
        waits: The handles of the requests that are kept as PENDING, the oldest first, each with the context that keeps it.
            Who ends leaves.
        next: That of the one that was resumed to run in place of the first. None while one runs.
    """

    def __init__(self) -> None:
        self.waits: OrderedDict[Any, headrace.InitContext] = OrderedDict()
        self.next: Any = None


class Begun(NamedTuple):
    """The fates of the requests of a batch, by their places.

    Attributes:
        left: The requests that run.
        firsts: The running requests whose answer others get, by their content.
        twins: Requests that get the answer of a running request, with its content.
        waits: Requests kept as PENDING.
    """

    left: list[int]
    firsts: dict[bytes, int]
    twins: dict[int, bytes]
    waits: list[int]


class Flights:
    """The runs in flight, by content, and the requests waiting for them. The instances of a node have one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_content: dict[bytes, Flight] = {}
        self._counts = {"ran": 0, "shared": 0, "unshared": 0}

    def begin(
        self,
        batch: list[Request],
        new: dict[int, Any],
        contents: dict[int, bytes | None],
        least: int,
        context: headrace.InitContext,
    ) -> Begun:
        """Decide which requests run; where they weigh less than ``least``, all of them do.

        Args:
            batch: All items.
            new: The handles of the requests of which no answer is there, by their places. None for one that has just come.
            contents: What is to be run, by place. None where it cannot be compared.
            least: The least weight of a batch.
            context: The context of the backend.
        """
        begun, flights = Begun([], {}, {}, []), self._by_content
        waits: list[tuple[bytes, Any]] = []
        with self._lock:
            for i, handle in new.items():
                content = contents[i]
                flight = None if content is None else flights.get(content)
                if content is None:
                    begun.left.append(i)
                elif content in begun.firsts:
                    begun.twins[i] = content
                elif flight is None or (handle is not None and flight.next == handle):
                    begun.left.append(i)
                    begun.firsts[content] = i
                else:
                    begun.waits.append(i)
            if begun.left and sum(batch[i].get("request_size", 1) for i in begun.left) < least:
                firsts = {place: i for place, i in begun.firsts.items() if place in flights}
                begun = Begun([*new], firsts, {}, [])
            for content in begun.firsts:
                flights.setdefault(content, Flight()).next = None
            for i in begun.waits:
                known: Any = contents[i]  # what cannot be compared runs
                handle = context.request.keep(batch[i])
                flights[known].waits[handle] = context
                waits.append((known, handle))
        for known, handle in waits:
            end = partial(self._end, known)
            if not context.request.on_end(handle, end):
                end(handle)
        return begun

    def land(self, content: bytes, answer: Answer | Exception | None) -> None:
        """End a run: the requests waiting for it get its answer, or run themselves.

        Args:
            content: What was run.
            answer: What it gave. `AGAIN` where that is for nobody else. None where it cannot be copied.
        """
        if answer is AGAIN:
            self._hand_over(content)
            return
        with self._lock:
            waits = self._by_content.pop(content).waits
        for handle, context in waits.items():
            if isinstance(answer, Exception):
                self.count("shared", context.request.finish(handle, answer))
            elif answer is not None and answer.keys == {"result"}:
                self.count("shared", context.request.finish(handle, answer.values()["result"]))
            else:  # only the thread that runs a request may write its other keys: it brings its answer along
                handle.notes[Flights] = content, answer
                context.request.resume(handle)

    def _hand_over(self, content: bytes) -> None:
        """Let the next one run, which may end before it does; the others wait on."""
        with self._lock:
            flight = self._by_content[content]
            if not flight.waits:
                del self._by_content[content]
                return
            handle, context = flight.waits.popitem(last=False)
            flight.next = handle
        asks = context.request
        if not asks.resume(handle) and asks.unwanted(handle):
            self._end(content, handle)  # Ctrl-C came before the flight could hear of its end

    def _end(self, content: bytes, handle: Any) -> None:
        """Note that a request has ended, which waits or was to run: the next one runs in its place."""
        with self._lock:
            flight = self._by_content.get(content)
            if flight is None or flight.waits.pop(handle, None) is not None:
                return
            if flight.next != handle:
                return
            flight.next = None
        self._hand_over(content)

    def bring(
        self, request: Request, handle: Any, contents: dict[int, bytes | None], place: int
    ) -> bool:
        """Write the answer that a resumed request brings along. False where it has to run.

        One whose answer cannot be copied has no content any more: it runs for itself.
        """
        content, answer = (
            (None, None) if handle is None else handle.notes.pop(Flights, (None, None))
        )
        if content is None or content != contents[place]:
            return False
        if answer is None:
            contents[place] = None
            return False
        request.update(answer.values())
        return True

    def count(self, what: str, number: int) -> None:
        """Count requests."""
        with self._lock:
            self._counts[what] += number

    def statistics(self) -> dict[str, int]:
        """Return how many requests ran, got the answer of another one, and could not share."""
        with self._lock:
            return {**self._counts}
