"""HLS: what a playlist names is opened here, and not by FFmpeg, so that each host is an allowed one."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import InputError
from headrace_vision.network import check_address, plain_opener

__all__ = ["PlaylistOpener", "is_playlist"]


def is_playlist(address: str) -> bool:
    """Return whether an address is that of a playlist (HLS): its path ends with ``.m3u8``."""
    return urlsplit(address).path.lower().endswith((".m3u8", ".m3u"))


class PlaylistOpener:
    """Opens playlists and their segments for FFmpeg, over HTTP, from allowed hosts alone.

    Args:
        hosts: Hosts that may be asked. Redirects are not followed.
        timeout_s: Seconds of silence after which an answer has failed.

    Attributes:
        refused: Why something that a playlist names was not opened, or None.
    """

    def __init__(self, hosts: Iterable[str], timeout_s: float) -> None:
        self._hosts = tuple(hosts)
        self._timeout_s = timeout_s
        self._opener = plain_opener()
        self.refused: InputError | None = None

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
        first, last = int(options.get("offset", 0)), int(options.get("end_offset", 0))
        if first or last:  # a segment that is a part of a file
            headers["Range"] = f"bytes={first}-{last - 1 if last else ''}"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked above
        return self._opener.open(request, timeout=self._timeout_s)

    def _check(self, url: str) -> None:
        check_address(url, self._hosts)
        if urlsplit(url).scheme.lower() not in ("http", "https"):
            raise InputError("a playlist is read over HTTP", expected="http or https", got=url)
