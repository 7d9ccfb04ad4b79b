"""A file with all results of a run, at whose end a later run goes on: ``headrace run --out FILE --resume``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_cli.console import WrongArgument
from headrace_cli.inputs import is_folder
from headrace_cli.results.rows import CsvRows, NumpyRows, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIXES = (".jsonl", ".csv", ".parquet", ".npy")

_BATCH_ROWS = 1024


class OutFile:
    """Results in ``x.jsonl``, errors in ``x.errors.jsonl``, and in ``x.jsonl.run`` what they were made of.

    Errors of ``x.csv`` are in ``x.csv.errors.jsonl``. A Parquet file is written at the end, of ``x.parquet.rows``.

    Args:
        file: The file.
        arguments: The arguments that name the inputs, whose folders must not hold the file.
        resume: Whether the file may hold results already, whose inputs are passed by.
        again: Whether inputs that have failed are run again.
        wide: Whether each value in a result has a column of a CSV.
        key: What the name of an input is called.

    Attributes:
        stood, failed: How many inputs are passed by, and how many of them have failed.

    Raises:
        WrongArgument: The file has another suffix, lies in a folder of inputs, holds something else, or is there without
            ``resume``, or another process writes it.
    """

    def __init__(
        self,
        file: str,
        arguments: Sequence[str],
        *,
        resume: bool = False,
        again: bool = False,
        wide: bool = False,
        key: str = "path",
    ) -> None:
        self._path = path = Path(file)
        self._rows_path = _checked(path, arguments, resume=resume, again=again)
        stem = path.stem if path.suffix == ".jsonl" else path.name
        self._errors_path = path.with_name(f"{stem}.errors.jsonl")
        self._rows: Rows | NumpyRows
        with ExitStack() as opened:
            self._run = opened.enter_context(
                path.with_name(f"{path.name}.run").open("a+", encoding="utf-8")
            )
            self._lock()
            if again or not resume:
                self._errors_path.unlink(missing_ok=True)
            self._errors = Rows(self._errors_path, key)
            opened.callback(self._errors.close)
            if path.suffix == ".npy":
                self._rows = NumpyRows(path)
            elif path.suffix == ".csv":
                self._rows = CsvRows(path, key, wide=wide)
            else:
                self._rows = Rows(self._rows_path, key)
            opened.callback(self._rows.close)
            self._opened = opened.pop_all()
        self.failed = self._errors.stood
        self.stood = self._rows.stood + (0 if path.suffix == ".npy" else self.failed)

    def __enter__(self) -> OutFile:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        if not _has_content(self._errors_path):
            self._errors_path.unlink(missing_ok=True)

    def _lock(self) -> None:
        """Have no second process write the file, and read what the results there were made of."""
        if fcntl is not None:
            try:
                fcntl.flock(self._run, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._run.seek(0)
                process = _read(self._run.read()).get("process")
                raise WrongArgument(f"--out {self._path}: process {process} writes it") from None
            except OSError:  # a share without locks
                pass
        self._run.seek(0)
        self._made_of = _read(self._run.read()).get("made_of")

    def begin(self, made_of: Mapping[str, str], *, anyway: bool = False) -> None:
        """Compare what the results are made of with those that stand there, and note it.

        Args:
            made_of: A digest of each thing that they depend on, by its name.
            anyway: Whether they may differ.

        Raises:
            WrongArgument: They differ.
        """
        before = self._made_of
        if self.stood and not anyway:
            if not isinstance(before, dict):
                text = f"{self._run.name} does not tell what its results were made of"
                raise WrongArgument(f"--out {self._path}: {text}; --resume-anyway goes on")
            names = sorted({*before, *made_of})
            other = [name for name in names if before.get(name) != made_of.get(name)]
            if other:
                text = f"its results were made with another {', another '.join(other)}"
                raise WrongArgument(f"--out {self._path}: {text}; --resume-anyway goes on")
        self._run.truncate(0)
        self._run.write(json.dumps({"process": os.getpid(), "made_of": dict(made_of)}) + "\n")
        self._run.flush()

    def holds(self, name: str) -> bool:
        """Return whether an input has had its result, or its error, when the file was opened."""
        return self._rows.holds(name) or self._errors.holds(name)

    def result(self, name: str, value: Any) -> None:
        """Append the result of an input, which is in the file when this returns.

        Raises:
            WrongArgument, NoCellError: The file cannot hold it.
        """
        self._rows.add(name, "result", value)

    def error(self, name: str, kind: Any) -> None:
        """Append the error of an input."""
        if isinstance(self._rows, NumpyRows):
            self._rows.add(name, "error", kind)
        self._errors.add(name, "error", kind)

    def finish(self) -> None:
        """Write the file that is made of the rows at the end of a run, if it is one.

        Raises:
            WrongArgument: The results have not one form, as those of Parquet.
        """
        if self._rows_path == self._path:
            return
        self._rows.close()
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
        part = self._path.with_name(f"{self._path.name}.part")
        writer: Any = None
        try:
            for rows in _batches(self._rows_path):
                table = arrow.Table.from_pylist(rows, schema=writer and writer.schema)
                writer = writer or parquet.ParquetWriter(part, table.schema)
                writer.write_table(table)
        except (arrow.ArrowException, TypeError) as error:
            text = f"the results have not one form: {error}. They stand in {self._rows_path}"
            raise WrongArgument(f"--out {self._path}: {text}") from None
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            part.replace(self._path)
            self._rows_path.unlink()


def _checked(path: Path, arguments: Sequence[str], *, resume: bool, again: bool) -> Path:
    """Refuse a file that cannot take the results; return where their rows go."""
    suffix = path.suffix
    if suffix not in SUFFIXES:
        raise WrongArgument(f"--out {path}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        hint = "pip install 'headrace-formats[records]'"
        raise WrongArgument(f"--out {path}: pyarrow is not installed: {hint}")
    if suffix == ".npy" and again:
        raise WrongArgument("--failed: an array has one row for each input, in their order")
    for folder in filter(is_folder, arguments):
        if path.resolve().is_relative_to(Path(folder).resolve()):
            raise WrongArgument(f"--out {path}: it lies in {folder!r}, whose files are inputs")
    rows = path.with_name(f"{path.name}.rows") if suffix == ".parquet" else path
    if not resume and (_has_content(path) or _has_content(rows)):
        text = "it is there; --resume goes on where it ends, or remove it"
        raise WrongArgument(f"--out {path}: {text}")
    if suffix == ".parquet" and _has_content(path) and not rows.exists():
        raise WrongArgument(f"--out {path}: it is finished; remove it to begin anew")
    return rows


def _batches(path: Path) -> Iterator[list[Any]]:
    with path.open(encoding="utf-8") as lines:
        while rows := [json.loads(line) for line in islice(lines, _BATCH_ROWS)]:
            yield rows


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
