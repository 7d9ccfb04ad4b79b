"""Reads JSON files; writes files so that a reader finds either the whole new file or the old one."""

from __future__ import annotations

import contextlib
import errno
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace_formats
from headrace.errors import InputError
from headrace.plugins import read_lines, read_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

__all__ = ["check_writable", "lines_of", "read_json", "write_json", "write_text", "write_whole"]


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a new file in the folder of ``path``, and then rename it to ``path`` in one step.

    A device or a pipe, as ``/dev/null`` or ``/dev/stdout``, is written to: a new file would take its place for every
    program. A link stays, and the file that it names is replaced.

    Raises:
        OSError: The file cannot be written. A file at ``path`` is unchanged.
    """
    if _is_special(Path(path)):
        with _naming(Path(path)):
            write(Path(path))
        return
    headrace_formats.write_whole(_file_of(Path(path)), write)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Return an error the name of the file that a user knows; a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as `write_whole` does."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Check that `write_whole` can write a file, and leave no file behind.

    Raises:
        OSError: It cannot.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not _is_special(Path(path)):
        _beside(_file_of(Path(path))).unlink()


def _file_of(path: Path) -> Path:
    """Return the file that a link names; any other path as it is."""
    return path.resolve() if path.is_symlink() else path


def _is_special(path: Path) -> bool:
    """Return whether a path names a device or a pipe, not a file or nothing."""
    return path.exists() and not path.is_file()


def _beside(target: Path) -> Path:
    """Make a new file in the folder of a file, with the permissions that any new file gets there."""
    while True:
        temporary = target.with_name(f".{target.stem}-{secrets.token_hex(4)}{target.suffix}")
        try:
            temporary.open("xb").close()
        except FileExistsError:
            continue
        except OSError as error:  # the error would name the temporary file
            raise OSError(error.errno, error.strerror, str(target)) from None
        return temporary


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write plain data as JSON."""
    write_text(path, headrace_formats.write_json(content, indent=2) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        InputError: The file cannot be read, or is not JSON.
    """
    try:
        return headrace_formats.read_json(read_text(path))
    except OSError as error:
        raise InputError(f"{path}: it cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def lines_of(path: str | os.PathLike[str], noun: str) -> list[str]:
    """Read the lines of a text.

    Args:
        path: The file.
        noun: What it is, for errors: ``the dump``.

    Raises:
        InputError: The file cannot be read.
    """
    try:
        return [*read_lines(path)]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{noun} {path} cannot be read: {why}") from error
