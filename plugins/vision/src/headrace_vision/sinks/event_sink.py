"""What sinks that tell another program of events have in common."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from headrace_formats import write_json
from headrace_vision.network import check_address, without_password
from headrace_vision.records import frame_record
from headrace_vision.sinks.pictures import encoded, picture_of
from headrace_vision.sinks.sink import SpoolingSink
from headrace_vision.sinks.spool import PICTURE

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["EventSink"]

_LOG = logging.getLogger("headrace.vision")


@dataclass(eq=False, repr=False, kw_only=True)
class EventSink(SpoolingSink):
    """Sends frames with events over the network, each at least once and in their order.

    Status, log and errors show scheme and host of the address alone: the rest is often a secret.
    """

    url: str = field(kw_only=False)
    network: Iterable[str] = ()
    only_events: bool = True
    attempts: int = 3
    timeout_s: float = 5.0
    picture: bool = False

    full = "keep"
    needs_image = False
    schemes: ClassVar[tuple[str, ...]] = ()
    """How an address may begin."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_address(self.url, self.network, self.schemes)
        if self.attempts < 1:
            raise ValueError(f"attempts is at least 1, not {self.attempts!r}")
        self._parts = urlsplit(self.url)
        self._shown = f"{self._parts.scheme}://{urlsplit(without_password(self.url)).netloc}/..."
        self._posted = 0

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame has events, if only those are sent."""
        return self._is_sent(frame)

    def _is_sent(self, frame: Frame) -> bool:
        return not self.only_events or bool(frame.request.get("events"))

    def reduced(self, frame: Frame) -> Frame:
        """Return a frame without its image, with a JPEG in its place, if that is sent."""
        queued = super().reduced(frame)
        try:
            image = picture_of(frame, draw=True) if self.picture else None
            if image is not None:
                queued.request[PICTURE] = encoded(".jpg", image)
        except Exception:  # noqa: BLE001 - better no picture than no event
            _LOG.exception("sink %s: an event of %s goes without picture", self.name, frame.source)
        return queued

    def _body(self, frame: Frame) -> str:
        """Return what is sent: the record of a frame, and its picture as base64."""
        record = frame_record(frame)
        if PICTURE in frame.request:
            record["picture"] = base64.b64encode(frame.request[PICTURE]).decode()
        return write_json(record)

    def write(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            OSError: There is no answer, or one that may be another one later.
            ValueError: The receiver refuses the frame.
        """
        self._send(frame)
        self._posted += self._is_sent(frame)

    def _send(self, frame: Frame) -> None:
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        """Return where it sends, and how many frames were ``posted``."""
        return {"posted": self._posted, "address": self._shown}
