"""HLS: what a playlist names is opened here, and not by FFmpeg, so that each host is an allowed one."""

from __future__ import annotations

import base64
import re
import urllib.request
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from headrace.errors import InputError
from headrace_vision.network import check_address, plain_opener, without_password

__all__ = ["PlaylistOpener", "is_playlist"]

_VARIANT = "#EXT-X-STREAM-INF:"
_ATTRIBUTE = re.compile(r'([A-Z0-9-]+)=("[^"]*"|[^",]*)')
_MOST_BYTES = 1_000_000
"""So much of a playlist is read to see whether it names others."""


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def is_playlist(address: str) -> bool:
    """Return whether an address is that of a playlist (HLS): its path ends with ``.m3u8``."""
    return urlsplit(address).path.lower().endswith((".m3u8", ".m3u"))


def _authorization(address: str) -> str | None:
    """Return the header with the user and password in an address (RFC 7617), or None."""
    parts = urlsplit(address)
    if parts.username is None:
        return None
    said = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(said.encode()).decode('ascii')}"


class PlaylistOpener:
    """Opens playlists and their segments for FFmpeg, over HTTP, from allowed hosts alone.

    Args:
        address: The first playlist. A user and password in it are sent to its host and port alone, and FFmpeg never sees them.
        hosts: Hosts that may be asked. Redirects are not followed.
        timeout_s: Seconds of silence after which an answer has failed.

    Attributes:
        refused: Why something that a playlist names was not opened, or None.
    """

    def __init__(self, address: str, hosts: Iterable[str], timeout_s: float) -> None:
        self.address = without_password(address)
        self._authorization = _authorization(address)
        self._hosts = tuple(hosts)
        self._timeout_s = timeout_s
        self._opener = plain_opener()
        self.refused: InputError | None = None

    def best_variant(self) -> str:
        """Return the address of the playlist that is to be read: the first one, or the best one that it names.

        A master playlist names the same pictures several times, for lines of different speed. The one with the most
        pixels is taken, and of equal ones the one with the most bits; FFmpeg would ask for the segments of all.

        Raises:
            InputError: A host is not allowed.
            OSError: There is no answer.

        Source:
            RFC 8216, sections 4.2 (attribute lists) and 4.3.4.2 (EXT-X-STREAM-INF).
        """
        with self(self.address, 0, {}) as answer:
            lines = [
                line.strip()
                for line in answer.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
            ]
        found: list[tuple[int, int, str]] = []
        said: dict[str, str] | None = None
        for line in lines:
            if line.startswith(_VARIANT):
                said = dict(_ATTRIBUTE.findall(line[len(_VARIANT) :]))
            elif line and not line.startswith("#") and said is not None:
                width, _, height = said.get("RESOLUTION", "0x0").partition("x")
                found.append(
                    (_number(width) * _number(height), _number(said.get("BANDWIDTH", "")), line)
                )
                said = None
        return (
            urljoin(self.address, max(found, key=lambda one: one[:2])[2]) if found else self.address
        )

    def __call__(self, url: str, flags: int, options: dict[str, str]) -> Any:
        """Return the body of what is at ``url``, to read from.

        Raises:
            InputError: The host is not allowed, or it is no address of HTTP.
            OSError: There is no answer.
        """
        try:
            self._check(url)
        except InputError as error:
            self.refused = error
            raise
        headers = {}
        if self._authorization and urlsplit(url).netloc == urlsplit(self.address).netloc:
            headers["Authorization"] = self._authorization
        first, last = int(options.get("offset", 0)), int(options.get("end_offset", 0))
        if first or last:  # a segment that is a part of a file
            headers["Range"] = f"bytes={first}-{last - 1 if last else ''}"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked above
        return self._opener.open(request, timeout=self._timeout_s)

    def _check(self, url: str) -> None:
        check_address(url, self._hosts)
        if urlsplit(url).scheme.lower() not in ("http", "https"):
            raise InputError("a playlist is read over HTTP", expected="http or https", got=url)
