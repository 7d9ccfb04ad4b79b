"""What a reload leaves alone: versions whose configuration and files are those that they were built from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins import origin_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_models.model import Model
    from headrace_models.version import Version

__all__ = ["is_unchanged"]


def is_unchanged(present: Model, read: Model, fits: Callable[[Version], bool]) -> bool:
    """Return whether a model that serves is what was read anew: all of its versions, and no others.

    Args:
        present: The model that serves.
        read: The same name, read and checked, and not built.
        fits: Whether there is room for a version that is not here: then one that no request builds is built.
    """
    versions = present.versions
    return versions.keys() == read.versions.keys() and all(
        _is_as(version, read.versions[number], fits) for number, version in [*versions.items()]
    )


def _is_as(present: Version, read: Version, fits: Callable[[Version], bool]) -> bool:
    configuration = (present.source, present.written, present.config)
    if configuration != (read.source, read.written, read.config) or not present.serves:
        return False
    if present.pipe is None:  # a request reads its files when it builds it
        return read.on_demand or not fits(read)
    if any((origin_of(path) or {}).get("moves") for path in present.seen):
        return False  # its address may stand for another file by now
    # One whose update has failed, which its reason says, is tried again.
    return present.seen == read.seen and not present.reason
