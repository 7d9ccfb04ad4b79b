"""`Webhook`: tells another program, over HTTP, what was seen."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import quote

from headrace_vision.network import authorization, plain_opener, without_password
from headrace_vision.sinks.event_sink import EventSink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["Webhook"]

_AGAIN = (408, 425, 429)
"""Answers from 400 to 499 that are about the moment, and not about what was posted."""


class Webhook(EventSink):
    """Posts a frame as JSON: see `headrace_vision.frame_record`.

    It holds nobody up: frames wait in the spool until the receiver has taken them, each at least once, in their order. Status, log
    and errors show scheme and host of the address alone, since such addresses are secrets.

    Args:
        url: ``http`` or ``https``. A user and password in it are sent (Basic).
        network: Hosts that may be called. That of ``url`` must be among them. Redirects are not followed.
        only_events: Whether only frames with ``events`` (of CountLine and CountZone) are posted.
        attempts: How often a frame that is refused (400 to 499) is tried, then it is lost, if the receiver takes the next one.
        timeout_s: Seconds after which an attempt has failed.
        picture: Whether the JSON has ``picture``, a JPEG in base64 with boxes on it.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.

    Raises:
        InputError: The address is not allowed.
    """

    schemes = ("http", "https")

    def _send(self, frame: Frame) -> None:
        headers = {"Content-Type": "application/json", **authorization(self.url)}
        address = quote(without_password(self.url), safe="!#$%&'()*+,/:;=?@[]~")
        request = urllib.request.Request(  # noqa: S310 - the address was checked
            address, data=self._body(frame).encode(), headers=headers, method="POST"
        )
        try:
            with plain_opener().open(request, timeout=self.timeout_s) as answer:
                answer.read(1024)
        except urllib.error.HTTPError as error:
            error.close()
            text = f"{self._shown} answered {error.code}"
            is_refused = 400 <= error.code < 500 and error.code not in _AGAIN
            raise (ValueError if is_refused else OSError)(text) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            text = f"{self._shown} cannot be called: {type(reason).__name__}: {reason}"
            raise OSError(text) from None
