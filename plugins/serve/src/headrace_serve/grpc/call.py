"""One call on a stream of HTTP/2: its messages, its time, its answers, its status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from headrace.errors import HeadraceError, InputError
from headrace_formats import joined_headers
from headrace_serve.admission.codings import WINDOWS, pack, unpack
from headrace_serve.errors import BodyTooLargeError, NotReceivedError, UnavailableError
from headrace_serve.grpc.context import STATUSES, CallError
from headrace_serve.http2.frames import CANCEL
from headrace_serve.http2.heads import block_of
from headrace_serve.http2.stream import Stream
from headrace_serve.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_serve.grpc.context import Method
    from headrace_serve.grpc.door import Door
    from headrace_serve.http2.heads import Head

__all__ = ["Call", "Plan", "plan_of"]

logger = logging.getLogger("headrace.serve")

_PREFIX_BYTES: Final = 5
_CODING: Final = Pool("codings", 2)
_AT_ONCE_BYTES: Final = 16 << 10
"""Smaller messages are compressed in the event loop."""

_TIMEOUT: Final = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS_S: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_S: Final = 1e8
"""A longer time is none."""

_OK_STATUS: Final = b"200"
_TYPE: Final = b"application/grpc"
_HEAD: Final = [(b":status", _OK_STATUS), (b"content-type", _TYPE), (b"grpc-accept-encoding", b"identity,deflate,gzip")]  # fmt: skip
_HEAD_BLOCK: Final = block_of(_HEAD)
_OK: Final = [(b"grpc-status", b"0")]
_OK_BLOCK: Final = block_of(_OK)
_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Plan:
    """What the headers of a call say: remembered with their block.

    Attributes:
        method: The method. None: there is none of that name.
        headers: See `headrace_serve.grpc.context.Context`.
        timeout_s: The time that the client gives the call. None: it does not say so.
        coding: How its messages may be compressed. ``""``: not.
        problem: Why there is no such call. None: there is.
        status: The status of HTTP of that answer.
    """

    __slots__ = ("coding", "headers", "method", "problem", "status", "timeout_s")

    def __init__(self) -> None:
        self.method: Method | None = None
        self.headers: Mapping[str, str] = {}
        self.timeout_s: float | None = None
        self.coding, self.status = "", _OK_STATUS
        self.problem: CallError | None = None


def plan_of(head: Head, methods: Mapping[bytes, Method], most_bytes: int) -> Plan:
    """Return what headers say.

    Args:
        head: The headers.
        methods: The methods by their paths.
        most_bytes: The most bytes of names and values.
    """
    plan, fields = Plan(), dict(head.fields)
    path = head.pseudo[b":path"]
    plan.method = methods.get(path)
    plan.headers = joined_headers(
        [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in head.fields
            if not name.endswith(b"-bin")
        ]
    )
    kind = fields.get(b"content-type", b"")
    if head.pseudo[b":method"] != b"POST" or not kind.startswith(_TYPE):
        plan.status = b"405" if head.pseudo[b":method"] != b"POST" else b"415"
        text = "here are calls of gRPC: POST with content-type application/grpc"
        plan.problem = CallError("UNKNOWN", text)
    elif head.size_bytes > most_bytes:
        text = f"the metadata have {head.size_bytes} bytes, the limit is {most_bytes}"
        plan.problem = CallError("RESOURCE_EXHAUSTED", text)
    elif plan.method is None:
        name = path.decode("latin-1")[:256]
        plan.problem = CallError("UNIMPLEMENTED", f"this server has no method {name}")
    coding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
    if coding in WINDOWS:
        plan.coding = coding
    elif coding != "identity" and plan.problem is None:
        text = f"grpc-encoding: this server has {', '.join(WINDOWS)}, got {coding[:40]!r}"
        plan.problem = CallError("UNIMPLEMENTED", text)
    timeout = fields.get(b"grpc-timeout")
    if timeout is not None:
        match = _TIMEOUT.fullmatch(timeout)
        if match is not None:
            timeout_s = int(match[1]) * _UNITS_S[match[2]]
            plan.timeout_s = timeout_s if timeout_s < _LONGEST_S else None
        elif plan.problem is None:
            plan.problem = CallError("INTERNAL", "grpc-timeout is no time")
    return plan


class Call(Stream):
    """One call: the `Context` of its method.

    Args:
        door: What it came through.
        plan: What its headers say.
        given: The arguments of `Stream`.
    """

    __slots__ = (
        "_door",
        "_due_s",
        "_held",
        "_is_broken",
        "_is_compressed",
        "_is_over",
        "_late",
        "_left",
        "_messages",
        "_needs",
        "_owed",
        "_parts",
        "_plan",
        "_skips",
        "_space",
        "_task",
        "_unsent",
        "_waiter",
        "headers",
        "is_cancelled",
        "trailing",
    )  # fmt: skip

    def __init__(self, door: Door, plan: Plan, *given: Any) -> None:
        super().__init__(*given)
        self._door, self._plan = door, plan
        self.headers: Mapping[str, str] = plan.headers
        self.trailing: tuple[tuple[str, str], ...] = ()
        self.is_cancelled = False
        timeout_s = plan.timeout_s
        self._due_s = None if timeout_s is None else door.loop.time() + timeout_s
        self._messages: deque[tuple[int, bytes | HeadraceError]] = deque()
        self._parts: list[bytes] = []
        self._needs, self._skips = -1, 0
        self._held = self._unsent = self._owed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._space: asyncio.Future[None] | None = None
        self._task: Any = None
        self._late: asyncio.TimerHandle | None = None
        self._is_compressed = self._is_over = self._is_broken = False

    # What comes.

    def receive(self, data: bytes) -> None:
        """Take bytes: whole messages wait for `read`, and those of one that is not whole are held, too."""
        if self._is_over or self._is_broken or self._plan.problem is not None:
            self.allow(len(data))  # of messages that nobody reads
            return
        if not self._parts and self._needs < 0 and not self._skips and len(data) >= _PREFIX_BYTES:
            size = int.from_bytes(data[1:_PREFIX_BYTES], "big")
            if len(data) == size + _PREFIX_BYTES and size <= self._most_bytes:
                self.allow(_PREFIX_BYTES)
                if self._hold(size):
                    self._add(data[0], data[_PREFIX_BYTES:])
                return
        self._receive_pieces(data)

    def _receive_pieces(self, data: bytes) -> None:
        """Take bytes that are no whole message."""
        while data:
            if self._skips:
                skipped = min(self._skips, len(data))
                self._skips -= skipped
                data = data[skipped:]
                self.allow(skipped)
                continue
            if self._needs < 0:  # its prefix is not whole
                prefix = b"".join(self._parts)
                missing = _PREFIX_BYTES - len(prefix)
                self._parts = [prefix + data[:missing]]
                data = data[missing:]
                if len(self._parts[0]) == _PREFIX_BYTES:
                    self._begin_message(self._parts[0])
                continue
            piece, data = data[: self._needs], data[self._needs :]
            self._needs -= len(piece)
            if not self._hold(len(piece)):
                self._drop_parts()
                self._skips, self._needs = self._needs, -1
                continue
            self._parts.append(piece)
            if not self._needs:
                self._end_message()
        if self._parts:
            self._door.receiving.begin(self)

    def _begin_message(self, prefix: bytes) -> None:
        size, most = int.from_bytes(prefix[1:], "big"), self._most_bytes
        self._parts = [prefix[:1]]
        self.allow(_PREFIX_BYTES)
        if size > most:
            text = f"the message has {size} bytes, the limit is {most}"
            self._parts, self._skips = [], size
            self._add(0, BodyTooLargeError(text))
            return
        self._needs = size
        if not size:
            self._end_message()

    def _end_message(self) -> None:
        (flags, *pieces), self._parts, self._needs = self._parts, [], -1
        self._add(flags[0], pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _drop_parts(self) -> None:
        """Give up what has come of a message that is not whole."""
        size = sum(map(len, self._parts[1:]))
        self._parts = []
        self._held -= size
        self._door.service.release(size)

    def _add(self, flags: int, data: bytes | HeadraceError) -> None:
        """Let `read` give a message, or raise what is wrong with it."""
        self._messages.append((flags, data))
        if self._door.receiving.due:
            self._door.receiving.end(self)
        self._wake()

    def _hold(self, size: int) -> bool:
        """Count bytes that came. Return whether there was room."""
        try:
            self._door.service.hold(0, size)
        except HeadraceError as error:
            self._add(0, error)
            self.allow(size)
            return False
        self._held += size
        if self._messages:  # who sends more than is read gets no wider window
            self._owed += size
        else:
            self.allow(size)
        return True

    @property
    def _most_bytes(self) -> int:
        return self._door.service.limits.max_body_bytes

    def _break(self, error: HeadraceError) -> None:
        """Take no message any more, after this error in the place of one."""
        self._is_broken = True
        self._drop_parts()
        self._add(0, error)

    def fail_late(self) -> None:
        """Note that a message has not come in time."""
        seconds = self._door.service.limits.receive_timeout_s
        self._break(NotReceivedError(f"the request was not received within {seconds:g} s"))
        self._refuse()

    def end(self) -> None:
        """Note that no message comes any more."""
        if self._parts or self._skips:
            self._break(InputError("the call ends within a message"))
        self._door.receiving.end(self)
        self._wake()
        self._refuse()

    def _refuse(self) -> None:
        """Answer what is no call of any method here."""
        if self._plan.problem is not None and not self._is_over:
            self._finish(self._plan.problem)

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    # As a context.

    @property
    def peer(self) -> Any:
        """Gives the address of the client."""
        return partial(_address, self.connection.peername)

    def left_s(self) -> float | None:
        """Return the seconds until the client gives up."""
        if self._due_s is None:
            return None
        return max(0.0, self._due_s - self._door.loop.time())

    async def read(self) -> bytes | None:
        """Wait for the next message. See `headrace_serve.grpc.context.Context`."""
        while not self._messages:
            if self.is_received or self._is_broken:
                return None
            self._waiter = self._door.loop.create_future()
            await self._waiter
        flags, data = self._messages.popleft()
        if self._owed and not self._messages:
            owed, self._owed = self._owed, 0
            self.allow(owed)
        if isinstance(data, HeadraceError):
            raise data
        self._held -= len(data)
        if not flags:
            return data
        if flags != 1 or not self._plan.coding:
            self._door.service.release(len(data))
            raise InputError("a message is compressed, and grpc-encoding does not say how")
        return await self._decompressed(data)

    async def _decompressed(self, data: bytes) -> bytes:
        """Return a message without its coding, whose bytes are held in the place of those."""
        service, coding = self._door.service, self._plan.coding
        self._is_compressed = True
        held = len(data)
        try:
            limit = service.limits.max_body_bytes
            if held <= _AT_ONCE_BYTES:
                with contextlib.suppress(BodyTooLargeError):
                    unpacked = unpack(data, coding, min(limit, 4 * _AT_ONCE_BYTES))
                    service.hold(0, len(unpacked))
                    return unpacked
            async with service.unpacking.turn(self.peer().rpartition(":")[0]):
                room = min(limit, service.room)
                held = service.hold(held, room)
                try:
                    unpacked = await _CODING.run(unpack, data, coding, room)
                except BodyTooLargeError:
                    service.release(service.hold(0, limit - room))
                    raise
                service.release(room)
                held -= room
                service.hold(0, len(unpacked))
                return unpacked
        finally:
            service.release(held)

    # How it is answered.

    def begin(self) -> None:
        """Begin to answer."""
        plan = self._plan
        if plan.problem is not None:
            if plan.status == _OK_STATUS:
                self._finish(plan.problem)
            else:  # who speaks no gRPC may send its whole request before it reads
                self._door.receiving.begin(self)
            return
        method: Any = plan.method
        if not (self._messages or self.is_received or method.streams):
            self._door.receiving.begin(self)
        if method.streams and self._due_s is not None:
            self._late = self._door.loop.call_at(self._due_s, self._end_late)
        work = self._stream(method) if method.streams else self._answer(method)
        self._task = self._door.loop.create_task(work)
        self._door.tasks.add(self._task)
        self._task.add_done_callback(self._door.tasks.discard)

    async def _answer(self, method: Method) -> None:
        try:
            answer = await method.respond(self)
        except CallError as error:
            self._finish(error)
        except asyncio.CancelledError:
            self._cut_off()
            raise
        except Exception:
            logger.exception("a call failed in the server")
            self._finish(CallError("INTERNAL", "the call failed in the server"))
        else:
            await self._finish_with(answer)
        finally:
            self._release()

    async def _finish_with(self, answer: bytes) -> None:
        """Send the one answer."""
        flag, head = b"\0", _HEAD_BLOCK
        if self._is_compressed:
            flag, head = b"\1", self._head()
            answer = await self._packed(answer)
        if self.is_closed:
            return
        last = _OK_BLOCK if not self.trailing else self._last(None)
        pieces = (flag + len(answer).to_bytes(4, "big"), answer)
        self._is_over = True
        self._unsent = size = len(answer)
        self._door.service.note_unsent(size)
        if self.connection.send_answer(self, head, pieces, last):
            self._unsent = 0
            self._door.service.note_unsent(-size)

    async def _stream(self, method: Method) -> None:
        is_begun = False
        try:
            async with contextlib.aclosing(method.respond(self)) as answers:
                async for answer in answers:
                    if not is_begun:
                        is_begun = True
                        self.connection.send_head(self, self._head())
                    await self._write(answer)
            if not is_begun:
                self.connection.send_head(self, _HEAD_BLOCK)
            self.connection.send_last(self, self._last(None))
            self._is_over = True
        except CallError as error:
            self._finish(error, is_begun=is_begun)
        except asyncio.CancelledError:
            self._cut_off(is_begun=is_begun)
            raise
        except Exception:
            logger.exception("a call failed in the server")
            text = "the call failed in the server"
            self._finish(CallError("INTERNAL", text), is_begun=is_begun)
        finally:
            self._release()

    async def _write(self, answer: bytes) -> None:
        """Send one of several answers, and wait until the socket has it."""
        flag = b"\0"
        if self._is_compressed:
            flag, answer = b"\1", await self._packed(answer)
        self.connection.send_data(self, flag + len(answer).to_bytes(4, "big"), answer)
        while self.queue and not self.is_closed:
            self._space = self._door.loop.create_future()
            await self._space

    def sent(self, size: int) -> None:
        """Note that the socket has got bytes."""
        if self._unsent:
            size = self._unsent if not self.queue else min(size, self._unsent)
            self._unsent -= size
            self._door.service.note_unsent(-size)
        space = self._space
        if space is not None and not self.queue and not space.done():
            space.set_result(None)

    def lost(self) -> None:
        """Cancel what runs: the client has ended the call, or is gone."""
        self.is_cancelled = True
        self._door.service.note_unsent(-self._unsent)
        self._unsent = 0
        if self._task is not None and not self._is_over:
            self._is_over = True
            self._task.cancel()
        elif self._task is None:
            self._release()

    def _release(self) -> None:
        """Give up what the call holds."""
        self._is_over = True
        self._door.receiving.end(self)
        self._door.service.release(self._held)
        self._held = 0
        self._messages.clear()
        self._parts.clear()
        if self._late is not None:
            self._late.cancel()
        self._task = None

    def _end_late(self) -> None:
        if not self._is_over:
            task = self._task
            self._finish(CallError("DEADLINE_EXCEEDED", "the time of the call is over"))
            task.cancel()

    def _cut_off(self, *, is_begun: bool = False) -> None:
        """End a call whose task was cancelled, by its client or because the server ends."""
        if self.is_closed:
            return
        if self._door.service.draining:
            text = "the request was cut off: the server has shut down"
            error = UnavailableError(text)
            trailing = (("code", error.code),)
            self._finish(CallError("UNAVAILABLE", text, trailing), is_begun=is_begun)
        else:
            self.connection.reset(self.number, CANCEL)

    def _finish(self, error: CallError, *, is_begun: bool = False) -> None:
        """End the call with an error."""
        fields = self._fields(error)
        if self._plan.status != _OK_STATUS:
            self._say_what_is_here(error.text)
        elif not is_begun:
            fields = [(b":status", _OK_STATUS), (b"content-type", _TYPE), *fields]
        self.connection.send_last(self, block_of(fields))
        self._is_over = True
        if self._task is None:
            self._release()

    def _say_what_is_here(self, text: str) -> None:
        """Begin the answer of what is no call of gRPC, as one of HTTP."""
        kinds = [(b"content-type", b"text/plain"), (b"x-content-type-options", b"nosniff")]
        head = [(b":status", self._plan.status), *kinds]
        self.connection.send_head(self, block_of(head))
        if self.head.pseudo[b":method"] != b"HEAD":
            self.connection.send_data(self, text.encode())

    def _last(self, error: CallError | None) -> bytes:
        return block_of(self._fields(error))

    def _fields(self, error: CallError | None) -> list[tuple[bytes, bytes]]:
        if error is None:
            return [*_OK, *((n.encode("ascii"), v.encode("ascii")) for n, v in self.trailing)]
        status = str(STATUSES.index(error.status)).encode()
        text = quote(error.text, safe=_PLAIN).encode("ascii")
        fields = [(b"grpc-status", status), (b"grpc-message", text)]
        for name, value in error.trailing:
            fields.append((name.encode("ascii"), _written(value)))
        return fields

    def _head(self) -> bytes:
        if not self._is_compressed:
            return _HEAD_BLOCK
        return block_of([*_HEAD, (b"grpc-encoding", self._plan.coding.encode("ascii"))])

    async def _packed(self, answer: bytes) -> bytes:
        """Return an answer in the coding of what the client sent."""
        if len(answer) <= _AT_ONCE_BYTES:
            return pack(answer, self._plan.coding)
        return await _CODING.run(pack, answer, self._plan.coding)


def _address(peername: Any) -> str:
    """Return the address of a client as gRPC writes it."""
    host, port = (peername or ("", 0))[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _written(value: str | bytes) -> bytes:
    """Return the bytes of a metadatum."""
    if isinstance(value, bytes):
        from base64 import b64encode

        return b64encode(value).rstrip(b"=")
    return value.encode("ascii", "replace")
