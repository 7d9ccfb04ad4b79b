"""Files of records: a line, a row or an object each, as dicts, one after the other and never all at once.

A function here takes the path of a file. What it gives for a record that is none is a `FormatError`, so that the others
go on. A file that is wrong as a whole raises one.
"""

from __future__ import annotations

import csv
import importlib
from typing import TYPE_CHECKING, Any

from headrace_formats import FormatError, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["arrow_rows", "csv_rows", "json_lines", "numpy_rows", "parquet_rows", "text_lines"]

_BATCH_ROWS = 256


def json_lines(path: Path) -> Iterator[dict[str, Any] | FormatError]:
    """Read a file of JSON Lines, which has an object in each line. Empty lines do not count.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield _object(line)


def _object(line: bytes) -> dict[str, Any] | FormatError:
    try:
        value = read_json(line)
    except FormatError as error:
        return error
    return value if isinstance(value, dict) else FormatError("it is no object of JSON")


def csv_rows(path: Path) -> Iterator[dict[str, Any] | FormatError]:
    """Read a CSV in UTF-8, whose first line names the columns. Every value is a text.

    Raises:
        OSError: It cannot be read.
        FormatError: It has no line with names, or is no UTF-8.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            names = next(rows, None)
            if not names or len(set(names)) < len(names):
                raise FormatError("its first line does not give each column a name of its own")
            for row in rows:
                if not row:
                    continue
                if len(row) == len(names):
                    yield dict(zip(names, row, strict=True))
                else:
                    yield FormatError(f"it has {len(row)} cells, the first line {len(names)}")
        except (csv.Error, UnicodeDecodeError) as error:
            raise FormatError(f"it is no CSV in UTF-8: {error}") from None


def text_lines(path: Path) -> Iterator[dict[str, Any] | FormatError]:
    """Read a text in UTF-8: each line is ``data``, without its end. Empty lines count."""
    with path.open("rb") as file:
        for line in file:
            try:
                yield {"data": line.decode("utf-8").rstrip("\r\n")}
            except UnicodeDecodeError as error:
                yield FormatError(f"it is no UTF-8: {error}")


def numpy_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read an array of numpy, ``.npy``: each row is ``data``. It is mapped into memory, not read as a whole.

    Raises:
        ImportError: numpy is not installed.
        FormatError: There is no array of numbers in it, or one without rows.
    """
    numpy: Any = importlib.import_module("numpy")
    try:
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"numpy reads no array in it: {error}") from None
    if not getattr(array, "ndim", 0):
        raise FormatError("it holds no rows")
    for row in array:
        yield {"data": numpy.array(row)}


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file of Parquet. A list of numbers is an array of numpy, a null is None.

    Raises:
        ImportError: pyarrow is not installed.
        FormatError: It is no Parquet.
    """
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except ValueError as error:  # `pyarrow.ArrowInvalid`
        raise FormatError(f"it is no Parquet: {error}") from None
    with file:
        for batch in file.iter_batches(_BATCH_ROWS):
            yield from _rows(batch)


def arrow_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read a file or a stream of Arrow, as Feather is. A list of numbers is an array of numpy, a null is None.

    Raises:
        ImportError: pyarrow is not installed.
        FormatError: It is none.
    """
    arrow: Any = importlib.import_module("pyarrow")
    with arrow.memory_map(str(path)) as source:
        try:
            try:
                file = arrow.ipc.open_file(source)
                batches = (file.get_batch(k) for k in range(file.num_record_batches))
            except ValueError:  # `pyarrow.ArrowInvalid`
                source.seek(0)
                batches = iter(arrow.ipc.open_stream(source))
        except ValueError as error:
            raise FormatError(f"it is no Arrow: {error}") from None
        for batch in batches:
            yield from _rows(batch)


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Give the rows of a batch of Arrow."""
    types: Any = importlib.import_module("pyarrow.types")
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        is_list = types.is_list(field.type) or types.is_fixed_size_list(field.type)
        numbers = is_list and types.is_primitive(field.type.value_type)
        columns.append(column.to_numpy(zero_copy_only=False) if numbers else column.to_pylist())
    for row in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, row, strict=True))
