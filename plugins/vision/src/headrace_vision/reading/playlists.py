"""HLS: what a playlist names is opened here, and not by FFmpeg, so that each host is an allowed one."""

from __future__ import annotations

import io
import re
import urllib.request
from collections.abc import Iterable
from contextlib import closing
from typing import Any
from urllib.parse import urljoin, urlsplit

from headrace.errors import InputError
from headrace_vision.network import authorization, check_address, plain_opener, without_password

__all__ = ["PlaylistOpener", "is_playlist"]

_VARIANT = "#EXT-X-STREAM-INF:"
# A name begins where no other one goes on: else a line without "=" would be tried from each of its characters to its end.
_ATTRIBUTE = re.compile(r'(?<![A-Z0-9-])([A-Z0-9-]+)=("[^"]*"|[^",]*)')
_FIRST = b"#EXTM3U"
_MOST_BYTES = 1_000_000
_MOST_LINE_BYTES = 8_192
"""Longest playlist, and longest line of one. Servers take no longer addresses either."""


def _number(text: str) -> int:
    """Return a number of a playlist, which has at most 20 digits (RFC 8216, section 4.2), or 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0


def is_playlist(address: str) -> bool:
    """Return whether an address is that of a playlist (HLS): its path ends with ``.m3u8``."""
    return urlsplit(address).path.lower().endswith((".m3u8", ".m3u"))


def _checked(body: bytes) -> bytes:
    """Return a playlist whose size is within bounds.

    Raises:
        InputError: It is too long, or one of its lines.
    """
    line_bytes = max(map(len, body.splitlines()), default=0)
    for part, most, got in (
        ("playlist", _MOST_BYTES, len(body)),
        ("line of the playlist", _MOST_LINE_BYTES, line_bytes),
    ):
        if got > most:
            raise InputError(
                f"a {part} is too long", expected=f"at most {most} bytes", got=f"{got} or more"
            )
    return body


class _Segment:
    """An answer of which the first bytes were read."""

    def __init__(self, head: bytes, answer: Any) -> None:
        self._head = head
        self._answer = answer
        self.close = answer.close

    def read(self, count: int) -> bytes:
        """Return up to ``count`` bytes; none at the end."""
        head, self._head = self._head[:count], self._head[count:]
        data: bytes = head or self._answer.read(count)
        return data


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
        self._authorization = authorization(address)
        self._hosts = tuple(hosts)
        self._timeout_s = timeout_s
        self._opener = plain_opener()
        self.refused: InputError | None = None

    def best_variant(self) -> str:
        """Return the address of the playlist that is to be read: the first one, or the best one that it names.

        A master playlist names the same pictures several times, for lines of different speed. The one with the most
        pixels is taken, and of equal ones the one with the most bits. FFmpeg would ask for the segments of all.

        Raises:
            InputError: A host is not allowed, or the playlist or one of its lines is too long.
            OSError: There is no answer.

        Source:
            RFC 8216, sections 4.2 (attribute lists) and 4.3.4.2 (EXT-X-STREAM-INF).
        """
        with closing(self(self.address, 0, {})) as answer:
            body: bytes = _checked(answer.read(_MOST_BYTES + 1))
        lines = [line.strip().decode("utf-8", "replace") for line in body.splitlines()]
        variants: list[tuple[int, int, str]] = []
        attrs: dict[str, str] | None = None
        for line in lines:
            if line.startswith(_VARIANT):
                attrs = dict(_ATTRIBUTE.findall(line[len(_VARIANT) :]))
            elif line and not line.startswith("#") and attrs is not None:
                width, _, height = attrs.get("RESOLUTION", "0x0").partition("x")
                variants.append(
                    (_number(width) * _number(height), _number(attrs.get("BANDWIDTH", "")), line)
                )
                attrs = None
        best = max(variants, key=lambda variant: variant[:2], default=(0, 0, ""))
        return urljoin(self.address, best[2])

    def __call__(self, url: str, flags: int, options: dict[str, str]) -> Any:
        """Return the body of what is at ``url``, to read from.

        Raises:
            InputError: The host is not allowed, it is no address of HTTP, or a playlist or one of its lines is too long.
            OSError: There is no answer.
        """
        try:
            return self._open(url, options)
        except InputError as error:
            self.refused = error
            raise

    def _open(self, url: str, options: dict[str, str]) -> Any:
        self._check(url)
        is_there = urlsplit(url).netloc == urlsplit(self.address).netloc
        headers = {**self._authorization} if is_there else {}
        first, last = int(options.get("offset", 0)), int(options.get("end_offset", 0))
        if first or last:  # a segment that is a part of a file
            headers["Range"] = f"bytes={first}-{last - 1 if last else ''}"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked above
        answer = self._opener.open(request, timeout=self._timeout_s)
        head = answer.read(len(_FIRST))
        if head != _FIRST:  # what FFmpeg takes for no playlist
            return _Segment(head, answer)
        with answer:
            return io.BytesIO(_checked(head + answer.read(_MOST_BYTES + 1)))

    def _check(self, url: str) -> None:
        check_address(url, self._hosts)
        if urlsplit(url).scheme.lower() not in ("http", "https"):
            raise InputError("a playlist is read over HTTP", expected="http or https", got=url)
