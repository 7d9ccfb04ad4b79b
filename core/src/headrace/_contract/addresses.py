"""Files that are named by an address, as ``hf://org/name/model.onnx``: where they lie in the cache of this machine."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://\S+")
_FOLDERS = {"darwin": "~/Library/Caches", "win32": "~/AppData/Local"}
_named: dict[Path, str] = {}
"""The address of each place that was asked for, whether its file is there or not."""


def is_address(value: Any) -> bool:
    """Return whether a value is the address of a file or folder: ``SCHEME://...``."""
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None


def place_of(address: str) -> Path:
    """Return where the file of an address lies, or will lie. It is in a folder of its own."""
    own = os.environ.get("XDG_CACHE_HOME") or _FOLDERS.get(sys.platform, "~/.cache")
    named = os.environ.get("HEADRACE_CACHE") or os.path.join(own, "headrace")  # noqa: PTH118 - with ~
    last = re.split(r"[?#]", address)[0].rstrip("/").rpartition("/")[2].partition("@")[0]
    name = re.sub(r"[^\w.+-]", "_", last).lstrip(".") or "file"
    key = hashlib.sha256(address.encode()).hexdigest()[:32]
    root = Path(os.path.abspath(os.path.expanduser(named)))  # noqa: PTH100, PTH111 - links keep their names
    place = root / "fetched" / key / "whole" / name
    _named[place] = str(address)
    return place


def address_of(path: Path) -> str | None:
    """Return the address whose place a path is, None for another path."""
    return _named.get(path)


def origin_of(path: Path) -> dict[str, Any] | None:
    """Return address, revision and digest of a fetched file, or of one in a fetched folder; None for other files.

    Of what is not here yet it is the address alone.
    """
    inside = f"{os.sep}whole{os.sep}" in str(path)
    whole = next(one for one in path.parents if one.name == "whole") if inside else None
    if whole is not None and whole.exists():
        try:
            found: dict[str, Any] = json.loads((whole.parent / "origin.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None  # a folder of this name that is not ours
        return found
    return {"address": _named[path]} if path in _named else None
