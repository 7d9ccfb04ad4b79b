"""Whose a file is: of a folder, by an id that its first writer leaves there, and of a sink, by its name."""

from __future__ import annotations

import os
import re
import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows: what nobody has touched for a while is taken for dead
    fcntl = None  # type: ignore[assignment]

__all__ = ["OWNER", "Mark", "is_locked", "lock", "mark_beside", "owner_of"]

OWNER = ".headrace-owner"
"""The file with the id of a folder. Its time is when something was last begun in there."""

_MARK = re.compile(r"headrace:([0-9a-f]{32}):(event|rest):([^\0]*)")
_MAKING = threading.Lock()


class Mark(NamedTuple):
    """What a file of a sink bears.

    Attributes:
        owner: The id of the folder that it was written to.
        sink: The name of the sink.
        is_event: Whether it is kept as long as events are.
    """

    owner: str
    sink: str
    is_event: bool = False

    def __str__(self) -> str:
        return f"headrace:{self.owner}:{'event' if self.is_event else 'rest'}:{self.sink}"

    @classmethod
    def found_in(cls, text: str) -> Mark | None:
        """Return the first mark in a text, or None."""
        found = _MARK.search(text)
        return found and cls(found[1], found[3], found[2] == "event")


def owner_of(folder: Path) -> str:
    """Return the id of a folder, and leave one where there is none: 32 hexadecimal digits.

    Raises:
        OSError: It cannot be read, or written.
    """
    path = folder / OWNER
    with _MAKING:
        try:
            with path.open("x", encoding="ascii") as file:
                try:
                    file.write(secrets.token_hex(16))
                    file.flush()
                except OSError:
                    path.unlink()
                    raise
        except FileExistsError:
            with suppress(OSError):  # of another user
                os.utime(path)
        found = path.read_text(encoding="ascii", errors="replace")
    if not re.fullmatch("[0-9a-f]{32}", found):
        raise OSError(f"{path} is cut: remove it, and nothing that was written before is deleted")
    return found


def mark_beside(path: Path) -> Mark | None:
    """Return what the small file says whose the files beside it are, or None."""
    with suppress(OSError):
        return Mark.found_in(path.read_text(encoding="utf-8", errors="replace"))
    return None


def lock(file: object) -> bool:
    """Lock an open file until it is closed. Return False where another one has it."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]
        except BlockingIOError:
            return False
        except OSError:  # a share without locks
            return True
    return True


def is_locked(path: Path) -> bool:
    """Return whether a run that lives has locked a file."""
    with path.open("rb") as file:
        return not lock(file)
