"""From the arguments of ``headrace run`` to inputs: files, folders, patterns and standard input."""

from __future__ import annotations

import glob
import importlib.util
import io
import os
import re
import stat
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_cli.console import WrongArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    import headrace

    ReadRecords: TypeAlias = Callable[[str], Iterator["Input"] | None]
    """Gives the records of a file that is named, None for a file that is one input."""

STDIN = "-"


@dataclass(frozen=True)
class Input:
    """One request to come.

    Attributes:
        path: Its name in the output. ``-`` for standard input.
        error: Why the input cannot be read, when that is known already.
        root: The folder in which it was found, or empty.
    """

    path: str
    error: OSError | None = None
    root: str = ""

    @property
    def name(self) -> str:
        """The name of a file with its result: its path from its root on, ``stdin`` for ``-``."""
        if self.path == STDIN:
            return "stdin"
        inside = os.path.relpath(self.path, self.root) if self.root else self.path
        return inside if self.root else os.path.basename(inside)  # noqa: PTH119 - any text

    def request(self, ports: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the request of this input: its bytes as ``data``. A file of numpy gives its array, or its arrays by name.

        Args:
            ports: The inputs of the pipeline, see `ports_of`. None: each file is bytes.

        Raises:
            InputError: The input cannot be read, or holds no array.
        """
        fields: dict[str, Any] = {"path": self.path, "data": self.read()}
        is_array = self.path.lower().endswith((".npy", ".npz"))
        if ports is None or not is_array or importlib.util.find_spec("numpy") is None:
            return fields
        import numpy as np

        try:
            loaded = np.load(io.BytesIO(fields["data"]))
            arrays = dict(loaded) if hasattr(loaded, "files") else {"data": loaded}
        except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise InputError("numpy reads no array in it, without pickle") from error
        if not arrays:
            raise InputError("there is no array in it")
        keys = named_by_ports(arrays, ports)
        return {**fields, "data": next(iter(keys.values())), **keys}

    def read(self) -> bytes:
        """Return the content.

        Raises:
            InputError: The input cannot be read.
        """
        try:
            if self.error is not None:
                raise self.error
            if self.path == STDIN:
                if sys.stdin is None:
                    raise InputError("standard input is closed")
                return sys.stdin.buffer.read()
            return Path(self.path).read_bytes()
        except OSError as error:
            raise InputError(f"it cannot be read: {error.strerror or error}") from error
        except MemoryError as error:
            raise InputError("it cannot be read: there is no memory for its content") from error


def named_by_ports(values: Mapping[str, Any], ports: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return values under the keys of a request, where their names are those of a model's inputs."""
    return {(ports or {}).get(name, {}).get("key", name): value for name, value in values.items()}


def ports_of(pipeline: headrace.Pipeline) -> dict[str, Any] | None:
    """Return the inputs that a pipeline describes: those of its first word that does, by name. None: it begins with bytes.

    A word reads bytes if its documentation says so of ``data``, or its function has that annotation.
    """
    nodes = pipeline.describe()["nodes"]
    behind = {name for node in nodes.values() for name in node["next"]}
    first = next((name for name in nodes if name not in behind), next(iter(nodes)))
    for part in pipeline.config.plan().nodes[first].tree.walk():
        if not part.children:
            hint = next(iter(getattr(part.made_of, "__annotations__", {}).values()), None)
            if hint in (bytes, "bytes") or re.search(r"\bdata: bytes\b", part.cls.__doc__ or ""):
                return None
            break
    left = [nodes[first]["tree"]]
    while left and left[0]["built"].get("inputs") is None:
        left = [*left[0]["children"], *left[1:]]
    return dict(left[0]["built"]["inputs"]) if left else {}


def check_arguments(arguments: Sequence[str], records: ReadRecords | None = None) -> None:
    """Refuse arguments that name no input, all at once and before anything is built.

    Args:
        arguments: The arguments.
        records: See `expand`.

    Raises:
        WrongArgument: A file or folder does not exist, a folder is empty, a pattern matches nothing.
    """
    if arguments.count(STDIN) > 1:
        raise WrongArgument("'-' (standard input) can be read once only")
    wrong = []
    for argument in arguments:
        if next(_expanded(argument, records), None) is not None:
            continue
        if is_folder(argument):
            wrong.append(f"no files in the folder {argument!r} (hidden ones do not count)")
        elif glob.has_magic(argument):
            wrong.append(f"no file matches the pattern {argument!r}")
        else:
            wrong.append(f"{_absence(argument)}: {argument!r}")
    if wrong:
        raise WrongArgument("; ".join(wrong))


def _absence(path: str) -> str:
    """Say why a path cannot be found: in a folder that may not be entered nobody knows what there is."""
    try:
        os.lstat(path)
    except PermissionError as error:
        return f"it cannot be looked for: {error.strerror}"
    except (OSError, ValueError):  # a text that is no path
        pass
    return "no such file or folder"


def expand(arguments: Sequence[str], records: ReadRecords | None = None) -> Iterator[Input]:
    """Give every input, in the order of the arguments. Files are not opened, but those of records.

    A folder gives the files in it and below, sorted by path part by part. Hidden files and folders
    are left out, links to folders are not followed. A pattern gives the files that match, sorted. A
    folder that matches is treated like a folder argument, unless the pattern holds ``**``.

    Args:
        arguments: The arguments.
        records: Gives the records of a file that is named, or that a pattern matches, and None for one that is one input.
            Files in folders are one each.
    """
    for argument in arguments:
        yield from _expanded(argument, records)


def _expanded(argument: str, records: ReadRecords | None) -> Iterator[Input]:
    if argument == STDIN:
        yield Input(STDIN)
    elif is_folder(argument):
        yield from _files_below(argument, argument)
    elif os.path.lexists(argument):
        yield from _of_file(argument, "", records)
    elif glob.has_magic(argument):
        root = _fixed_part(argument)
        for path in sorted(glob.glob(argument, recursive=True)):  # noqa: PTH207 - any root, `**`
            if not is_folder(path):
                if os.path.lexists(path):  # `missing/**` matches "missing/" in older Pythons
                    yield from _of_file(path, root, records)
            elif "**" not in argument:
                yield from _files_below(path, root)


def _of_file(path: str, root: str, records: ReadRecords | None) -> Iterator[Input]:
    several = None if records is None else records(path)
    yield from [Input(path, root=root)] if several is None else several


def _fixed_part(pattern: str) -> str:
    """Return the innermost folder in which every match of a pattern lies."""
    while glob.has_magic(pattern):
        pattern = os.path.dirname(pattern)  # noqa: PTH120 - any text
    return pattern or os.curdir


def is_folder(path: str) -> bool:
    """Return whether a text names a folder."""
    return os.path.isdir(path)  # noqa: PTH112 - false for what is no path at all


def _files_below(folder: str, root: str) -> Iterator[Input]:
    """Walk a folder of any depth, and keep only the names along one path in memory."""
    levels: list[Iterator[str | Input]] = [_entries(folder)]
    while levels:
        path = next(levels[-1], None)
        if path is None:
            levels.pop()
            continue
        if isinstance(path, Input):
            yield path
            continue
        try:
            kind = os.lstat(path).st_mode
            if stat.S_ISDIR(kind):
                levels.append(_entries(path))
            elif stat.S_ISREG(os.stat(path).st_mode if stat.S_ISLNK(kind) else kind):  # noqa: PTH116 - any text
                yield Input(path, root=root)
        except FileNotFoundError:  # a link to nothing, or what is gone since
            continue
        except OSError as error:  # a link that leads back to itself
            yield Input(path, error, root)


def _entries(folder: str) -> Iterator[str | Input]:
    """Yield the paths in a folder, sorted. Of a million files their names alone are in memory."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        return iter([Input(folder, error)])
    return (os.path.join(folder, name) for name in names)  # noqa: PTH118 - any text
