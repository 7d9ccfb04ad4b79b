"""Files that X needs, sent to where it is built: those that the configuration imports, and those that options name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_formats import write_whole
from headrace_process.parts import Part

if TYPE_CHECKING:
    from headrace_process.parts import BuiltPart

__all__ = ["Shipped", "files_among", "place"]

Content = tuple[str, bytes, int]
"""A path, what the file holds, and its permissions."""


def files_among(values: Iterable[Any]) -> list[Path]:
    """Return the files that values name as paths, also inside lists and tables; of a folder all that it holds."""
    files: dict[Path, None] = {}
    for root in _paths(values):
        inside = (
            sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        )
        files.update(dict.fromkeys(inside))
    return [*files]


def _paths(value: Any) -> Iterator[Path]:
    if isinstance(value, Path):
        if value.exists():
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _paths(part)
    elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        for part in value:
            yield from _paths(part)


class Shipped(Part):
    """X together with files. They are read whenever it is pickled, and written before X is built.

    Args:
        part: X.
        files: The files, which are read and written at these paths.
    """

    def __init__(self, part: Part, files: Iterable[Path]) -> None:
        vars(self).update(vars(part))
        self._files = [*files]
        self._contents: list[Content] = []

    def __getstate__(self) -> dict[str, Any]:
        try:
            contents = [
                (str(path), path.read_bytes(), path.stat().st_mode & 0o777) for path in self._files
            ]
        except OSError as error:
            raise SetupError(f"a file cannot be sent: {error}") from error
        return {**vars(self), "_files": [], "_contents": contents}

    def build(self, seen: Mapping[str, Any]) -> BuiltPart:
        """Write the files and build X. See `headrace_process.parts.Part.build`.

        Raises:
            SetupError: A file cannot be written, or another one is there, or X could not be built.
        """
        for path, content, mode in self._contents:
            place(Path(path), content, mode)
        self._contents = []
        return super().build(seen)


def place(path: Path, content: bytes, mode: int) -> None:
    """Write a file that was sent, unless it is there.

    A note beside it says that it was sent, and with which content: such a file makes room for a newer one.

    Raises:
        SetupError: It cannot be written, or a file that was not sent is there with other content.
    """
    note = path.with_name(f".{path.name}.sent")
    digest = hashlib.sha256(content).hexdigest()
    try:
        if path.exists():
            present = hashlib.sha256(path.read_bytes()).hexdigest()
            if present == digest:
                return
            if not note.exists() or note.read_text(encoding="ascii") != present:
                problem = f"{path} is sent, and the node has another file there"
                hint = 'Remove it there, or let files = "path" use it.'
                raise SetupError(problem, hint=hint)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(note, digest, mode=0o644)
        write_whole(path, content, mode=mode)
    except OSError as error:
        raise SetupError(f"{path} is sent, and cannot be written there: {error}") from error
