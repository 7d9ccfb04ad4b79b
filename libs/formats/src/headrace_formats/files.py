"""Files that are written whole: a reader finds the old content or the new, and a failure leaves nothing behind."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["write_whole"]

_NAME_CHARACTERS = 50
"""So much of the name of a file is in that of its part: file systems take 255 bytes."""


def write_whole(
    path: str | os.PathLike[str],
    content: bytes | memoryview | str | Callable[[Path], object],
    *,
    mode: int | None = None,
    sync: bool = False,
) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    The part is ``NAME.DIGITS.part`` in the same folder until it is whole. It takes the place of a link, and not of what the link
    names.

    Args:
        path: The file. Its folder is there.
        content: Bytes, or a text for UTF-8. Or a function that fills the empty file whose path it gets.
        mode: The permissions. None: those of any new file.
        sync: Whether the content is on the disk before it takes its place, also if the machine stops.

    Raises:
        OSError: It cannot be written, or is a device or a pipe, whose place no file may take. The error names ``path``. What was
            there is unchanged, and no part is left.
    """
    target = Path(path)
    if isinstance(content, str):
        content = content.encode()
    if target.exists() and not target.is_file():
        text = "it is no file, but a folder, a device or a pipe"
        raise OSError(errno.EINVAL, text, str(target))
    part = target.with_name(f"{target.name[:_NAME_CHARACTERS]}.{os.urandom(8).hex()}.part")
    try:
        part.touch(0o666 if mode is None else 0o600, exist_ok=False)
        if callable(content):
            content(part)
        else:
            part.write_bytes(content)
        if mode is not None:
            part.chmod(mode)
        if sync:
            with part.open("r+b") as file:
                os.fsync(file.fileno())
        part.replace(target)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:  # a full disk names no file
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise
