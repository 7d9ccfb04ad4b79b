"""`SaveImages` and `SaveJSONL`: what was seen, in files; and what other sinks that write files share."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_formats import write_json
from headrace_vision.records import frame_record, is_detections
from headrace_vision.sinks import CLOSE_S, SPOOL_BYTES, Sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    from headrace_vision.drawing import Annotators
    from headrace_vision.frames import Frame

__all__ = [
    "Names",
    "SaveImages",
    "SaveJSONL",
    "encoded",
    "mark_of",
    "picture_of",
    "write_image",
    "write_whole",
]


MOST_NAME_BYTES = 80
"""Most bytes of the name of a source in UTF-8: file systems take 255, with time, number and suffixes."""

KEY_LENGTH = 32
"""A last part of an address that has so many characters is taken for a key."""

_ADDRESS = re.compile(r"[^:/]*://(?:[^/?#]*@)?([^/?#]*)([^?#;]*).*", re.DOTALL)


class Names:
    """File names for sources: the last part of a path without its suffix, made unique.

    What is long is cut, and a mark of eight digits tells it from others. Of an address, the query and a last part that is as long as
    a key are in no name, since they are often secrets. Then it is called by its host and a mark.

    Args:
        is_taken: Returns whether there are files of an earlier run of that name, which stay as they are.
    """

    def __init__(self, is_taken: Callable[[str], bool] = lambda name: False) -> None:
        self._is_taken = is_taken
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, source: str) -> str:
        """Return the name of a source, always the same."""
        if source not in self._names:
            name = stem = re.sub(r"[^\w.-]+", "_", _stem_of(source)).strip(".") or "source"
            if len(stem.encode()) > MOST_NAME_BYTES:
                cut = stem.encode()[: MOST_NAME_BYTES - 9].decode(errors="ignore")
                name = stem = f"{cut}-{mark_of(source)}"
            number = 2
            while name.lower() in self._taken or self._is_taken(name):
                name, number = f"{stem}-{number}", number + 1
            self._taken.add(name.lower())
            self._names[source] = name
        return self._names[source]


def _stem_of(source: str) -> str:
    found = _ADDRESS.fullmatch(source)
    if found is None:
        return Path(source.rstrip("/\\")).stem
    host, path = found.groups()
    last = path.rstrip("/").rpartition("/")[2]
    if len(last) >= KEY_LENGTH:
        return f"{host}-{mark_of(source)}"
    return Path(last).stem or str(host)


def mark_of(source: str) -> str:
    """Return eight digits that tell a text from others, always the same."""
    return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()[:8]


def picture_of(
    frame: Frame, *, draw: bool, annotators: Annotators | None = None
) -> NDArray[np.uint8] | None:
    """Return what a frame looks like: ``uint8 [H, W, 3]``, blue, green, red. None if it has no image.

    Args:
        frame: A result that is a picture (of DrawDetections) is returned as it is.
        draw: Whether detections, lines and zones are drawn on the image.
        annotators: What draws the detections. None: boxes, masks, keypoints and labels.
    """
    image = frame.image
    for one in frame.models.values() if draw else ():
        image = picture_of(replace(one, image=image), draw=True)
    if frame.models:
        return image
    result = frame.result
    if not draw or frame.image is None or frame.error is not None:
        return frame.image
    if is_detections(result):
        from headrace_vision.drawing import Annotators, draw_counts

        drawn = (annotators or Annotators()).draw(frame.image, result)
        draw_counts(drawn, frame.request)
        return drawn
    is_picture = getattr(result, "ndim", 0) == 3 and str(getattr(result, "dtype", "")) == "uint8"
    return result if is_picture and result.shape[2] == 3 else frame.image


def write_image(path: Path, image: Any) -> None:
    """Write an image so that the file is whole or not there.

    Raises:
        OSError: It cannot be written.
        ValueError: The suffix names no format of images.
    """
    write_whole(path, encoded(path.suffix, image))


def encoded(suffix: str, image: Any, *options: int) -> bytes:
    """Return an image in the format of a suffix, with ``options`` of ``cv2.imencode``.

    Raises:
        ValueError: The suffix names no format of images.
    """
    import cv2

    done, data = cv2.imencode(suffix, image, options)
    if not done:
        raise ValueError(f"no image can be encoded as {suffix}")
    return data.tobytes()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or not there. Make its folder.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


class SaveImages(Sink):
    """Writes an image per frame, ``FOLDER/SOURCE/000012.jpg``, with boxes on it. ``SOURCE-2`` where an earlier run has that folder.

    Args:
        folder: Where the images go. It is made.
        draw: Whether detections are drawn.
        suffix: The format: ``".jpg"``, ``".png"``, ``".webp"``.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        draw: bool = True,
        suffix: str = ".jpg",
        spool_bytes: int = SPOOL_BYTES,
        spool: str | os.PathLike[str] | None = None,
        close_s: float = CLOSE_S,
    ) -> None:
        self._keep(spool_bytes, spool, close_s)
        self._folder = Path(folder)
        self._draw = draw
        self._suffix = suffix
        self._names = Names(lambda name: (self._folder / name).exists())

    def write(self, frame: Frame) -> None:
        """Write the image of a frame; one without an image is left out."""
        image = picture_of(frame, draw=self._draw)
        if image is not None:
            name = f"{frame.frame:06d}{self._suffix}"
            write_image(self._folder / self._names.of(frame.source) / name, image)


class SaveJSONL(Sink):
    """Writes a line of JSON per frame, of all sources into one file: see `headrace_vision.frame_record`.

    No line is cut: what a full disk took half of is taken back, and written again later.

    Args:
        path: The file. Lines are added to what it holds.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.
    """

    needs_image = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        spool_bytes: int = SPOOL_BYTES,
        spool: str | os.PathLike[str] | None = None,
        close_s: float = CLOSE_S,
    ) -> None:
        self._keep(spool_bytes, spool, close_s)
        self._path = Path(path)
        self._file: IO[bytes] | None = None
        self._size_bytes = 0

    def open(self) -> None:
        """Make the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("ab", buffering=0)
        self._size_bytes = self._file.tell()
        if self._is_cut():  # by the end of an earlier run: its half line stays apart
            self._size_bytes += self._file.write(b"\n")

    def _is_cut(self) -> bool:
        if not self._size_bytes:
            return False
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def write(self, frame: Frame) -> None:
        """Write a line, so that others see it at once."""
        if self._file is None:
            return
        left = memoryview(write_json(frame_record(frame)).encode() + b"\n")
        size_bytes = self._size_bytes + len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):  # a device has no size
                self._file.truncate(self._size_bytes)
            raise
        self._size_bytes = size_bytes

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
