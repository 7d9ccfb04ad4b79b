"""Files that are named by an address, as ``hf://org/name/model.onnx``: which there are, and what fetches them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://\S*")
places: dict[str, Any] = {}
"""By the place of its file what a plugin gave for each address that was named; see `headrace.hookspecs.headrace_fetchers`."""


def is_address(value: Any) -> bool:
    """Return whether a value is the address of a file or folder: ``SCHEME://...``."""
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def _place_of(path: Path) -> Any:
    text = str(path)
    for place, named in places.items():
        if text == place or text.startswith(place + os.sep):
            return named
    return None


def origin_of(path: Path) -> dict[str, Any] | None:
    """Return address, revision and digest of a file that was fetched, or of one in such a folder; None for other files.

    Of what is not here yet it is the address alone.
    """
    found: dict[str, Any] | None = (named := _place_of(path)) and named.origin()
    return found


def places_in(options: Iterable[Any]) -> list[Any]:
    """Return what plugins gave for the addresses of the files that some options name."""
    found: dict[int, Any] = {}
    # Past their class: one may have a field `keys`, and this reads no option for whom it is meant.
    left = [object.__getattribute__(one, "__dict__") for one in options if one is not None]
    for one in left if places else ():
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (list, tuple)):
            left += one
        elif isinstance(one, Path) and (named := _place_of(one)) is not None:
            found[id(named)] = named
    return [*found.values()]


def fetch_all(options: Any) -> None:
    """Have all files here that options name by addresses."""
    for one in places_in([options]):
        one.fetch()
