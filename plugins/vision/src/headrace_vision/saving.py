"""`SaveVideo`, `SaveImages` and `SaveJSONL`: what was seen, in files."""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_vision.records import frame_record
from headrace_vision.sinks import CLOSE_S, SPOOL_BYTES, Sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    from headrace_vision.frames import Frame

__all__ = [
    "Names",
    "SaveImages",
    "SaveJSONL",
    "SaveVideo",
    "picture_of",
    "write_image",
    "write_whole",
]

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
    write_whole(path, data.tobytes())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or not there; make its folder.

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


class SaveVideo(Sink):
    """Writes a video per source, with boxes on it: MP4, playable everywhere, with the times of the source.

    A video is called like its source, and ``NAME.mp4.part`` until it is finished, at the end of the source; what it has by then
    can be played. A frame of another size begins another file, ``NAME-size2.mp4``. After a full disk a video goes on where it was;
    after another error, and where times begin again, it goes on in ``NAME-part2.mp4``. Frames that have failed are shown without
    boxes. A side of odd length is one pixel longer in the video.

    Args:
        folder: Where the videos go; it is made.
        draw: Whether detections are drawn.
        codec: FFmpeg's encoder. The default, ``libx264``, is GPL; ``mpeg4`` and ``libsvtav1`` are not.
        options: Options of the encoder, as ``{"crf": "20"}``.
        spool_bytes, spool, close_s: What is kept while the sink fails; see `headrace_vision.Sink`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        draw: bool = True,
        codec: str = "libx264",
        options: dict[str, str] | None = None,
        spool_bytes: int = SPOOL_BYTES,
        spool: str | os.PathLike[str] | None = None,
        close_s: float = CLOSE_S,
    ) -> None:
        self._keep(spool_bytes, spool, close_s)
        self._folder = Path(folder)
        self._draw = draw
        self._codec = codec
        self._options = dict(options or {})
        self._names = Names()
        self._files: dict[str, _VideoFile] = {}
        self._counts: dict[str, int] = {}
        self._missing = 0

    def open(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, frame: Frame) -> None:
        """Add a frame to the video of its source."""
        image = picture_of(frame, draw=self._draw)
        if image is None:
            return
        source, size = frame.source, image.shape[:2]
        file = self._files.get(source)
        if file is not None:
            try:
                file.flush()
            except OSError:
                if not file.has_failed:
                    raise
            else:
                if frame.timestamp == file.last_s:  # it was that frame which could not be written
                    return
                if file.size != size or frame.timestamp < file.last_s:
                    self._end(source)
        if source not in self._files or file is None or file.has_failed:
            kind = "part" if file is None or file.size == size else "size"
            self._files[source] = self._begin(source, size, kind)
            if file is not None and file.has_failed:
                file.leave_out(frame.timestamp)
                self._note(source, file.finish(), file.error)
        self._files[source].add(image, frame.timestamp)

    def _begin(self, source: str, size: tuple[int, ...], kind: str) -> _VideoFile:
        count = self._counts.get(source, 0) + 1
        name = self._names.of(source) + (f"-{kind}{count}" if count > 1 else "")
        file = _VideoFile(self._folder / f"{name}.mp4", size, self._codec, self._options)
        self._counts[source] = count
        return file

    def _end(self, source: str) -> None:
        """Finish the file of a source.

        Raises:
            OSError: The disk is full; or the file has failed, and lacks what is said, once.
        """
        if source in self._files:
            file = self._files[source]
            missing = file.finish()
            del self._files[source]
            self._note(source, missing, file.error)

    def _note(self, source: str, missing: int, error: str | None) -> None:
        if missing:
            self._missing += missing
            raise OSError(f"{missing} pictures of {source} are in no video: {error}")

    def source_ended(self, source: str) -> None:
        """Finish the video of a source."""
        self._end(source)

    def close(self) -> None:
        """Finish all videos."""
        errors = []
        for source in list(self._files):
            try:
                self._end(source)
            except Exception as error:  # noqa: BLE001 - the others are finished all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def status(self) -> dict[str, Any]:
        """Return how many frames are ``missing`` in the videos: of files that could not be gone on with."""
        return {"missing": self._missing}


class _Output:
    """The file of a video, as FFmpeg writes it: what the disk has no room for is kept, and FFmpeg sees no error."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = path.open("wb", buffering=0)
        self._kept = bytearray()
        self._whole_bytes = 0
        try:
            self._file.write(bytes(4096))  # is there room, and may we?
            self._file.seek(0)
            self._file.truncate()
        except OSError:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    def write(self, data: bytes) -> int:
        """Keep what FFmpeg writes; `flush` brings it to the disk."""
        self._kept += data
        return len(data)

    def flush(self) -> None:
        """Write what is kept; what was written stays whole.

        Raises:
            OSError: It cannot be written now.
        """
        while self._kept:
            done = self._file.write(self._kept)
            del self._kept[:done]
        self._whole_bytes = self._file.tell()

    def close(self) -> None:
        """Close the file, without a fragment that is cut."""
        with suppress(OSError):
            if self._kept:
                self._file.truncate(self._whole_bytes)
        with suppress(OSError):
            self._file.close()


