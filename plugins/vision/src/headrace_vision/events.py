"""What sinks that tell another program of events have in common."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace_formats import write_json
from headrace_vision.network import check_address, without_password
from headrace_vision.records import frame_record
from headrace_vision.saving import encoded, picture_of
from headrace_vision.sinks import CLOSE_S, SPOOL_BYTES, Sink
from headrace_vision.spool import PICTURE

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["EventSink"]

_LOG = logging.getLogger("headrace.vision")


class EventSink(Sink):
    """Sends frames with events over the network, each at least once and in their order.

    Status, log and errors show scheme and host of the address alone: the rest is often a secret.
    """

    full = "keep"
    needs_image = False
    schemes: tuple[str, ...] = ()
    """How an address may begin."""

    def __init__(  # noqa: PLR0913 - settings, by name
        self,
        url: str,
        *,
        network: Iterable[str] = (),
        only_events: bool = True,
        attempts: int = 3,
        timeout_s: float = 5.0,
        spool_bytes: int = SPOOL_BYTES,
        spool: str | os.PathLike[str] | None = None,
        close_s: float = CLOSE_S,
        picture: bool = False,
    ) -> None:
        self._keep(spool_bytes, spool, close_s)
        check_address(url, network, self.schemes)
        if attempts < 1:
            raise ValueError(f"attempts is at least 1, not {attempts!r}")
        self.attempts = attempts
        self._url, self._parts = url, urlsplit(url)
        self._shown = f"{self._parts.scheme}://{urlsplit(without_password(url)).netloc}/..."
        self._only_events = only_events
        self._picture = picture
        self._timeout_s = timeout_s
        self._posted = 0
        self._prepare()

    def _prepare(self) -> None:
        """Check more of the address."""

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame has events, if only those are sent."""
        return self._is_sent(frame)

    def _is_sent(self, frame: Frame) -> bool:
        return not self._only_events or bool(frame.request.get("events"))

    def reduced(self, frame: Frame) -> Frame:
        """Return a frame without its image, with a JPEG in its place, if that is sent."""
        queued = super().reduced(frame)
        try:
            image = picture_of(frame, draw=True) if self._picture else None
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
