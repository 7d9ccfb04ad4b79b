"""Example inputs that the live page offers: the pictures and texts of one folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.errors import ConfigError, Problem

__all__ = ["Example", "Examples"]

_KINDS: Final = {
    ".bmp": "image/bmp",
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".webp": "image/webp",
}
_MOST: Final = 24
_MOST_BYTES: Final = 4 << 20


class Example(NamedTuple):
    """An example: its ``content``, and the ``Content-Type`` to send with it."""

    content: bytes
    content_type: str


class Examples:
    """The examples in a folder, of files that are no pictures or texts, too large, hidden or links it knows nothing.

    Args:
        folder: The folder. What is below it in other folders is left out.

    Raises:
        ConfigError: There is no such folder, or nothing in it that can be offered.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        if not self._folder.is_dir():
            hint = "Make it, or name another: the live page offers the pictures and texts in it."
            raise ConfigError(
                Problem("serve", f"the folder of examples {str(folder)!r} is not there", hint=hint)
            )
        if not self.listed():
            hint = f"Examples end in {', '.join(_KINDS)} and have at most {_MOST_BYTES >> 20} MiB."
            raise ConfigError(
                Problem("serve", f"the folder {str(folder)!r} has no example", hint=hint)
            )

    @classmethod
    def of(cls, given: str | Path | Examples | None, *, served: bool) -> Examples | None:
        """Return the examples of a folder.

        Args:
            given: The folder, what this has returned for it, or None.
            served: Whether there is a live page that offers them.

        Raises:
            ConfigError: There is no such page, or as when they are made.
        """
        if given is not None and not served:
            hint = "Ask for the page too (ui=True), or leave the examples out."
            raise ConfigError(Problem("serve", "examples need the live page", hint=hint))
        return given if given is None or isinstance(given, Examples) else cls(given)

    def listed(self) -> list[dict[str, Any]]:
        """Return ``name``, ``type`` and ``size_bytes`` of each example, the first ones by name."""
        return [
            {"name": path.name, "type": _KINDS[path.suffix.lower()], "size_bytes": size}
            for path, size in self._found().values()
        ]

    def read(self, name: str) -> Example | None:
        """Return the example of a name; None: there is none of that name."""
        path, _ = self._found().get(name, (None, 0))
        if path is None:
            return None
        with path.open("rb") as file:  # it may have grown since it was found
            return Example(file.read(_MOST_BYTES), _KINDS[path.suffix.lower()])

    def _found(self) -> dict[str, tuple[Path, int]]:
        """Return path and size of the examples by name; a name from outside can only be one of these."""
        files: dict[str, tuple[Path, int]] = {}
        with suppress(OSError):  # the folder is gone
            for path in sorted(self._folder.iterdir()):
                if path.suffix.lower() not in _KINDS or path.name.startswith("."):
                    continue
                if path.is_symlink() or not path.is_file() or not path.name.isprintable():
                    continue
                size = path.stat().st_size
                if 0 < size <= _MOST_BYTES:
                    files[path.name] = path, size
                if len(files) == _MOST:
                    break
        return files
