"""`SaveVideo`, `SaveImages` and `SaveJSONL`: what was seen, in files."""

from __future__ import annotations

import json
import os
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_vision.records import frame_record
from headrace_vision.sinks import Sink

if TYPE_CHECKING:
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    from headrace_vision.frames import Frame

__all__ = ["Names", "SaveImages", "SaveJSONL", "SaveVideo", "picture_of", "write_image"]

_TICKS = 60_000
"""Units of time per second in a video; MPEG-4 has room for 65535."""


class Names:
    """File names for sources: the last part of a path without its suffix, made unique."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, source: str) -> str:
        """Return the name of a source, always the same."""
        if source not in self._names:
            last = Path(source.rstrip("/\\")).stem or "source"
            name = stem = re.sub(r"[^\w.-]+", "_", last).strip(".") or "source"
            number = 2
            while name.lower() in self._taken:
                name, number = f"{stem}-{number}", number + 1
            self._taken.add(name.lower())
            self._names[source] = name
        return self._names[source]


def picture_of(frame: Frame, *, draw: bool) -> NDArray[np.uint8] | None:
    """Return what a frame looks like: ``uint8 [H, W, 3]``, blue, green, red; None if it has no image.

    Args:
        frame: A result that is a picture (of DrawDetections) is returned as it is.
        draw: Whether detections are drawn on the image.
    """
    result = frame.result
    if not draw or frame.image is None or frame.error is not None:
        return frame.image
    if type(result).__module__.startswith("supervision"):
        from headrace_vision.drawing import draw_detections

        return draw_detections(frame.image, result)
    is_picture = getattr(result, "ndim", 0) == 3 and str(getattr(result, "dtype", "")) == "uint8"
    return result if is_picture and result.shape[2] == 3 else frame.image


def write_image(path: Path, image: Any) -> None:
    """Write an image so that the file is whole or not there.

    Raises:
        OSError: It cannot be written.
        ValueError: The suffix names no format of images.
    """
    import cv2

    done, data = cv2.imencode(path.suffix, image)
    if not done:
        raise ValueError(f"{path.name} cannot be encoded")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data.tobytes())
    part.replace(path)


class SaveVideo(Sink):
    """Writes a video per source, with boxes on it: MP4, playable everywhere, with the times of the source.

    A video is called like its source, and ``NAME.mp4.part`` until it is finished, at the end of the source. A frame of another
    size begins another file, ``NAME-size2.mp4``. Frames that have failed are shown without boxes. A side of
    odd length is one pixel longer in the video.

    Args:
        folder: Where the videos go; it is made.
        draw: Whether detections are drawn.
        codec: FFmpeg's encoder. The default, ``libx264``, is GPL; ``mpeg4`` and ``libsvtav1`` are not.
        options: Options of the encoder, as ``{"crf": "20"}``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        draw: bool = True,
        codec: str = "libx264",
        options: dict[str, str] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._draw = draw
        self._codec = codec
        self._options = dict(options or {})
        self._names = Names()
        self._files: dict[str, _VideoFile] = {}
        self._counts: dict[str, int] = {}

    def open(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, frame: Frame) -> None:
        """Add a frame to the video of its source."""
        image = picture_of(frame, draw=self._draw)
        if image is None:
            return
        file = self._files.get(frame.source)
        if file is not None and file.size != image.shape[:2]:
            self._files.pop(frame.source).finish()
            file = None
        if file is None:
            count = self._counts[frame.source] = self._counts.get(frame.source, 0) + 1
            name = self._names.of(frame.source) + (f"-size{count}" if count > 1 else "")
            path = self._folder / f"{name}.mp4"
            file = _VideoFile(path, image.shape[:2], self._codec, self._options)
            self._files[frame.source] = file
        file.add(image, frame.timestamp)

    def source_ended(self, source: str) -> None:
        """Finish the video of a source."""
        file = self._files.pop(source, None)
        if file is not None:
            file.finish()

    def close(self) -> None:
        """Finish all videos."""
        errors = []
        for file in self._files.values():
            try:
                file.finish()
            except Exception as error:  # noqa: BLE001 - the others are finished all the same
                errors.append(error)
        self._files.clear()
        if errors:
            raise errors[0]


class _VideoFile:
    """One video that is being written."""

    def __init__(
        self, path: Path, size: tuple[int, ...], codec: str, options: dict[str, str]
    ) -> None:
        import av

        self.size = size
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._first: float | None = None
        self._last = -1
        self._container: Any = av.open(
            str(self._part), "w", format="mp4", options={"movflags": "+faststart"}
        )
        self._stream = _video_stream(self._container, codec, options)
        self._stream.height, self._stream.width = size[0] + size[0] % 2, size[1] + size[1] % 2
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, _TICKS)

    def add(self, image: Any, timestamp: float) -> None:
        """Add a picture at a time in seconds; the first one begins the video."""
        import av
        import numpy as np

        height, width = self.size
        if height % 2 or width % 2:
            image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self._first = timestamp if self._first is None else self._first
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24")
        self._last = max(round((timestamp - self._first) * _TICKS), self._last + 1)
        picture.pts, picture.time_base = self._last, Fraction(1, _TICKS)
        self._container.mux(self._stream.encode(picture))

    def finish(self) -> None:
        """Write the rest, and give the file its name."""
        try:
            self._container.mux(self._stream.encode())
        finally:
            self._container.close()
        self._part.replace(self._path)


def _video_stream(container: Any, codec: str, options: dict[str, str]) -> Any:
    return container.add_stream(codec, rate=30, options=options)


class SaveImages(Sink):
    """Writes an image per frame, ``FOLDER/SOURCE/000012.jpg``, with boxes on it.

    Args:
        folder: Where the images go; it is made.
        draw: Whether detections are drawn.
        suffix: The format: ``".jpg"``, ``".png"``, ``".webp"``.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, draw: bool = True, suffix: str = ".jpg"
    ) -> None:
        self._folder = Path(folder)
        self._draw = draw
        self._suffix = suffix
        self._names = Names()

    def write(self, frame: Frame) -> None:
        """Write the image of a frame; one without an image is left out."""
        image = picture_of(frame, draw=self._draw)
        if image is not None:
            name = f"{frame.frame:06d}{self._suffix}"
            write_image(self._folder / self._names.of(frame.source) / name, image)


class SaveJSONL(Sink):
    """Writes a line of JSON per frame, of all sources into one file: see `headrace_vision.frame_record`.

    Args:
        path: The file; what it held is replaced.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: IO[str] | None = None

    def open(self) -> None:
        """Make the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Bytes of a file name that are no text become an escape of JSON, which gives them back when it is read.
        self._file = self._path.open("w", encoding="utf-8", errors="backslashreplace")

    def write(self, frame: Frame) -> None:
        """Write a line, so that others see it at once."""
        if self._file is not None:
            self._file.write(json.dumps(frame_record(frame), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
