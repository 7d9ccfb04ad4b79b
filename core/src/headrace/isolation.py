"""What a container needs whose part lives elsewhere: in another process, or on another machine.

A container that says ``builds_elsewhere`` gets a plan of its child (`ChildPlan`), brings it to another place and
builds it there (`BuiltElsewhere`). `Isolated` is a base for such containers: it knows the batch that runs and whose
requests may be taken back meanwhile (`RunningBatch`), and shows the scheduler whether the instance has its part now,
later or no more (`Liveness`, `Restarts`). `Link` and `Place` are what differs from one place to another: how bytes
move, and how a part is started and ended. ``headrace-workers`` is written with these names alone.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from headrace._backend import Backend, InitContext
from headrace._build.elements import ElementBuilder
from headrace._build.elsewhere import BuiltElsewhere, ChildPlan
from headrace._build.parts import BuildSite
from headrace._checked import Liveness, batch_alone
from headrace._plan.declared import ReadKeys, RequiredKeys, keys_named
from headrace._plan.element import Element
from headrace._plan.word import Word, keys_read_in, keys_required_by
from headrace._portable import error_text, portable
from headrace._running.entry import Entry
from headrace._running.parts import door_of
from headrace._running.threads import run_in_pool, took_token
from headrace.errors import InstanceLostError
from headrace.keys import Request

__all__ = [
    "BuiltElsewhere",
    "ChildPlan",
    "Isolated",
    "Link",
    "Liveness",
    "Place",
    "Restarts",
    "RunningBatch",
    "error_text",
    "portable",
    "run_in_pool",
]


def __getattr__(name: str) -> Any:
    if name == "run_on_helper":
        raise ImportError("headrace.isolation.run_on_helper is called run_in_pool")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_FIRST_PAUSE_S = 0.1
_MINUTE_S = 60.0

T = TypeVar("T")


class Isolated(Word):
    """Base of a container whose only child is built elsewhere, and may be lost there and come back.

    ``context.children[0]`` of ``init`` is the plan of the child. ``init`` sets ``reads`` to what the built child
    ``needs``, and ``min`` and ``max`` to its range.

    Attributes:
        alike: How many instances of the node are built with this one, whose parts may be started with its own;
            0 where this one is built alone.
        reads_all: All keys that the built child reads, also optional ones; ``init`` sets it.
    """

    takes = 1
    builds_elsewhere = True
    alike: int = 0
    reads_all: Iterable[str] = ()
    _liveness: Liveness  # the builder has set it before `init`

    @classmethod
    def _required_keys(cls, element: Element, built: Mapping[Element, Backend]) -> RequiredKeys:
        """Return the keys that the child needs: once it is built, those that it has reported."""
        made = built.get(element)
        if made is None:
            return keys_required_by(element.children[0], built)
        return dict.fromkeys(keys_named(made, None, "reads"), element.name)

    @classmethod
    def _read_keys(cls, element: Element, built: Mapping[Element, Backend]) -> ReadKeys:
        """Return what the child reads: once it is built, also those keys that only it has known."""
        known = getattr(built.get(element), "reads_all", ())
        return {**keys_read_in(element.children, built), **dict.fromkeys(known, element.name)}

    def _prepare(self, building: ElementBuilder, element: Element, at: BuildSite) -> None:
        """Keep the element: the instances of one container find each other by it."""
        self._word = element
        self.alike = building.keys.instance_num if at.index is not None else 0

    def _last_label(self, request: Request) -> str:
        return self._word.children[0].name

    @property
    def liveness(self) -> Liveness:
        """Whether the instance to which this container belongs can serve; see `Liveness`."""
        return self._liveness

    def siblings(self, context: InitContext, make: Callable[[], T]) -> T:
        """Return what the instances of this container share, made by the first with ``make()``."""
        return context.shared.get_or_create(("isolated", self._word), make)

    def running(self) -> RunningBatch:
        """Return the batch that the instance runs now; for `forward`, in the thread that runs it."""
        return RunningBatch(self._liveness.entries(), may_leave=bool(self._whole))

    def has_emitted(self, request: Request) -> bool:
        """Tell whether a part of the answer was given (``context.emit``): then nothing runs the request once more."""
        return self._emitted(request)

    def alone(self, request: Request) -> list[Request] | None:
        """Return the batch of one item alone, filled up with copies where the node says ``pad``.

        None where no such batch fits the range, and for an item that is itself such a copy.
        """
        return batch_alone(self, request)

    def lose(self, error: InstanceLostError) -> None:
        """Mark the instance as lost, unless the error has a node: then it ends its batch alone."""
        self._lose(error)

    def located(self, error: InstanceLostError) -> InstanceLostError:
        """Write node and instance into an error that ends its batch, and not the instance; return the error.

        An error without a node, raised by `forward` or among its outcomes, says that the instance itself is lost.
        """
        error.node, error.instance = self._node, self._index
        return error


class RunningBatch:
    """The batch that an instance runs: how long anybody waits for it, and whose requests were taken back.

    A part elsewhere works on copies. So the owner of a request may leave with it as soon as the copy was made,
    when its deadline passes: the container lends the request (`lend`), and asks for it again (`take_back`)
    before it writes the answer. Inside of a larger expression no owner may leave, since what stands around goes
    on with the request; there `lend` does nothing, and `take_back` always succeeds.

    Attributes:
        last_deadline: The last deadline of the batch (``time.monotonic()``, seconds); None where one of its
            requests has none, or where deadlines are not known.
        may_leave: Whether owners may leave with their requests.
    """

    __slots__ = ("_entries", "last_deadline", "may_leave")

    def __init__(self, entries: Sequence[Entry], *, may_leave: bool) -> None:
        known = [one.deadline for one in entries if one.deadline is not None]
        every = bool(known) and len(known) == len(entries)
        self.last_deadline: float | None = max(known) if every else None
        self._entries = {id(one.request): one for one in entries} if may_leave else {}
        self.may_leave = bool(self._entries)

    def is_over(self) -> bool:
        """Tell whether nobody waits for the batch any more: its last deadline has passed."""
        return self.last_deadline is not None and time.monotonic() >= self.last_deadline

    def lend(self, requests: Iterable[Request] | None = None) -> None:
        """Let the owners of requests leave with them, until `take_back` ends that; None for all of the batch."""
        entries = self._entries
        chosen = entries.values() if requests is None else map(entries.get, map(id, requests))
        for entry in chosen:
            if entry is not None and entry.lent is None:
                entry.lent = [None]

    def take_back(self, request: Request) -> bool:
        """End what `lend` allowed for a request; False when its owner has left with the request."""
        entry = self._entries.get(id(request))
        if entry is not None and entry.lent is not None:
            if not took_token(entry.lent):
                return False
            entry.lent = None
        return True

    def parts(self, request: Request) -> Any:
        """Return where the parts of a request's answer go; None where nobody reads any.

        It has ``put(part)``, which waits where as many parts wait as the node allows, and ``widen()``, after which none
        waits: call it when the part elsewhere has ended.
        """
        return door_of(request)

    def has_left(self, request: Request) -> bool:
        """Tell whether the owner of a request that was lent has left with it."""
        entry = self._entries.get(id(request))
        return entry is not None and entry.lent == []


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


# What differs from one place to another: how bytes move, and how a part is started and ended there.


class Link(Protocol):
    """How messages of plain values, and buffers beside them, move between a container and its part.

    Both sides have one. Each message is answered before the next is sent, by one thread at a time. A message
    and its buffers are made in turn: `begin`, `put` for each buffer, `send`; and read: `receive`, `take`.

    Attributes:
        awaits: Whether a message was sent whose answer has not been read.
    """

    awaits: bool

    def begin(self) -> None:
        """Begin the buffers of the next message."""

    def put(self, buffer: Any, size: int, kind: type[Any]) -> int:
        """Add a contiguous buffer of ``size`` bytes to the next message; return its place.

        Args:
            buffer: Anything with the buffer protocol. It is not changed before `send` has returned.
            size: Its size in bytes.
            kind: What `take` makes of it on the other side: ``bytes``, or ``bytearray``.

        Raises:
            OSError: There is no memory for the bytes.
        """

    def take(self, at: int, size: int, kind: type[Any]) -> Any:
        """Return a buffer of the message that was received, as the ``kind`` with which it was put.

        Args:
            at: Its place, as `put` has given it on the other side.
            size: Its size in bytes.
            kind: As the other side has given it to `put`.
        """

    def send(self, message: Any, *, awaits: bool = False) -> None:
        """Send a message of plain values, to which all buffers put since `begin` belong.

        Args:
            message: The message.
            awaits: Whether the other side answers it.

        Raises:
            EOFError: The other side has ended.
            OSError: There is no memory for the message; nothing was sent.
        """

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a message.

        Raises:
            EOFError: The other side has ended, or has called `end`; or `cut` was called here.
            TimeoutError: No message came within ``timeout_s`` seconds.
        """

    def end(self) -> None:
        """Tell the other side that no message will come any more; any thread may call it."""

    def cut(self) -> None:
        """Let a thread in `receive`, now or later, meet EOFError; any thread may call it."""

    def close(self) -> None:
        """Give back what the link holds; no thread uses it any more."""


class Place(Protocol):
    """One start of a part elsewhere: from its start to its end, with a `Link` of its own."""

    def start(self) -> tuple[Link, socket.socket]:
        """Start what will build the part.

        Returns:
            The link, and a stream socket on which all arrives that is no answer: pairs of a text and of
            bytes, pickled one after the other.

        Raises:
            SetupError: It cannot be started there.
        """

    def wait(self) -> None:
        """Wait until what was started has ended."""

    def kill(self) -> None:
        """End what was started at once, whatever it does; any thread may call it, also a second time."""

    def how_ended(self) -> tuple[str, str | None]:
        """Return how it has ended, as ``"of signal SIGKILL"``, and a hint or None; after `wait`."""

    def close(self) -> None:
        """Give back what `start` has opened besides the link and the socket."""