class _VideoFile:
    """One video that is being written: in fragments, so that what is there can be played at any time.

    Attributes:
        size: Height and width of its pictures.
        last_s: The time of its last picture in seconds.
        has_failed: Whether it cannot be gone on with.
        error: Why.
    """

    def __init__(
        self, path: Path, size: tuple[int, ...], codec: str, options: dict[str, str]
    ) -> None:
        import av

        self.size = size
        self.last_s = float("-inf")
        self.has_failed = False
        self.error: str | None = None
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._first: float | None = None
        self._last = -1
        self._count = 0
        self._is_encoded = False
        self._output = _Output(self._part)
        flags = {
            "movflags": "+frag_keyframe+delay_moov+default_base_moof",
            "frag_duration": "1000000",
        }
        self._container: Any = av.open(self._output, "w", format="mp4", options=flags)
        try:
            self._stream = _video_stream(self._container, codec, options)
            self._stream.height, self._stream.width = size[0] + size[0] % 2, size[1] + size[1] % 2
            self._stream.pix_fmt = "yuv420p"
            self._stream.codec_context.time_base = Fraction(1, _TICKS)
        except BaseException:
            self._output.close()
            self._part.unlink(missing_ok=True)
            raise

    def add(self, image: Any, timestamp: float) -> None:
        """Add a picture at a time in seconds; the first one begins the video.

        Raises:
            OSError: What the video has by now cannot be written; the picture is part of it.
        """
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
        self.last_s = timestamp
        self._count += 1
        self.flush()

    def leave_out(self, timestamp: float) -> None:
        """Count the last picture no more if it is of that time: the next video has it."""
        self._count -= timestamp == self.last_s

    def flush(self) -> None:
        """Write what FFmpeg has given out.

        Raises:
            OSError: It cannot be written; where the disk is not merely full, the file has failed.
        """
        try:
            self._output.flush()
            self.has_failed = False
        except OSError as error:
            self.has_failed = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            self.error = error.strerror
            raise

    def finish(self) -> int:
        """Write the rest, and give the file its name; return how many pictures it lacks.

        Raises:
            OSError: The disk is full; it can be called again.
        """
        if not self._is_encoded:
            self._is_encoded = True
            self._container.mux(self._stream.encode())
            self._container.close()
        try:
            self.flush()
        except OSError:
            if not self.has_failed:
                raise
        self._output.close()
        found = self._with_index()
        if not found:  # nothing that can be played
            return self._count
        self._part.replace(self._path)
        return max(self._count - found, 0) if self.has_failed else 0

    def _with_index(self) -> int:
        """Write the video again with its index at the beginning, as players want it; return how many pictures it has."""
        import av

        whole = self._part.with_name(f"{self._part.name}.part")
        flags = {"movflags": "+faststart"}
        try:
            with (
                av.open(str(self._part)) as source,
                av.open(str(whole), "w", format="mp4", options=flags) as target,
            ):
                stream = target.add_stream_from_template(source.streams.video[0])
                found = 0
                for packet in _packets(source):
                    found += 1
                    packet.stream = stream
                    target.mux(packet)
            whole.replace(self._part)
        except (OSError, av.FFmpegError, LookupError):
            with suppress(OSError):
                whole.unlink(missing_ok=True)
            # There is no room, where fragments are played as well; or there is nothing.
            try:
                with av.open(str(self._part)) as source:
                    return sum(1 for _ in _packets(source))
            except (OSError, av.FFmpegError):
                return 0
        return found


def _packets(container: Any) -> Iterator[Any]:
    """Yield the packets of a video, as far as they can be read: the end of a file that has failed may be cut."""
    import av

    with suppress(av.FFmpegError):
        for packet in container.demux(video=0):
            if packet.dts is not None:
                yield packet


def _video_stream(container: Any, codec: str, options: dict[str, str]) -> Any:
    return container.add_stream(codec, rate=30, options=options)


class SaveImages(Sink):
    """Writes an image per frame, ``FOLDER/SOURCE/000012.jpg``, with boxes on it.

    Args:
        folder: Where the images go; it is made.
        draw: Whether detections are drawn.
        suffix: The format: ``".jpg"``, ``".png"``, ``".webp"``.
        spool_bytes, spool, close_s: What is kept while the sink fails; see `headrace_vision.Sink`.
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
        self._names = Names()

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
        path: The file; what it held is replaced.
        spool_bytes, spool, close_s: What is kept while the sink fails; see `headrace_vision.Sink`.
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
        self._file = self._path.open("wb", buffering=0)

    def write(self, frame: Frame) -> None:
        """Write a line, so that others see it at once."""
        if self._file is None:
            return
        text = json.dumps(frame_record(frame), ensure_ascii=False) + "\n"
        # Bytes of a file name that are no text become an escape of JSON, which gives them back when it is read.
        left = memoryview(text.encode(errors="backslashreplace"))
        size_bytes = self._size_bytes + len(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):  # a device has no size
                self._file.truncate(self._size_bytes)
                self._file.seek(self._size_bytes)
            raise
        self._size_bytes = size_bytes

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
