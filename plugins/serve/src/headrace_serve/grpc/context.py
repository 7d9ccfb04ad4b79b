"""What a call of gRPC has, whatever carries it: its metadata, its messages, its time and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["STATUSES", "CallError", "Context", "Method"]

STATUSES: Final = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""The names of the statuses, each at the place of its number."""


class CallError(Exception):
    """A call ends with a status that is not OK.

    Attributes:
        status: The name of the status.
        text: The message. It may have any character.
        trailing: Names and values of the trailing metadata. Those of names that end in ``-bin`` are bytes.
    """

    def __init__(
        self, status: str, text: str, trailing: Sequence[tuple[str, str | bytes]] = ()
    ) -> None:
        self.status, self.text, self.trailing = status, text, trailing
        super().__init__(text)


class Context(Protocol):
    """One call."""

    trailing: tuple[tuple[str, str], ...]
    """The metadata behind an answer that is OK."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The metadata that are text: several of one name are one list, as in HTTP."""

    @property
    def peer(self) -> Callable[[], str]:
        """Gives the address of the client."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the client has ended the call, or went away."""

    def left_s(self) -> float | None:
        """Return the seconds until the client gives up. None: it has not said so."""

    async def read(self) -> bytes | None:
        """Wait for the next message. None: the client has sent its last.

        The bytes count as held by `MemoryAccount` from now on: the caller releases them.

        Raises:
            NotReceivedError: It has not arrived in time.
            BodyTooLargeError: It has too many bytes, as sent or decompressed.
            OverloadedError: There is no room for it.
            InputError: It is compressed in a way that is not known, or not as it says.
        """


@dataclass(frozen=True)
class Method:
    """How the calls of one name are answered.

    Attributes:
        respond: Takes the context of a call. Gives a coroutine of the one answer, or with ``streams`` an asynchronous
            iterator of the answers. An answer that is iterated on has been taken by the transport.
        streams: See ``respond``.
    """

    respond: Callable[[Any], Any]
    streams: bool = False
