"""Files with results: ``headrace run --output``."""

from __future__ import annotations

import glob
import importlib
import io
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from headrace_cli.console import WrongArgument
from headrace_cli.inputs import STDIN, is_folder
from headrace_cli.printing import as_json
from headrace_formats import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_cli.inputs import Input

_BEGINNINGS = (
    (b"\xff\xd8\xff", ".jpg"),
    (b"\x89PNG\r\n\x1a\n", ".png"),
    (b"GIF8", ".gif"),
    (b"BM", ".bmp"),
    (b"II*\x00", ".tif"),
    (b"MM\x00*", ".tif"),
    (b"%PDF-", ".pdf"),
    (b"\x93NUMPY", ".npy"),
    (b"PK\x03\x04", ".zip"),
    (b"\x1f\x8b", ".gz"),
    (b"OggS", ".ogg"),
    (b"fLaC", ".flac"),
)
"""The first bytes of files of a format, with the suffix of the format."""

_INSIDE = {
    (b"RIFF", b"WEBP"): ".webp",
    (b"RIFF", b"WAVE"): ".wav",
    (b"RIFF", b"AVI "): ".avi",
    (b"ftyp", b"avif"): ".avif",
    (b"ftyp", b"heic"): ".heic",
}
"""Formats in a common container: the name of the container, and the bytes at offset 8."""


class Output:
    """Writes a file per result into a folder, under the name of its input.

    Args:
        folder: The folder, which is created.
        arguments: The arguments that name the inputs, whose files are never overwritten.

    Raises:
        WrongArgument: ``folder`` is no folder, or files in it would be inputs.
    """

    def __init__(self, folder: str, arguments: Sequence[str]) -> None:
        self.folder = Path(folder)
        self._taken: set[Path] = set()
        if not folder:  # as by a variable of the shell that is not set
            raise WrongArgument("--output: the name of the folder is empty; . is the present one")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WrongArgument(f"--output {folder}: {error.strerror or error}") from error
        for argument in arguments:
            self._keep(argument)

    def _keep(self, argument: str) -> None:
        if argument == STDIN:
            return
        paths = [argument] if Path(argument).exists() else glob.glob(argument, recursive=True)  # noqa: PTH207
        here = self.folder.resolve()
        for path in map(Path, paths):
            read = is_folder(str(path)) and "**" not in argument  # as `inputs.expand` does
            if read and here.is_relative_to(path.resolve()):
                raise WrongArgument(
                    f"--output {self.folder}: it lies in {str(path)!r}, whose files are the inputs"
                )
        self._taken.update(Path(path).resolve() for path in paths)

    def write(self, item: Input, result: Any) -> Path:
        """Write a result. Give the path of its file.

        Raises:
            OSError: The file cannot be written.
            Exception: The result could not be made an array of numbers.
        """
        content, suffix = _content(result)
        path = self._free(PurePath(item.name), suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        return path

    def _free(self, name: PurePath, suffix: str) -> Path:
        """Return ``a.png`` for ``a.jpg``, else ``a.jpg.png``, else ``a.jpg.2.png``."""
        number = 1
        path = self.folder / name.with_suffix(suffix)
        while path.resolve() in self._taken:
            end = suffix if number == 1 else f".{number}{suffix}"
            path = self.folder / name.with_name(f"{name.name}{end}")
            number += 1
        self._taken.add(path.resolve())
        return path


def _content(result: Any) -> tuple[bytes, str]:
    """Return the content of a file with a result, and the suffix of the file."""
    if isinstance(result, (bytes, bytearray, memoryview)):
        content = bytes(result)
        return content, suffix_of(content)
    # An array of objects, such as texts of a model, could only be pickled, and a masked one would lose its mask: these
    # are written as JSON.
    masked = hasattr(result, "mask") and hasattr(result, "filled")
    kind = getattr(getattr(result, "dtype", "O"), "kind", "")
    if getattr(result, "shape", None) and kind != "O" and not masked:
        return _npy(result), ".npy"
    return f"{as_json(result)}\n".encode(), ".json"


def suffix_of(content: bytes) -> str:
    """Return the suffix of the format of some bytes; ``.bin`` when the format is unknown."""
    for beginning, suffix in _BEGINNINGS:
        if content.startswith(beginning):
            return suffix
    for (envelope, inner), suffix in _INSIDE.items():
        if envelope in content[:8] and content[8:12] == inner:
            return suffix
    return ".bin"


def _npy(array: Any) -> bytes:
    """Write an array of any library in numpy's format; an array on a device is copied to the host first."""
    for method in ("detach", "cpu", "get"):  # methods of torch and of CuPy
        step = getattr(array, method, None)
        array = step() if callable(step) else array
    numpy: Any = importlib.import_module(
        "numpy"
    )  # not a dependency: only plugins that need numpy bring arrays
    file = io.BytesIO()
    numpy.save(file, numpy.asarray(array), allow_pickle=False)
    return file.getvalue()
