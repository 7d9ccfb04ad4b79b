"""The account of memory: bodies, objects of JSON, parts of answers, and answers that wait for their clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import OverloadedError
from headrace_serve.admission.part_bytes import PartBytes

if TYPE_CHECKING:
    from headrace_serve.admission.limits import Limits

__all__ = ["MemoryAccount"]


class MemoryAccount:
    """Counts bytes against `headrace_serve.Limits.max_inflight_bytes`, over both protocols. Used by one event loop.

    Attributes:
        limits: See `headrace_serve.Limits`.
        unsent_bytes: The bytes of answers, and of parts of answers, that clients have not taken yet.
        unsent_answer_bytes: Those of whole answers. The others are of parts, and of the answers of a stream of gRPC.
        part_bytes: The parts of answers that wait in streams.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._inflight_bytes = self.unsent_bytes = self.unsent_answer_bytes = 0
        self.part_bytes = PartBytes(limits.max_inflight_bytes, self._others)

    def _others(self) -> tuple[int, int]:
        return self.unsent_bytes - self.unsent_answer_bytes, self._inflight_bytes

    def hold(self, held: int, more: int) -> int:
        """Count bytes of a body against `Limits.max_inflight_bytes`.

        Args:
            held: The bytes that the request holds already.
            more: The bytes that it needs in addition.

        Returns:
            The bytes that the request now holds, for `release`.

        Raises:
            OverloadedError: The bodies in flight would have too many bytes.
        """
        most = self.limits.max_inflight_bytes
        if more > most - self._inflight_bytes - self.part_bytes.held - self.unsent_bytes:
            raise OverloadedError(
                "the bodies of other requests take all the room there is",
                queue_size=most,
                waiting=most - self.room,
            )
        self._inflight_bytes += more
        return held + more

    @property
    def room(self) -> int:
        """The bytes that `hold` still accepts."""
        most = self.limits.max_inflight_bytes
        return most - self._inflight_bytes - self.part_bytes.held - self.unsent_bytes

    def release(self, held: int) -> None:
        """Give back the bytes that `hold` has counted."""
        self._inflight_bytes -= held

    def note_unsent(self, more: int, of_parts: int = 0) -> None:
        """Count bytes of answers that clients have not taken yet, or with less than 0 have.

        Args:
            more: Those of whole answers.
            of_parts: Those of parts of answers.
        """
        self.unsent_bytes += more + of_parts
        self.unsent_answer_bytes += more

    def check_unsent(self) -> None:
        """Check that clients receive their answers, before another one is made.

        Raises:
            OverloadedError: Whole answers use half of the room that there is, or these and parts of others all of it.
        """
        most = self.limits.max_inflight_bytes
        if self.unsent_answer_bytes >= most // 2 or self.unsent_bytes >= most:
            what = "answers that clients do not take use all the room there is"
            raise OverloadedError(what, queue_size=most, waiting=self.unsent_bytes)

    def check_answer(self, size: int) -> None:
        """Check that a large answer may wait for its client.

        Raises:
            OverloadedError: Others that wait leave no room.
        """
        unsent = self.unsent_answer_bytes
        if unsent and unsent + size > self.limits.max_inflight_bytes // 2:
            most = self.limits.max_inflight_bytes // 2
            what = "answers that clients do not take leave no room for this one"
            raise OverloadedError(what, queue_size=most, waiting=self.unsent_bytes)
