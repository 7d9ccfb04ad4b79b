"""Files that are named by an address, as ``hf://org/name/model.onnx``.

This module knows which there are, and what fetches them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://.*")


class Fetched(Protocol):
    """What a plugin gives for an address; see `headrace.hookspecs`."""

    path: Path

    def fetch(self) -> object:
        """Have the file at ``path``."""

    def origin(self) -> dict[str, Any]:
        """Return address, revision and digest."""


places: dict[str, Fetched] = {}
"""By the place of its file what a plugin gave for each address that was named."""


def is_address(value: Any) -> bool:
    """Return whether a value is the address of a file or folder: ``SCHEME://...``."""
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _place_of(path: Path) -> Fetched | None:
    return next((places[text] for at in (path, *path.parents) if (text := str(at)) in places), None)


def origin_of(path: Path) -> dict[str, Any] | None:
    """Return address, revision and digest of a file that was fetched, or of one in such a folder.

    None for other files.

    Of what is not here yet it is the address alone.
    """
    place = _place_of(path)
    return None if place is None else place.origin()


def places_in(options: Iterable[Any]) -> list[Fetched]:
    """Return what plugins gave for the addresses of the files that some options name."""
    named: dict[int, Fetched] = {}
    # Past their class: one may have a field `keys`, and this reads no option for whom it is meant.
    left = [object.__getattribute__(model, "__dict__") for model in options if model is not None]
    for value in left if places else ():
        if isinstance(value, (Mapping, list, tuple)):
            left += value.values() if isinstance(value, Mapping) else value
        elif isinstance(value, Path) and (place := _place_of(value)) is not None:
            named[id(place)] = place
    return [*named.values()]


@contextmanager
def hold_files(options: Any) -> Iterator[None]:
    """Have all files here that options name by addresses.

    Check at the end that those were loaded, where a plugin can.
    """
    fetched = places_in([options])
    for place in fetched:
        place.fetch()
    yield
    for place in fetched:
        if hasattr(place, "check"):
            place.check()
