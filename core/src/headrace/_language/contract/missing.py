"""Files that are missing: what stands in their place, and which was perhaps meant."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from headrace._texts import nearest


def nearest_file(path: Path) -> str | None:
    """Give the file beside a missing one that was perhaps meant.

    Of a similar name, or of its name with ``.toml``.

    A name that cannot be printed, such as one that is no UTF-8, is left out: an error could not
    show it. So is a link to nothing.
    """
    try:
        files = islice(path.parent.iterdir(), 1000)
        beside = [file.name for file in files if file.name.isprintable() and file.exists()]
    except OSError:
        return None
    alike = [name for name in beside if nearest(path.stem, [Path(name).stem])]
    similar = nearest(path.name, alike) or next(
        (name for name in beside if name == f"{path.name}.toml"), None
    )
    return None if similar is None else str(path.with_name(similar))


def no_file(path: Path) -> str | None:
    """Say what stands in the place of a file; None where there is a file, or nothing."""
    if path.is_file() or not path.exists():
        return None
    return "a folder" if path.is_dir() else "a pipe or a device"
