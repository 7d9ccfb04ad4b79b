"""The memory that models were measured to take, remembered on this machine for the next start."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import sys
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any

from headrace_formats import write_whole
from headrace_models.fetching.cache import cache_folder
from headrace_models.sources import files_of, stamp

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

__all__ = ["key_of", "read_sizes", "write_sizes"]

_log = logging.getLogger("headrace.models")


def key_of(nodes: Collection[Mapping[str, Any]]) -> str:
    """Return what the size of a model depends on, as a digest: files, settings with the devices, versions of all libraries.

    Args:
        nodes: The nodes of `headrace.explain`.
    """
    files = {str(path): stamp(path) for path in files_of(nodes)}
    text = json.dumps([[*nodes], files, _versions()], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _versions() -> list[str]:
    installed = {f"{each.name} {each.version}" for each in metadata.distributions()}
    return [sys.version, *sorted(installed)]


def read_sizes(key: str) -> dict[str, int]:
    """Return the bytes by device that were written for a key, none if there are none, or if the file is damaged."""
    from pydantic import PositiveInt, TypeAdapter

    path = _path(key)
    try:
        return TypeAdapter(dict[str, PositiveInt]).validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        _warn_once(path, type(error).__name__)
    return {}


@functools.cache
def _warn_once(path: Path, why: str) -> None:
    _log.warning("%s holds no sizes of a model, and is ignored: %s", path, why)


def write_sizes(key: str, sizes_bytes: Mapping[str, int]) -> None:
    """Write the bytes by device for a key, whole or not at all."""
    path = _path(key)
    with suppress(OSError):  # they are measured again
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, json.dumps(sizes_bytes))


def _path(key: str) -> Path:
    return cache_folder() / "sizes" / f"{key}.json"
