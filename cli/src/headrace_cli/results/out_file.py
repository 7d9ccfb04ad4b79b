"""A file with a line for each input, at whose end a later run goes on: ``headrace run --out FILE --resume``."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_cli.console import WrongArgument
from headrace_cli.inputs import is_folder
from headrace_cli.printing import as_json, escaped, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS = ["path", "result", "error"]


class OutFile:
    """Appends a line per input to a file: JSON in ``.jsonl``, else the columns path, result and error in ``.csv``.

    A finished input takes 8 bytes of memory: a part of a hash of its path. Two of a million paths are equal in it with a
    probability below 1e-7.

    Args:
        file: The file.
        arguments: The arguments that name the inputs, whose folders must not hold the file.
        resume: Whether the file may hold lines already, whose inputs are passed by. A last line without end is removed.

    Attributes:
        stood, failed: How many lines stood there, and how many of them are errors.

    Raises:
        WrongArgument: The file has another suffix, lies in a folder of inputs, holds something else, or is there without ``resume``.
    """

    def __init__(self, file: str, arguments: Sequence[str], *, resume: bool) -> None:
        self._path, self._is_csv = Path(file), file.endswith(".csv")
        self._done = array("Q")
        self.stood = self.failed = 0
        if not file.endswith((".jsonl", ".csv")):
            raise WrongArgument(f"--out {file}: expected a name that ends in .jsonl or .csv")
        for folder in filter(is_folder, arguments):
            if self._path.resolve().is_relative_to(Path(folder).resolve()):
                raise WrongArgument(f"--out {file}: it lies in {folder!r}, whose files are inputs")
        if not resume and self._path.exists() and self._path.stat().st_size:
            raise WrongArgument(
                f"--out {file}: it is there; --resume goes on where it ends, or remove it"
            )
        self._read()
        self._stream = open(file, "a", 1, "utf-8", "surrogateescape", "\n")  # noqa: PTH123, SIM115 - closed at the end
        if self._is_csv and not self._path.stat().st_size:
            self._stream.write(_row(_COLUMNS))

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def holds(self, path: str) -> bool:
        """Return whether an input has had its line when the file was opened."""
        mark = _mark(escaped(path) if self._is_csv else path)
        place = bisect_left(self._done, mark)
        return place < len(self._done) and self._done[place] == mark

    def line(self, path: str, key: str, value: Any) -> str:
        """Return the line of an input: ``what`` is ``"result"`` or ``"error"``."""
        if not self._is_csv:
            return as_json({"path": path, key: value}) + "\n"
        text = value["message"] if key == "error" else shown(value)
        return _row(map(escaped, [path, "", text] if key == "error" else [path, text, ""]))

    def write(self, line: str) -> None:
        """Append a line, which is in the file when this returns."""
        self._stream.write(line)

    def _read(self) -> None:
        """Note the inputs that have a line, and remove a last line that is torn."""
        if not self._path.exists():
            return
        with self._path.open("r+b") as stream:
            end = 0
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    stream.truncate(end)
                    break
                end += len(line)
                try:
                    path, wrong = self._read_line(line.decode("utf-8", "surrogateescape"))
                except (ValueError, TypeError, KeyError, StopIteration):
                    text = "this is no line of headrace run --out"
                    raise WrongArgument(f"--out {self._path}:{number}: {text}") from None
                if not self._is_csv or number > 1:
                    self._done.append(_mark(path))
                    self.failed += wrong
        self._done = array("Q", sorted(self._done))
        self.stood = len(self._done)

    def _read_line(self, line: str) -> tuple[str, bool]:
        """Return the path of a line, and whether it holds an error."""
        if self._is_csv:
            path, _, error = next(csv.reader([line]))
            return path, bool(error)
        row = json.loads(line)
        return row["path"], "error" in row


def _row(cells: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _mark(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
