"""What SageMaker asks of a container: health, and the invocations of its one model.

Source: Amazon SageMaker's developer guide, "Custom Inference Code with Hosting Services".
"""

from __future__ import annotations

import contextlib
import csv
import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import InputError
from headrace_formats import FormatError, read_json, write_json
from headrace_serve.apis.kserve import error_of, instances_in
from headrace_serve.apis.scores import only_model

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ROUTES"]

_NPY = "application/x-npy"
_CSV = "text/csv"
_LINES = "application/jsonlines"


async def ping(asked: Any) -> Any:
    """Say that the server takes requests: 503 until it does."""
    asked.check_ready()
    return {}


async def invoke(asked: Any) -> Any:
    """Answer instances by predictions, an array of numpy by an array, a file by its result.

    Instances come as JSON, as lines of JSON, or as rows of numbers in CSV. Predictions go as ``Accept`` asks: as lines of
    these two kinds, else as JSON.
    """
    name, kind = (
        only_model(asked, "/invocations"),
        asked.header("content-type").partition(";")[0].strip().lower(),
    )
    if kind == "application/json":
        return await _predictions(asked, name, instances_in(await asked.json()))
    body = await asked.body()
    try:
        (request,) = await asked.requests(name, [_array(body) if kind == _NPY else body])
    except InputError as error:
        if kind == _NPY:
            raise
        if kind not in _ROWS:
            taken = ("application/json", *_ROWS, _NPY)
            raise asked.refused_type(str(error), *taken) from None
        return await _predictions(asked, name, _ROWS[kind](body))
    result = await asked.run(name, request)
    if isinstance(result, bytes):
        return result, "application/octet-stream"
    if hasattr(result, "__array__") and _NPY in asked.header("accept"):
        written = io.BytesIO()
        np.save(written, np.asarray(result), allow_pickle=False)
        return written.getvalue(), _NPY
    return result


async def _predictions(asked: Any, name: str, instances: list[Any]) -> Any:
    results = await asked.run(name, await asked.requests(name, instances))
    accept = asked.header("accept").lower()
    if _LINES in accept:
        plain = (result.tolist() if hasattr(result, "tolist") else result for result in results)
        return b"".join(write_json(value).encode() + b"\n" for value in plain), _LINES
    if _CSV not in accept:
        return {"predictions": results}
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(np.ravel(row).tolist() for row in results)
    return written.getvalue().encode(), _CSV


def _csv(body: bytes) -> list[Any]:
    """Return the rows of CSV, each a list of numbers.

    Raises:
        InputError: It is no CSV of numbers.
    """
    rows: list[Any] = []
    for row in csv.reader(io.StringIO(_text(body), newline="")):
        if row:
            rows.append([_number(len(rows) + 1, column, it) for column, it in enumerate(row, 1)])
    return rows


def _number(row: int, column: int, text: str) -> float:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    place = f"row {row}, column {column} of the body"
    raise InputError(place, expected="a number", got=repr(text)[:40])


def _lines(body: bytes) -> list[Any]:
    """Return the values of lines of JSON.

    Raises:
        InputError: A line is no JSON.
    """
    try:
        return [read_json(line) for line in body.splitlines() if line.strip()]
    except FormatError as error:
        raise InputError(f"a line of the body is no JSON: {error}") from None


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except ValueError:
        raise InputError("the body", expected="UTF-8", got="other bytes") from None


def _array(content: bytes) -> Any:
    """Return the array in the bytes of a file of numpy, of which nothing is trusted."""
    stream, read = io.BytesIO(content), np.lib.format
    try:
        reads = {(1, 0): read.read_array_header_1_0, (2, 0): read.read_array_header_2_0}
        shape, fortran, dtype = reads[read.read_magic(stream)](stream)
        flat = np.frombuffer(content, dtype, offset=stream.tell())
        return flat.reshape(shape, order="F" if fortran else "C")
    except Exception as error:  # noqa: BLE001 - the header is Python, which numpy parses
        raise InputError(f"the body is no array of numpy: {error}") from None


_ROWS: Final[dict[str, Callable[[bytes], list[Any]]]] = {_CSV: _csv, _LINES: _lines}
"""What reads the instances of a body that is no document of JSON, by its type."""

ROUTES = {
    "GET /ping": ping,
    "POST /invocations": invoke,
    "open": ["GET /ping"],
    "error": error_of,
}
"""The routes, and the form of their errors. Health needs no key."""
