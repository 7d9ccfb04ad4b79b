"""Files that stay open from their digest on, so that one that takes the place of another is seen."""

from __future__ import annotations

import hashlib
import os
import weakref
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Digests", "digest_of"]


class Digests:
    """The digests of files. An open file keeps its inode, and each write sets a time that no program can set."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[str, tuple[int, ...]]] = {}

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file as it was when it was asked for first, in hexadecimal digits.

        Raises:
            OSError: It cannot be read.
        """
        if path not in self._files:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            weakref.finalize(self, os.close, descriptor)
            before = _state(os.fstat(descriptor))
            with open(descriptor, "rb", closefd=False) as file:
                digest = _digest(file)
            same = _state(os.fstat(descriptor)) == before
            self._files[path] = digest, before if same else ()  # else it was written meanwhile
        return self._files[path][0]

    def changed(self) -> list[str]:
        """Return the names of the files that are no longer those of the digests."""
        return [path.name for path, (_, before) in self._files.items() if _now(path) != before]


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return _digest(file)


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _now(path: Path) -> tuple[int, ...] | None:
    try:
        return _state(path.stat())
    except OSError:
        return None
