"""Whose a file is: of a folder, by an id that its first writer leaves there, and of a sink, by its name."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

try:
    import fcntl
except ImportError:  # Windows: what nobody has touched for a while is taken for dead
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OWNER", "Mark", "held", "lock", "mark_beside", "owner_of"]

OWNER = ".headrace-owner"
"""The file with the id of a folder. Its time is when something was last begun in there."""

_MARK = re.compile(r"headrace:([0-9a-f]{32}):(event|other):([\w.~%-]*);", re.ASCII)
"""The name of a sink is quoted as in an address, so that any name is found in any bytes."""


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
        name = quote(self.sink, safe="", errors="surrogatepass")
        return f"headrace:{self.owner}:{'event' if self.is_event else 'other'}:{name};"

    @classmethod
    def found_in(cls, text: str) -> Mark | None:
        """Return the first mark in a text, or None."""
        match = _MARK.search(text)
        return match and cls(
            match[1], unquote(match[3], errors="surrogatepass"), match[2] == "event"
        )


def owner_of(folder: Path) -> str:
    """Return the id of a folder, and leave one where there is none: 32 hexadecimal digits.

    Raises:
        OSError: It cannot be read, or written.
    """
    path = folder / OWNER
    if not path.exists():
        own = folder / f"{OWNER}.{secrets.token_hex(8)}"
        try:
            own.write_text(secrets.token_hex(16), encoding="ascii")
            os.link(own, path)  # whole, or not there
        except FileExistsError:  # of another program, in this moment
            pass
        except OSError:
            own.replace(path)  # a disk without links, as exFAT. Or `own` is not there either
        finally:
            own.unlink(missing_ok=True)
    with suppress(OSError):  # of another user
        os.utime(path)
    owner = path.read_text(encoding="ascii", errors="replace")
    if not re.fullmatch("[0-9a-f]{32}", owner):
        raise OSError(f"{path} is cut: remove it, and nothing that was written before is deleted")
    return owner


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


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Lock a file for a while. Yield False where a run that lives has locked it.

    Raises:
        OSError: It cannot be read.
    """
    if fcntl is None:  # an open file could not be renamed
        yield True
        return
    file = path.open("rb")
    try:
        yield lock(file)
    finally:
        file.close()
