"""Sends one batch: chooses a server, and decides what happens where the call fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from headrace.errors import BackendError, DeadlineExceededError, InputError, OverloadedError
from headrace_formats import read_json
from headrace_remote.errors import (
    ConnectionLostError,
    ServersAwayError,
    error_of,
    is_refusal,
    never_sent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.errors import RequestError
    from headrace_remote.pool import Pool
    from headrace_remote.servers import Server

__all__ = ["Call", "Sender", "errors_of_rows", "may_go_alone"]


class Call(NamedTuple):
    """A call to send.

    Attributes:
        data: The bytes of a ``ModelInferRequest``.
        until: The deadline, on the clock.
        metadata: The metadata of the call.
        rows: How many rows it has.
        whole: Whether it had all of ``timeout_ms``. Only then a late answer is the server's fault: otherwise the
            requests may have had next to no time left.
        only: The server with the state of its sequence. The call is sent once. None: any server.
    """

    data: bytes
    until: float
    metadata: Any
    rows: int
    whole: bool = True
    only: Server | None = None


class Sender:
    """Sends calls to the servers of a pool.

    Args:
        pool: The servers.
        rerun: Whether a call that broke after sending may be sent again.
        retries: How often at most.
        waits: Whether a call waits while no server is there.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        pool: Pool[Server],
        *,
        rerun: bool,
        retries: int,
        waits: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._rerun = rerun
        self._retries = retries if rerun else 0
        self._waits = waits
        self._clock = clock

    def send(self, call: Call) -> tuple[bytes, str]:
        """Send a call until a server answers it.

        A server that has refused it is left for another one at once. A call that broke after sending goes to
        another server, or to the same one where there is no other, as often as `retries` allows. One of a sequence
        is sent to its server alone, and not again.

        Returns:
            The bytes of the answer, and the url of the server.

        Raises:
            RequestError: As `headrace_remote.errors.error_of` makes it from the answer.
            DeadlineExceededError: The deadline passed.
            OverloadedError: All servers have refused it, because they have too much to do.
            ServersAwayError: No server could be reached.
            ConnectionLostError: The connection broke after sending.
        """
        tried: list[Server] = []
        refusal: RequestError | None = None
        again = 0
        others: list[Server] = []
        retries = self._retries
        if call.only is not None:
            others, retries = [o for o in self._pool.servers if o is not call.only], 0
        while True:
            server = self._pool.take([*tried, *others] if others else tried)
            if server is None:
                self._next_round(tried, call, refusal)
                tried.clear()
                continue
            try:
                return self._call(server, call), server.url
            except _Failed as failed:
                why = failed.error
            finally:
                self._pool.give_back(server)
            if isinstance(why, ConnectionLostError):
                if again >= retries:
                    raise why
                again += 1
            tried.append(server)
            # That one has too much to do says more than that others are away.
            refusal = refusal if isinstance(refusal, OverloadedError) else why

    def _call(self, server: Server, call: Call) -> bytes:
        """Send a call to one server.

        Raises:
            _Failed: Another server may be asked.
            RequestError: The call is over.
        """
        left = call.until - self._clock()
        if left <= 0:
            raise _late(server.url, call)
        infer = server.infer
        try:
            answer: bytes = infer(call.data, timeout=left, metadata=call.metadata)
        except grpc.RpcError as error:
            gave_up = infer is not server.infer
            raise _Failed(self._after(server, error, call, gave_up=gave_up)) from error
        except ValueError as error:  # the channel is closed
            if self._pool.closed:
                raise ServersAwayError("the pipeline is being closed") from error
            raise _Failed(ServersAwayError(f"{server.url} answers nothing")) from error
        self._pool.answered(server)
        return answer

    def _after(
        self, server: Server, error: Any, call: Call, *, gave_up: bool = False
    ) -> RequestError:
        """Return the error of a call that may be sent to another server.

        Args:
            server: The server.
            error: What gRPC has raised.
            call: The call.
            gave_up: Whether the call was given up, with all others of a server that answers nothing.

        Raises:
            RequestError: The call is over.
        """
        status, details = error.code().name, error.details() or ""
        trailing = error.trailing_metadata() or ()
        code = next((str(value) for key, value in trailing if key == "code"), "")
        if never_sent(status, details):
            self._pool.failed(server, at_once=True)
            return ServersAwayError(f"{server.url} cannot be reached: {details}")
        if is_refusal(status, code, details, again=self._rerun or call.rows == 1):
            full = error_of(server.url, status, code, details)
            if isinstance(full, OverloadedError):
                self._pool.answered(server)
                return full
            self._pool.failed(server, at_once=True)
            return ServersAwayError(f"{server.url} takes no requests: {details}")
        if _broke(status, code, details):
            if self._pool.closed:
                raise ServersAwayError("the pipeline is being closed") from error
            if gave_up:
                details = "the server answers nothing, and takes no new connection"
            else:
                self._pool.failed(server, at_once=status == "UNAVAILABLE")
            hint = "The server may have run it; "
            if call.only is None:
                hint += "with rerun = true it is sent again."
            else:
                hint += "a request of a sequence is not sent again."
            problem = f"the connection to {server.url} broke after the request was sent: {details}"
            return ConnectionLostError(problem, hint=hint)
        if status == "DEADLINE_EXCEEDED" and not code:
            if call.whole:
                self._pool.failed(server, at_once=False)
            raise _late(server.url, call) from error
        self._pool.answered(server)
        raise error_of(server.url, status, code, details) from error

    def _next_round(self, tried: list[Server], call: Call, why: RequestError | None) -> None:
        """Wait until a server is there that may be asked again, since all that were there have been asked.

        Raises:
            OverloadedError: All have too much to do.
            ServersAwayError: None is there, and calls do not wait, or the deadline has passed.
        """
        if isinstance(why, OverloadedError):
            raise why
        is_back = any(not server.breaker.away for server in tried)
        if isinstance(why, ConnectionLostError) and is_back:
            return
        if self._pool.closed:
            raise ServersAwayError("the pipeline is being closed")
        if self._waits and self._pool.wait(call.until, call.only):
            return
        if isinstance(why, ConnectionLostError):
            raise why
        if call.only is None:
            urls = ", ".join(server.url for server in self._pool.servers)
            problem = f"no server is there: {urls}"
        else:
            problem = f"{call.only.url}, which has the sequence, is not there"
        if why is not None:
            problem += f"; the last one asked: {why.what}"
        hint = 'With when_away = "wait" requests wait for a server.'
        hint = "It waited until the deadline." if self._waits else hint
        raise ServersAwayError(problem, hint=hint)


