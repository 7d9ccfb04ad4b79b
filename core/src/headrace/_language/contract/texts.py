"""How every part of Headrace reads a text file.

Configurations, labels, charsets, lists, keys, arrivals.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file in UTF-8, with the ends of its lines as they are.

    A byte order mark, which some editors put in front of the first line, is no part of the text.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not in UTF-8. The error names the file and the line.
    """
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{error.object[error.start]:02x}"
        message = f"{os.fspath(path)}:{line}: this is no text in UTF-8 ({byte}). Save it as UTF-8."
        raise ValueError(message) from error


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    r"""Return the lines of a text file, empty ones too: number n of the file is ``[n - 1]``.

    A line ends with ``\n`` or ``\r\n`` and with no other character, and the last one may lack its
    end. Nothing else is removed from a line.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not in UTF-8. The error names the file and the line.
    """
    text = read_text(path).replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n") if text else []
