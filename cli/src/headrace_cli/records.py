"""Files of records as inputs: each line, row or object of a file that is named is a request."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import InputError
from headrace_cli.console import WrongArgument, counted, error_text
from headrace_cli.inputs import Input, named_by_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALSO_WHOLE = (".csv", ".txt", ".npy")
"""Suffixes of records that are as often one input: they are records with ``--records`` alone."""


@dataclass(frozen=True)
class Columns:
    """What the options of ``headrace run`` say of records.

    Attributes:
        every: Whether each file that is named holds records.
        key: The column that names a record. None: the file and the number of the record do.
        data: The column that is ``data``. None: the one of this name, or the only one.
    """

    every: bool = False
    key: str | None = None
    data: str | None = None


@dataclass(frozen=True)
class Record(Input):
    """One record of a file.

    Attributes:
        content: Its columns, or why it is none.
        columns: See `Columns`.
    """

    content: Any = None
    columns: Columns = Columns()

    def request(self, ports: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the request: all columns, and the one of the data as ``data``.

        Raises:
            InputError: It is no record, or lacks a column.
        """
        if not isinstance(self.content, dict):
            raise InputError(str(self.content))
        key, data = self.columns.key, self.columns.data
        if key is not None and key not in self.content:
            raise InputError(f"there is no column {key!r}, which --key names")
        found = {name: _as_array(value, name, ports) for name, value in self.content.items()}
        if data is None:
            data = "data" if "data" in found or len(found) != 1 else next(iter(found))
            if data not in found and not named_by_ports(found, ports).keys() - found.keys():
                names = ", ".join(found)
                raise InputError(f"there is no column 'data', but {names}; --data names one")
        elif data not in found:
            raise InputError(f"there is no column {data!r}, which --data names")
        request = named_by_ports(found, ports)
        return {**request, "data": found.get(data, next(iter(request.values())))}


def _as_array(value: Any, name: str, ports: Mapping[str, Any] | None) -> Any:
    """Return a list as the array that an input of the pipeline takes."""
    if not isinstance(value, list) or not ports or importlib.util.find_spec("numpy") is None:
        return value
    port = ports.get(name) or next(iter(ports.values()))
    import numpy as np

    try:
        return np.asarray(value, port.get("dtype"))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: {error_text(error)}") from error


def records_of(columns: Columns, path: str) -> Iterator[Input] | None:
    """Give the records of a file that is named, one after the other. None where it is one input.

    Raises:
        WrongArgument: ``--records`` was given, and nothing reads records of this suffix. While it is read: the file cannot
            be read, or not to its end, or holds no record.
    """
    if not columns.every and path.lower().endswith(ALSO_WHOLE):
        return None
    contents = headrace.plugins.records_of(path)
    if contents is None and columns.every:
        raise WrongArgument(f"--records: nothing that is installed reads records of {path!r}")
    return None if contents is None else _records(path, contents, columns)


def _records(path: str, contents: Iterator[Any], columns: Columns) -> Iterator[Input]:
    number = 0
    try:
        for number, content in enumerate(contents, 1):
            key = content.get(columns.key) if isinstance(content, dict) else None
            name = f"{path}:{number}" if key is None else str(key)
            yield Record(name, content=content, columns=columns)
    except ImportError as error:
        hint = "pip install 'headrace-formats[records]'"
        raise WrongArgument(f"{path}: {error.name} is not installed: {hint}") from error
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or error
        raise WrongArgument(f"{path}: after {counted(number, 'record')}: {text}") from error
    if not number:
        raise WrongArgument(f"{path}: there is no record in it")
