"""`Webhook`: tells another program, over HTTP, what was seen."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_vision.network import check_address, plain_opener
from headrace_vision.records import frame_record
from headrace_vision.sinks import Sink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["Webhook"]


class Webhook(Sink):
    """Posts a frame as JSON: see `headrace_vision.frame_record`.

    A frame that meets a full queue is dropped and counted. When the last attempt for a frame fails, the sink ends.

    Args:
        url: ``http`` or ``https``.
        network: Hosts that may be called; that of ``url`` must be among them. Redirects are not followed.
        only_events: Whether only frames with ``events`` (of CountLine and CountZone) are posted.
        attempts: How often a frame is tried, with 0.5, 1, 2 ... seconds between.
        timeout_s: Seconds after which an attempt has failed.

    Raises:
        InputError: The address is not allowed.
    """

    full = "drop"

    def __init__(
        self,
        url: str,
        *,
        network: Iterable[str] = (),
        only_events: bool = True,
        attempts: int = 3,
        timeout_s: float = 5.0,
    ) -> None:
        check_address(url, network)
        if not url.lower().startswith(("http://", "https://")):
            raise InputError("a webhook is called over HTTP", expected="http or https", got=url)
        if attempts < 1:
            raise ValueError(f"attempts is at least 1, not {attempts!r}")
        self._url = url
        self._only_events = only_events
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._pause = threading.Event()
        self._posted = 0

    def write(self, frame: Frame) -> None:
        """Post a frame.

        Raises:
            OSError: No attempt succeeded.
        """
        record = frame_record(frame)
        if self._only_events and not record.get("events"):
            return
        body = json.dumps(record).encode()
        for attempt in range(self._attempts):
            try:
                self._post(body)
            except OSError:
                if attempt + 1 == self._attempts:
                    raise
                self._pause.wait(0.5 * 2.0**attempt)
            else:
                self._posted += 1
                return

    def _post(self, body: bytes) -> None:
        request = urllib.request.Request(  # noqa: S310 - the address was checked
            self._url, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        try:
            with plain_opener().open(request, timeout=self._timeout_s) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"{self._url} answered {error.code}") from error

    def status(self) -> dict[str, Any]:
        """Return how many frames were ``posted``."""
        return {"posted": self._posted}
