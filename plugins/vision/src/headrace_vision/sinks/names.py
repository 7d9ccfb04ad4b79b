"""How the files of a source are called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["EVENT", "Names", "mark_of"]

MOST_NAME_BYTES = 80
"""Most bytes of the name of a source in UTF-8: file systems take 255, with time, number and suffixes."""

KEY_LENGTH = 32
"""A last part of an address that has so many characters is taken for a key."""

EVENT = "-event"
"""How the names of files with events end, where they are kept longer."""

_ADDRESS = re.compile(r"[^:/]*://(?:[^/?#]*@)?([^/?#]*)([^?#;]*).*", re.DOTALL)


class Names:
    """File names for sources: the last part of a path without its suffix, made unique.

    What is long is cut, and a mark of eight digits tells it from others. Of an address, the query and a last part that is as long as
    a key are in no name, since they are often secrets. Then it is called by its host and a mark.

    Args:
        is_taken: Returns whether there are files of an earlier run of that name, which stay as they are.
    """

    def __init__(self, is_taken: Callable[[str], bool] = lambda name: False) -> None:
        self._is_taken = is_taken
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, source: str) -> str:
        """Return the name of a source, always the same."""
        if source not in self._names:
            name = stem = re.sub(r"[^\w.-]+", "_", _stem_of(source)).strip(".") or "source"
            if len(stem.encode()) > MOST_NAME_BYTES:
                cut = stem.encode()[: MOST_NAME_BYTES - 9].decode(errors="ignore")
                name = stem = f"{cut}-{mark_of(source)}"
            number = 2
            while name.lower() in self._taken or self._is_taken(name):
                name, number = f"{stem}-{number}", number + 1
            self._taken.add(name.lower())
            self._names[source] = name
        return self._names[source]


def _stem_of(source: str) -> str:
    match = _ADDRESS.fullmatch(source)
    if match is None:
        return Path(source.rstrip("/\\")).stem
    host, path = match.groups()
    last = path.rstrip("/").rpartition("/")[2]
    if len(last) >= KEY_LENGTH:
        return f"{host}-{mark_of(source)}"
    return Path(last).stem or str(host)


def mark_of(source: str) -> str:
    """Return eight digits that tell a text from others, always the same."""
    return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:8]
