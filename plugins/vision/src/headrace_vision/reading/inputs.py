"""What an input is: one kind per thing that may be passed to ``run``, and what a collection holds."""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import InputError, nearest
from headrace.plugins import read_lines
from headrace_vision.network import check_address, is_address, without_password
from headrace_vision.reading.content import head_of, image_or_animation, natural_order
from headrace_vision.reading.stills import is_array, is_pillow

_BESIDE = re.compile(r"\.(csv|db|html|ini|jsonl?|log|md|txt|xml|ya?ml)")
"""Names of files beside pictures end so: labels, notes, and what desktops write (``Thumbs.db``, ``desktop.ini``)."""

__all__ = ["Input", "describe", "is_place", "read_all", "recognise"]

_CAMERA = re.compile(r"camera:([0-9]{1,3})|(/dev/video[0-9]{1,3})")


@dataclass(frozen=True)
class Input:
    """One thing to read.

    Attributes:
        kind: ``"still"``, ``"video"``, ``"webp"``, ``"camera"``, ``"address"``,
            ``"collection"``: others, one by one, or ``"beside"``: what is in a folder, is no picture, and is passed by.
        name: What was read, as it was written. None in memory.
        target: A path, bytes, an array, an image, an address, a number of a camera, or an iterable.
        found_in: Of a collection whose items were found: ``"folder"`` (or by a pattern) or ``"list"``, else None. Then its
            stills are one source, its own, and a list among them is not opened, since nobody named it.
        hosts: Of an address: those that a playlist there may name.
    """

    kind: str
    name: str | None
    target: Any
    found_in: str | None = None
    hosts: tuple[str, ...] = ()

    @property
    def last_part(self) -> str | None:
        """How its source is called where nobody says another name: the last part of a path, an address or a camera as it is."""
        return self.name if self.live else self.name and (Path(self.name).name or self.name)

    @property
    def live(self) -> bool:
        """Whether it goes on whether or not somebody reads."""
        return self.kind in ("camera", "address")


def is_place(text: str) -> bool:
    """Return whether a text is a path, and neither a camera nor an address."""
    return not is_address(text) and _CAMERA.fullmatch(text) is None


def describe(value: Any) -> str:
    """Return a few words about a value, for errors."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def recognise(value: Any, network: Iterable[str] = (), *, found_in: str | None = None) -> Input:
    """Return what an input is, by its type, its text, or the content of its file.

    Nothing is decoded here. A file whose content no signature tells counts as a video: reading tries it.

    Args:
        value: See ``VideoRunner.run``.
        network: Hosts whose addresses may be opened.
        found_in: Where it was found, if nobody named it. See `Input`.

    Raises:
        InputError: There is no such file, an address is not allowed, it is a list that was found in another one, or no input at all.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"camera:{value}"
    if isinstance(value, (str, os.PathLike)):
        return _of_text(os.fspath(value), network, found_in)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(value))
    if is_array(value) or is_pillow(value):
        return Input("still", None, value)
    if callable(getattr(value, "read", None)):
        return _of_bytes(read_all(value))
    if isinstance(value, (Mapping, Iterable)):
        return Input("collection", None, value)
    raise InputError(
        "this is no input",
        expected="a path, an address, the number of a camera, bytes, an array, an image, a file object, or several of these",
        got=describe(value),
    )


def read_all(file: Any) -> bytes:
    """Return what a file object holds from here on.

    Raises:
        InputError: It gives text.
    """
    data = file.read()
    if isinstance(data, str):
        raise InputError("this file object gives text", expected="one opened in binary mode")
    return bytes(data)


def _of_bytes(data: bytes) -> Input:
    kind = image_or_animation(data[:4096])
    if kind == "webp":
        return Input("webp", None, io.BytesIO(data))
    if kind in (None, "animation"):
        return Input("video", None, io.BytesIO(data))
    return Input("still", None, data)


def _of_text(text: Any, network: Iterable[str], found_in: str | None) -> Input:
    name = os.fsdecode(text)
    camera = _CAMERA.fullmatch(name)
    if camera is not None:
        return Input("camera", name, camera.group(1) or camera.group(2))
    if is_address(name):
        check_address(name, network)
        return Input("address", without_password(name), name, hosts=tuple(network))
    path = Path(name)
    if path.is_dir():
        return Input("collection", name, _files_in(path), found_in="folder")
    if path.is_file():
        return _of_file(path, name, found_in)
    if found_in == "folder":  # a link that leads nowhere, a pipe, or gone since
        return Input("beside", name, path)
    if glob.has_magic(name):
        paths = sorted(glob.iglob(name, recursive=True), key=natural_order)  # noqa: PTH207 - patterns may be absolute
        if paths:
            return Input("collection", name, paths, found_in="folder")
    raise _nothing_at(path, name)


def _nothing_at(path: Path, name: str) -> InputError:

    if os.path.lexists(path):
        problem = "this link leads nowhere" if not path.exists() else "this is no regular file"
        return InputError(problem, expected="a file or a folder", got=name)
    try:
        beside = [sibling.name for sibling in path.parent.iterdir()]
    except OSError:
        beside = []
    near = nearest(path.name, beside)
    hint = f"Did you mean {str(path.parent / near)!r}?" if near else None
    return InputError(
        "there is no such file", expected="a path, pattern, camera or address", got=name, hint=hint
    )


def _files_in(folder: Path) -> list[str]:
    files = (path for path in folder.iterdir() if not path.is_dir())
    return sorted((str(p) for p in files if not p.name.startswith(".")), key=natural_order)


def _of_file(path: Path, name: str, found_in: str | None) -> Input:
    try:
        head = head_of(path)
    except OSError as error:
        raise InputError("the file cannot be read", got=str(error)) from error
    kind = image_or_animation(head)
    if kind == "image":
        return Input("still", name, path)
    if kind == "webp":
        return Input("webp", name, path)
    if kind is None and found_in == "folder" and _BESIDE.fullmatch(path.suffix.lower()):
        return Input("beside", name, path)
    if kind is None and path.suffix.lower() == ".txt" and b"\0" not in head:
        if found_in is not None:
            expected = "images, animations and videos; a list is opened only where you name it"
            raise InputError("a list of inputs is not opened here", expected=expected, got=name)
        return Input("collection", name, _Listed(path), found_in="list")
    return Input("video", name, path)


class _Listed:
    """The inputs in a text file, one a line. Blank lines and those with ``#`` in front are skipped.

    Relative paths start from the folder of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[str]:
        for line in read_lines(self._path):
            text = line.strip(" \t")
            if text and not text.startswith("#"):
                alone = _CAMERA.fullmatch(text) or is_address(text)
                yield text if alone else str(self._path.parent / text)
