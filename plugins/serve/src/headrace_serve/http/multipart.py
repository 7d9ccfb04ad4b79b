"""Files in a body of ``multipart/form-data``."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from headrace.errors import InputError

__all__ = ["File", "read_files"]

_MOST_HEADER_BYTES = 16 << 10
_SILENT = logging.Logger("silent", logging.CRITICAL)  # noqa: LOG001 - nobody else finds it
"""Drops the parser's messages, because they quote the client's data; the answer states the problem."""

_PLAIN = (b"binary", b"8bit", b"7bit")


@dataclass
class File:
    """One part of a body.

    Attributes:
        name: The name of the file, else the name of the field. ``""`` without either.
        content: The bytes of the part.
    """

    name: str = ""
    content: bytes = b""


@dataclass
class _Reader:
    """Makes files from the callbacks of the parser."""

    most: int
    files: list[File] = field(default_factory=list)
    ended: bool = False
    _data: list[bytes] = field(default_factory=list)
    _head: list[bytes] = field(default_factory=list)
    _field: bytes = b""
    _value: bytes = b""
    _header_bytes: int = 0

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self.part_begin,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_part_data": lambda data, start, end: self._data.append(bytes(data[start:end])),
            "on_part_end": self.part_end,
            "on_end": self.end,
        }

    def part_begin(self) -> None:
        if len(self.files) == self.most:
            raise InputError(f"the body has more than the {self.most} files that it may have")
        self.files.append(File())
        self._data = []

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._value += data[start:end]

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > _MOST_HEADER_BYTES * max(1, len(self.files)):
            raise InputError("the headers of a part of the body are too long")

    def header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            name = options.get(b"filename") or options.get(b"name") or b""
            self.files[-1].name = name.decode("utf-8", "replace")
        elif self._field.lower() == b"content-transfer-encoding" and self._value not in _PLAIN:
            raise InputError("content-transfer-encoding of a part", expected="binary")
        self._field = self._value = b""

    def part_end(self) -> None:
        self.files[-1].content = b"".join(self._data)
        self._data = []

    def end(self) -> None:
        self.ended = True


def read_files(body: bytes, content_type: str, most: int) -> list[File]:
    """Give the files of a body in their order.

    Args:
        body: The whole body.
        content_type: The header ``Content-Type``, which has the boundary.
        most: The most files that the body may have.

    Raises:
        InputError: The body is malformed, has no file, or too many.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise InputError("content-type", expected="multipart/form-data; boundary=...")
    reader = _Reader(most)
    try:
        parser = MultipartParser(boundary, reader.callbacks())
        parser.logger = _SILENT
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InputError(f"the body is no multipart/form-data: {error}") from None
    if not reader.files:
        raise InputError("the body has no file")
    if not reader.ended:  # the parser accepts a truncated body as complete
        raise InputError("the body ends before its last boundary")
    return reader.files
