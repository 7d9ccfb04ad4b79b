"""The timers of an HTTP connection: how long and how slowly its client sends and receives, and how long it may be idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sized

    from headrace_serve.admission.limits import Limits

__all__ = ["Deadlines"]


class Connection(Protocol):
    """The part of a connection that its timers need."""

    loop: Any
    transport: Any

    @property
    def pipeline(self) -> Sized:
        """The requests that wait behind another one."""

    def is_idle(self) -> bool:
        """Return whether the connection has answered a request, and receives no other one."""

    def count_unsent(self) -> None:
        """Count the bytes that wait in the buffer of the connection."""

    def refuse_rest(self, status: int, text: str, code: str) -> None:
        """Refuse a request that comes too late, and close."""


class Deadlines:
    """Three timers.

    The first watches receiving. It runs while a request is incomplete after a read, and from the start of a
    connection to its first byte, and ends a connection whose request is late or whose body comes too slowly.

    The second watches sending. It runs while the buffer of the connection is full, or is not empty after the last
    byte of an answer: a client that receives nothing would otherwise hold the buffer for ever.

    The third ends an idle connection. No answer restarts it. When it is due, it checks when the last answer was.

    Attributes:
        receiving, sending, idle: The timers. None: it does not run.
        ends: The time of the loop at which the request must have arrived.
        idle_since: The time of the loop at which the last answer was given, or the connection was made.
        body_bytes: What has come of the body since the last look at it.
        in_body, was_in_body: Whether any of the body has come, and whether that was so at the last look.
    """

    __slots__ = (
        "_connection", "_limits", "body_bytes", "ends", "idle", "idle_since", "in_body", "receiving", "sending", "was_in_body",
    )  # fmt: skip

    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection, self._limits = connection, limits
        self.receiving: asyncio.TimerHandle | None = None
        self.sending: asyncio.TimerHandle | None = None
        self.idle: asyncio.TimerHandle | None = None
        self.ends = 0.0
        self.idle_since: float = connection.loop.time()
        self.body_bytes = 0
        self.in_body = self.was_in_body = False

    def start_receiving(self) -> None:
        """Give the request that is received its time."""
        self.ends = self._connection.loop.time() + self._limits.receive_timeout_s
        self._look_later(self._limits.receive_timeout_s)

    def _look_later(self, left_s: float) -> None:
        self.body_bytes = 0
        looks_s = min(left_s, self._limits.rate_window_s)
        self.receiving = self._connection.loop.call_later(looks_s, self.look_at_receiving)

    def stop_receiving(self) -> None:
        """Stop the first timer."""
        if self.receiving is not None:
            self.receiving.cancel()
            self.receiving = None

    def look_at_receiving(self) -> None:
        """End a connection whose request is late, or whose body comes too slowly."""
        connection, limits = self._connection, self._limits
        self.receiving = None
        if (
            connection.pipeline
        ):  # the request waits behind another one, and reading is paused meanwhile
            self.start_receiving()
            return
        left_s = self.ends - connection.loop.time()
        slow = self.was_in_body and self.body_bytes < limits.min_rate_bytes_s * limits.rate_window_s
        self.was_in_body = self.in_body
        if left_s > 0.001 and not slow:
            self._look_later(left_s)
            return
        text = f"the request was not received within {limits.receive_timeout_s:g} s"
        if left_s > 0.001:
            text = f"the body came slower than {limits.min_rate_bytes_s} bytes per second"
        connection.refuse_rest(408, text, "receive_timeout")

    def start_sending(self) -> None:
        """Watch how fast the client empties the buffer."""
        connection, look_s = self._connection, self._limits.rate_window_s
        size = connection.transport.get_write_buffer_size()
        self.sending = connection.loop.call_later(look_s, self.look_at_sending, size)

    def stop_sending(self) -> None:
        """Stop the second timer."""
        if self.sending is not None:
            self.sending.cancel()
            self.sending = None

    def look_at_sending(self, before: int) -> None:
        """End a connection whose client takes its answer too slowly."""
        connection, limits = self._connection, self._limits
        self.sending = None
        connection.count_unsent()
        size = connection.transport.get_write_buffer_size()
        least = limits.min_rate_bytes_s * limits.rate_window_s
        if size and 0 <= before - size < min(before, least):
            connection.transport.abort()
        elif size:
            self.start_sending()

    def start_idle(self) -> None:
        """Let the connection end once it is idle for too long."""
        if self.idle is None:
            self.end_after(self._limits.keep_alive_s, self._look_at_idle)

    def end_after(self, wait_s: float, end: Callable[..., object], *args: Any) -> None:
        """Call a function after some seconds, in place of the third timer."""
        if self.idle is not None:
            self.idle.cancel()
        self.idle = self._connection.loop.call_later(wait_s, end, *args)

    def _look_at_idle(self) -> None:
        """End the connection if it has been idle for too long; during a request the next answer sets the timer."""
        self.idle = None
        connection = self._connection
        if not connection.is_idle():
            return
        left_s = self.idle_since + self._limits.keep_alive_s - connection.loop.time()
        if left_s <= 0.001:
            connection.transport.close()
        else:
            self.end_after(left_s, self._look_at_idle)

    def stop(self) -> None:
        """Stop all timers."""
        self.stop_receiving()
        self.stop_sending()
        if self.idle is not None:
            self.idle.cancel()
