"""The files that ``headrace run --out`` appends to: a row for each result, found again by a later run."""

from __future__ import annotations

import csv
import hashlib
import importlib
import json
import math
import os
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from headrace_cli.console import WrongArgument
from headrace_cli.printing import as_json, escaped
from headrace_cli.results.cells import NoCellError, cell, cells_by_column, row

if TYPE_CHECKING:
    from pathlib import Path

NUMPY_HEAD_BYTES = 128
"""The bytes before the numbers of a ``.npy`` file: room for any number of rows."""


class Rows:
    """A file of lines, each of which begins with the name of its input.

    A finished input takes 8 bytes of memory: a part of a hash of its name. Two of a million names are equal in it with a
    probability below 1e-7.

    Args:
        path: The file. A last line without end is removed.
        key: What the name of an input is called in it.

    Attributes:
        stood: How many lines stood there.

    Raises:
        WrongArgument: The file holds something else.
    """

    heads = 0

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self._done = array("Q")
        if path.exists():
            self._read()
        self._done = array("Q", sorted(self._done))
        self.stood = len(self._done)
        self._stream = path.open("a", 1, "utf-8", "surrogateescape", "\n")

    def _read(self) -> None:
        with self._path.open("r+b") as stream:
            end = 0
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    stream.truncate(end)
                    break
                end += len(line)
                text = line.decode("utf-8", "surrogateescape")
                try:
                    if number <= self.heads:
                        self.read_head(text)
                    else:
                        self._done.append(_mark(self.name_in(text)))
                except (ValueError, TypeError, KeyError, StopIteration):
                    text = "this is no line of headrace run --out"
                    raise WrongArgument(f"--out {self._path}:{number}: {text}") from None

    def holds(self, name: str) -> bool:
        """Return whether an input has had its line when the file was opened."""
        mark = _mark(name)
        place = bisect_left(self._done, mark)
        return place < len(self._done) and self._done[place] == mark

    def read_head(self, text: str) -> None:
        """Take the first line of a file that has one."""

    def name_in(self, text: str) -> str:
        """Return the name of the input in a line."""
        found: str = json.loads(text)[self._key]
        return found

    def add(self, name: str, what: str, value: Any) -> None:
        """Append a line, which is in the file when this returns."""
        self._stream.write(as_json({self._key: name, what: value}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class CsvRows(Rows):
    """A CSV: the name, and the result, or a column for each value in it, as the first result has them.

    Args:
        path: See `Rows`.
        key: See `Rows`.
        wide: Whether each value in a result has a column.
    """

    heads = 1

    def __init__(self, path: Path, key: str, *, wide: bool) -> None:
        self._wide = wide
        self._names: list[str] = []
        super().__init__(path, key)

    def read_head(self, text: str) -> None:
        """Take the names of the columns."""
        key, *self._names = next(csv.reader([text]))
        if key != self._key or not self._names:
            raise ValueError

    def name_in(self, text: str) -> str:
        """Return the name of the input in a line."""
        return next(csv.reader([text]))[0]

    def holds(self, name: str) -> bool:
        """Return whether an input has had its line when the file was opened."""
        return super().holds(escaped(name))

    def add(self, name: str, what: str, value: Any) -> None:
        """Append a line.

        Raises:
            WrongArgument: The first result has no cell.
            NoCellError: Another one has none, or not those of the first.
        """
        try:
            cells = cells_by_column(value) if self._wide else {what: cell(value)}
        except NoCellError as error:
            if not self._names:
                raise WrongArgument(f"--out {self._path}: {name}: {error}") from None
            raise
        if not self._names:
            self._names = [*cells]
            self._stream.write(row([self._key, *self._names]))
        if [*cells] != self._names:
            raise NoCellError(
                "its result has other columns than the first one; --out FILE.jsonl takes any"
            )
        self._stream.write(row([escaped(name), *cells.values()]))


class NumpyRows:
    """An array of numpy: the k-th row is the result of the k-th input, NaN where it has failed.

    The file is a whole array whenever it was closed. After a kill its head is behind its rows, which a later run finds by
    the size of the file.

    Attributes:
        stood: How many rows stood there.

    Raises:
        WrongArgument: The file is no such array, or numpy is not installed.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._numpy: Any = importlib.import_module("numpy")
        except ImportError:
            raise WrongArgument(f"--out {path}: numpy is not installed") from None
        self._path, self.stood, self._asked, self._count = path, 0, 0, 0
        self._form: tuple[Any, tuple[int, ...]] | None = None
        is_there = path.exists() and path.stat().st_size >= NUMPY_HEAD_BYTES
        self._stream = path.open("r+b" if is_there else "wb")
        try:
            if is_there:
                self._take_up()
        except BaseException:
            self._stream.close()
            raise

    def _take_up(self) -> None:
        formats = self._numpy.lib.format
        try:
            formats.read_magic(self._stream)
            shape, _, dtype = formats.read_array_header_1_0(self._stream)
        except ValueError as error:
            raise WrongArgument(f"--out {self._path}: it is no array: {error}") from None
        self._form = (dtype, shape[1:])
        bytes_there = os.fstat(self._stream.fileno()).st_size - self._stream.tell()
        self.stood = self._count = bytes_there // self._bytes_of_row()
        self._stream.seek(self._stream.tell() + self.stood * self._bytes_of_row())
        self._stream.truncate()

    def _bytes_of_row(self) -> int:
        dtype, shape = self._form or (self._numpy.dtype("u1"), ())
        return max(1, int(dtype.itemsize) * math.prod(shape))

    def holds(self, _: str) -> bool:
        """Return whether the next input, in their order, had its row when the file was opened."""
        self._asked += 1
        return self._asked <= self.stood

    def add(self, _: str, what: str, value: Any) -> None:
        """Append a row.

        Raises:
            WrongArgument: The first result is no array of numbers, or an input has failed and there is no NaN for it.
            NoCellError: Another one has another shape or type than the first.
        """
        numpy = self._numpy
        if what == "error":
            if self._form is None or self._form[0].kind not in "fc":
                text = "an input has failed, and no number stands for it in this file"
                raise WrongArgument(
                    f"--out {self._path}: {text}; --out FILE.jsonl takes any result"
                )
            value = numpy.full(self._form[1], numpy.nan, self._form[0])
        number = numpy.asarray(value)
        if number.dtype.kind not in "biufc":
            raise WrongArgument(
                f"--out {self._path}: {type(value).__name__} is no array of numbers"
            )
        if self._form is None:
            self._form = (number.dtype, number.shape)
            self._write_head()
        if self._form != (number.dtype, number.shape):
            raise NoCellError(
                f"its result is {number.dtype} {list(number.shape)}, unlike the first one"
            )
        self._stream.write(number.tobytes())
        self._count += 1

    def _write_head(self) -> None:
        if self._form is None:
            return
        dtype, shape = self._form
        descr = self._numpy.lib.format.dtype_to_descr(dtype)
        text = (
            f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {(self._count, *shape)!r}, }}"
        )
        head = b"\x93NUMPY\x01\x00" + (NUMPY_HEAD_BYTES - 10).to_bytes(2, "little")
        self._stream.seek(0)
        self._stream.write(head + text.encode().ljust(NUMPY_HEAD_BYTES - 11) + b"\n")
        self._stream.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Write the number of rows into the head, and close the file."""
        if not self._stream.closed:
            self._write_head()
            self._stream.close()


def _mark(name: str) -> int:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
