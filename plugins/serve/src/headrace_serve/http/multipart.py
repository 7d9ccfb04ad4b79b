"""Files and fields in a body of ``multipart/form-data``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from python_multipart.multipart import parse_options_header

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_form"]

_MOST_HEADER_BYTES = 16 << 10
_HEAD = re.compile(rb"[ \t]*\r\n")
"""What may stand behind a boundary on its line (RFC 2046, 5.1.1)."""
_PLAIN = (b"binary", b"8bit", b"7bit")


def read_form(
    body: bytes, content_type: str, most: int, most_fields: int
) -> tuple[list[tuple[str, bytes]], list[tuple[str, str]]]:
    """Return the files and fields of a body. A part with a name of a file is a file, every other one is a field.

    A file without name and content is left out: a browser sends it for an input in which nobody chose a file.

    Args:
        body: The whole body.
        content_type: The header ``Content-Type``, which has the boundary.
        most: The most files that the body may have.
        most_fields: The most fields that it may have.

    Returns:
        The files: each with its name, else that of its field, and its bytes. And the fields, each with its name and text.

    Raises:
        InputError: The body is malformed, has no file, too many parts, or a field that is no text.

    Source:
        RFC 7578, sections 4.2 and 5.1; RFC 2046, section 5.1.1.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InputError("content-type", expected="multipart/form-data; boundary=...")
    files: list[tuple[str, bytes]] = []
    fields: list[tuple[str, str]] = []
    for number, part in enumerate(_parts(body, boundary)):
        if number == most + most_fields:
            raise InputError(f"the body has more than the {number} parts that it may have")
        name, file, content = _read_part(part)
        if file is None:
            fields.append((name, _text(name, content)))
        elif file or content:
            files.append((file or name, content))
    if len(files) > most or len(fields) > most_fields:
        raise InputError(
            f"the body has more than the {most} files or {most_fields} fields that it may have"
        )
    if not files:
        raise InputError("the body has no file, which is a part with a filename")
    return files, fields


def _parts(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Return what stands between the boundaries of a body."""
    mark = b"\r\n--" + boundary
    at = -2 if body.startswith(mark[2:]) else body.find(mark)
    while at != -1:
        start = at + len(mark)
        if body.startswith(b"--", start):
            return
        at = body.find(mark, start)
        if at != -1:
            yield body[start:at]
    raise InputError("the body is no multipart/form-data: it ends before its last boundary")


def _read_part(part: bytes) -> tuple[str, str | None, bytes]:
    """Return the name of a part, the name of its file if it is one, and its content."""
    begin = _HEAD.match(part)
    # Without a header the empty line is at once there.
    end = -1 if begin is None else part.find(b"\r\n\r\n", begin.end() - 2)
    if begin is None or end == -1:
        raise InputError(
            "the body is no multipart/form-data: a part of it has no end of its headers"
        )
    if end > _MOST_HEADER_BYTES:
        raise InputError("the headers of a part of the body are too long")
    options: dict[bytes, bytes] = {}
    for line in filter(None, part[begin.end() : end].split(b"\r\n")):
        header, colon, value = line.partition(b":")
        if not colon or not header.strip():
            raise InputError("the body is no multipart/form-data: a header of a part has no name")
        match header.lower():
            case b"content-disposition":
                _, options = parse_options_header(value)
            case b"content-transfer-encoding" if value.strip().lower() not in _PLAIN:
                raise InputError("content-transfer-encoding of a part", expected="binary")
    name = _text("name", options.get(b"name", b""))
    file = options.get(b"filename")
    return name, None if file is None else file.decode("utf-8", "replace"), part[end + 4 :]


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"field {name[:80]!r} of the form is no UTF-8 text") from None