class _Failed(Exception):  # noqa: N818 - it never leaves this module
    """A call failed, and another server may be asked."""

    def __init__(self, error: RequestError) -> None:
        self.error = error
        super().__init__(error)


def _broke(status: str, code: str, details: str) -> bool:
    """Return whether a call ended without an answer of the server.

    gRPC ends a call whose stream the server has reset with other statuses than UNAVAILABLE, too.
    """
    if code:
        return False
    return status == "UNAVAILABLE" or status == "CANCELLED" or "RST_STREAM" in details


def _late(url: str, call: Call) -> DeadlineExceededError:
    hint = "timeout_ms is how long a batch may take." if call.whole else ""
    return DeadlineExceededError(f"{url} has not answered in time", hint=hint)


def errors_of_rows(url: str, text: str) -> dict[int, RequestError]:
    """Return the errors of single rows by their place, from the parameter ``errors`` of ``headrace serve``.

    Raises:
        BackendError: The text is no such list.
    """
    if not text:
        return {}
    try:
        rows = [
            (int(row["index"]), str(row["code"]), str(row["message"])) for row in read_json(text)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"the errors of {url} cannot be read: {error}") from error
    return {index: error_of(url, "", code, message) for index, code, message in rows}


def may_go_alone(error: RequestError) -> bool:
    """Return whether the items of a call that failed so may succeed alone: a server has answered, and not refused."""
    if isinstance(error, (ServersAwayError, ConnectionLostError)):
        return False
    return isinstance(error, (InputError, BackendError))
