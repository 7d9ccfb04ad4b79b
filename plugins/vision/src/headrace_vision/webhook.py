"""`Webhook`: tells another program, over HTTP, what was seen."""

from __future__ import annotations

import base64
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from headrace.errors import InputError
from headrace_vision.network import check_address, plain_opener, without_password
from headrace_vision.records import frame_record
from headrace_vision.sinks import CLOSE_S, SPOOL_BYTES, Sink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["Webhook"]

_AGAIN = (408, 425, 429)
"""Answers from 400 to 499 that are about the moment, and not about what was posted."""


def _shortened(url: str) -> str:
    """Return what of an address may be shown: the rest of it is often a secret."""
    parts = urlsplit(without_password(url))
    return f"{parts.scheme}://{parts.netloc}/..."


class Webhook(Sink):
    """Posts a frame as JSON: see `headrace_vision.frame_record`.

    It holds nobody up: frames wait in the spool until the receiver has taken them, each at least once, in their order. Status, log
    and errors show scheme and host of the address alone, since such addresses are secrets.

    Args:
        url: ``http`` or ``https``. A user and password in it are sent (Basic).
        network: Hosts that may be called. That of ``url`` must be among them. Redirects are not followed.
        only_events: Whether only frames with ``events`` (of CountLine and CountZone) are posted.
        attempts: How often a frame that is refused (400 to 499) is tried, then it is lost, if the receiver takes the next one.
        timeout_s: Seconds after which an attempt has failed.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.

    Raises:
        InputError: The address is not allowed.
    """

    full = "keep"
    needs_image = False

    def __init__(
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
    ) -> None:
        self._keep(spool_bytes, spool, close_s)
        check_address(url, network)
        self._shown = _shortened(url)
        if not url.lower().startswith(("http://", "https://")):
            raise InputError(
                "a webhook is called over HTTP", expected="http or https", got=self._shown
            )
        if attempts < 1:
            raise ValueError(f"attempts is at least 1, not {attempts!r}")
        self.attempts = attempts
        parts = urlsplit(url)
        self._headers = {"Content-Type": "application/json"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._address = quote(without_password(url), safe="!#$%&'()*+,/:;=?@[]~")
        self._only_events = only_events
        self._timeout_s = timeout_s
        self._posted = 0

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame has events, if only those are posted."""
        return not self._only_events or bool(frame.request.get("events"))

    def write(self, frame: Frame) -> None:
        """Post a frame.

        Raises:
            OSError: There is no answer, or one that may be another one later.
            ValueError: The receiver refuses the frame.
        """
        request = urllib.request.Request(  # noqa: S310 - the address was checked
            self._address,
            data=json.dumps(frame_record(frame)).encode(),
            headers=self._headers,
            method="POST",
        )
        try:
            with plain_opener().open(request, timeout=self._timeout_s) as answer:
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
        self._posted += 1

    def status(self) -> dict[str, Any]:
        """Return where it posts, and how many frames were ``posted``."""
        return {"posted": self._posted, "address": self._shown}
