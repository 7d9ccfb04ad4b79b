"""How the files of a source are called."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from time import gmtime, strftime

from headrace_vision.network import is_address
from headrace_vision.reading.connection import CONTAINERS

__all__ = ["EVENT", "Names", "VideoNames", "mark_of"]

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


class VideoNames:
    """The files of videos: a name for each that no other sink or program has.

    Args:
        folder: Where they go.
        own: Returns the names, without suffix, of those that are being written.
        has_time: Whether the time at which a video begins is in its name.

    Attributes:
        counts: How many videos of each source were begun.
        titles: What each source is called in its videos. Others are called as they are.
    """

    def __init__(self, folder: Path, own: Callable[[], Collection[str]], *, has_time: bool) -> None:
        self.counts: Counter[str] = Counter()
        self.titles: dict[str, str] = {}
        self._folder, self._own, self._has_time = folder, own, has_time
        self._names = Names(lambda name: not has_time and self._is_there(name))

    def take(
        self, source: str, kind: str, time: float | None, suffix: str = ".mp4"
    ) -> tuple[Path, str]:
        """Take a path for the next video of a source, and return it with its title."""
        count = self.counts[source] + 1
        name = self._names.of(source)
        if self._has_time:
            name += f"-{strftime('%Y%m%d-%H%M%S', gmtime(time))}"
        elif count > 1:
            name += f"-{kind}{count}"
        stem, number = name, 2
        while not self._takes(name, suffix):
            name, number = f"{stem}-{number}", number + 1
        path = self._folder / f"{name}{suffix}"
        if is_address(source):  # which may have a key
            return path, self._names.of(source)
        return path, self.titles.get(source, source)

    def _takes(self, name: str, suffix: str) -> bool:
        """Take a name that no other sink or program has."""
        part = self._folder / f"{name}{suffix}.part"
        if name in self._own() or self._is_there(name):  # its own, though somebody has removed it
            return False
        try:
            part.touch(exist_ok=False)
        except FileExistsError:  # since
            return False
        if self._is_there(name, ("",)):  # who had it before has finished since
            part.unlink()
            return False
        return True

    def _is_there(self, name: str, kinds: tuple[str, ...] = ("", ".part")) -> bool:
        ends = [f"{suffix}{kind}" for suffix in CONTAINERS for kind in kinds]
        return any((self._folder / f"{name}{end}").exists() for end in ends)


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
