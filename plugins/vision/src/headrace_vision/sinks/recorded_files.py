"""The files of videos as they are written, of pictures that are encoded and of packets that are copied."""

from __future__ import annotations

import errno
from contextlib import nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_vision.reading.connection import CONTAINERS
from headrace_vision.sinks.owner import Mark, held, lock
from headrace_vision.sinks.priorities import kept_priorities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_vision.reading.connection import Connection

__all__ = ["CopiedFile", "VideoFile", "mark_in", "write_index"]

_TICKS = 60_000
"""Units of time per second in a video; MPEG-4 has room for 65535."""

_MATRICES = (1, 4, 5, 6, 7, 9)
"""Matrices of colours that FFmpeg converts to: BT.709, FCC, BT.601 (625 and 525 lines), SMPTE 240M, BT.2020 (``AVColorSpace``)."""

_BT601, _LIMITED = 6, 1

HEAD_BYTES = 65536
"""Bytes at the beginning of a video that was not finished, which have its tags."""

_PROMPT = {
    "libx264": {"tune": "zerolatency"},
    "libx265": {"tune": "zerolatency"},
    "libsvtav1": {"svtav1-params": "pred-struct=1"},
    "libvpx-vp9": {"lag-in-frames": "0"},
    "libaom-av1": {"lag-in-frames": "0"},
    "h264_nvenc": {"zerolatency": "1", "delay": "0"},
    "hevc_nvenc": {"zerolatency": "1", "delay": "0"},
}
"""Options of FFmpeg's encoders by which they give out each picture at once. Others hold back up to 60: a minute, at one a second."""


class _Output:
    """The file of a video, as FFmpeg writes it: what the disk has no room for is kept, and FFmpeg sees no error."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = path.open("wb", buffering=0)
        lock(self._file)
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

    @property
    def whole_bytes(self) -> int:
        """How many bytes are on the disk."""
        return self._whole_bytes

    def write(self, data: bytes) -> int:
        """Keep what FFmpeg writes; `flush` brings it to the disk."""
        self._kept += data
        return len(data)

    def flush(self) -> None:
        """Write what is kept. What was written stays whole.

        Raises:
            OSError: It cannot be written now.
        """
        while self._kept:
            done = self._file.write(self._kept)
            del self._kept[:done]
        self._whole_bytes = self._file.tell()

    def replace(self, old: bytes, new: bytes) -> bool:
        """Replace bytes at the beginning of the file by as many. Return whether they are there: FFmpeg may hold them back."""
        with Path(self.name).open("r+b") as file:
            at = file.read(HEAD_BYTES).find(old)
            file.seek(max(at, 0))
            file.write(new if at >= 0 else b"")
        return at >= 0

    def close(self) -> None:
        """Close the file, without a fragment that is cut."""
        with suppress(OSError):
            if self._kept:
                self._file.truncate(self._whole_bytes)
        with suppress(OSError):
            self._file.close()


class VideoFile:
    """One video that is being written: in fragments, so that what is there can be played at any time.

    Attributes:
        path: Where it is once it is finished.
        size: Height and width of its pictures.
        first_s: The time of its first picture in seconds.
        last_s: The time of its last picture in seconds.
        count: How many of its pictures were written without an error.
        has_failed: Whether it cannot be gone on with.
        error: Why.
        has_event: Whether a frame with events was seen while it was written.
    """

    def __init__(
        self,
        path: Path,
        size: tuple[int, ...],
        codec: str,
        options: dict[str, str],
        *,
        title: str,
        mark: Mark,
    ) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self.size = size
        self.first_s = float("inf")
        self.last_s = float("-inf")
        self.has_failed, self.has_event = False, mark.is_event
        self.error: str | None = None
        self.path, self._mark = path, mark
        self._part = path.with_name(f"{path.name}.part")
        self._last, self._step = -1, 0
        self.count = 0
        self._is_encoded = False
        self._missing: int | None = None
        self._says_event = mark.is_event
        self._reformatter = VideoReformatter()
        self._output = _Output(self._part)
        flags = {
            "movflags": "+frag_keyframe+delay_moov+default_base_moof+write_colr",
            "frag_duration": "500000",  # us
        }
        if path.suffix == ".mkv":
            flags = {"cluster_time_limit": "500"}  # ms
        kind = CONTAINERS[path.suffix]
        self._container: Any = av.open(self._output, "w", format=kind, options=flags)
        self._container.metadata["title"] = title.encode(errors="replace").decode()
        self._container.metadata["comment"] = str(mark)
        try:
            self._stream = self._add_stream(codec, options)
        except BaseException:
            self._output.close()
            self._part.unlink(missing_ok=True)
            raise

    def _add_stream(self, codec: str, options: dict[str, str]) -> Any:
        stream = _video_stream(self._container, codec, options)
        stream.height, stream.width = (side + side % 2 for side in self.size)
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, _TICKS)
        return stream

    @property
    def written_bytes(self) -> int:
        """How many bytes of it are on the disk."""
        return self._output.whole_bytes

    def set_look(self, aspect: tuple[int, int], color: tuple[int, int, int, int]) -> None:
        """Say the shape of pixels and how colours are stored; see `headrace_vision.Frame`. Call it before `add`."""
        codec = self._stream.codec_context
        codec.sample_aspect_ratio = Fraction(*aspect)
        matrix, range_, codec.color_primaries, codec.color_trc = color
        # What FFmpeg takes colours for where nobody says it, and has no formula for, is as in TV.
        self._color = (matrix if matrix in _MATRICES else _BT601, range_ or _LIMITED)
        codec.colorspace, codec.color_range = self._color

    def add(self, image: Any, timestamp: float) -> None:
        """Add a picture at a time in seconds. The first one begins the video.

        Raises:
            OSError: What the video has by now cannot be written. The picture is part of it.
        """
        import av
        import numpy as np

        height, width = self.size
        if height % 2 or width % 2:
            image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        self.first_s = min(self.first_s, timestamp)
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24")
        matrix, range_ = self._color
        picture = self._reformatter.reformat(
            picture, format="yuv420p", dst_colorspace=matrix, dst_color_range=range_, threads=1
        )
        before = self._last
        self._last = max(round((timestamp - self.first_s) * _TICKS), before + 1)
        if before >= 0:
            self._step = self._last - before
        picture.pts, picture.time_base = self._last, Fraction(1, _TICKS)
        with nullcontext() if self.count else kept_priorities():  # the first opens the encoder
            self._encode(picture)
        self.last_s = timestamp
        self.flush()
        self.count += 1

    def _encode(self, picture: Any = None) -> None:
        """Encode a picture, or what waits in the encoder. The last one is shown as long as the one before."""
        for packet in self._stream.encode(picture):
            packet.duration = self._step or packet.duration
            self._container.mux(packet)

    def flush(self) -> None:
        """Write what FFmpeg has given out.

        Raises:
            OSError: It cannot be written. Where the disk is not merely full, the file has failed.
        """
        try:
            self._output.flush()
            if self.has_event and not self._says_event:
                self._says_event = self._output.replace(b":other:", b":event:")
            self.has_failed = False
        except OSError as error:
            self.has_failed = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            self.error = error.strerror
            raise

    def finish(self, *, is_last: bool = False) -> int:
        """Write the rest, and give the file its name. Return how many pictures it lacks.

        Args:
            is_last: Whether the rest is given up where the disk is full.

        Raises:
            OSError: The disk is full. It can be called again.
        """
        if not self._is_encoded:
            self._is_encoded = True
            self._encode()
            self._container.close()
        try:
            self.flush()
        except OSError:
            if not self.has_failed and not is_last:
                raise
        self._output.close()
        if self._missing is None:
            self._missing = self._put_in_place(is_last=is_last)
        return self._missing

    def _put_in_place(self, *, is_last: bool) -> int:
        """Give the file its index and its name. Return how many pictures it lacks."""
        pictures = 0
        with suppress(FileNotFoundError), held(self._part):  # somebody has removed it
            pictures = write_index(self._part, str(self._mark._replace(is_event=self.has_event)))
            if pictures:  # something that can be played
                self._part.replace(self.path)
            elif not self._part.stat().st_size:
                self._part.unlink()
        is_whole = pictures and not self.has_failed and not is_last
        return 0 if is_whole else max(self.count - pictures, 0)


class CopiedFile(VideoFile):
    """A video of packets as they came.

    Args:
        path: Where it goes, with the suffix of the connection.
        connection: Where its packets come from.
        title: Its title.
        mark: Whose it is.
    """

    def __init__(self, path: Path, connection: Connection, *, title: str, mark: Mark) -> None:
        self.connection = connection
        self._base: int | None = None
        super().__init__(path, (0, 0), "copy", {}, title=title, mark=mark)

    def _add_stream(self, codec: str, options: dict[str, str]) -> Any:
        stream = self._container.add_stream_from_template(self.connection.template, opaque=True)
        stream.codec_context.width, stream.codec_context.height = self.connection.size
        stream.codec_context.pix_fmt = self.connection.codec.pix_fmt
        if self.connection.extradata is not None:
            stream.codec_context.extradata = self.connection.extradata
        stream.time_base = self.connection.unit
        return stream

    def _encode(self, picture: Any = None) -> None:
        """There is nothing to encode."""

    @property
    def begin_s(self) -> float:
        """The time in seconds of the first frame in it, less what is lost to rounding."""
        return self.connection.seconds(self._base) - 1e-3

    def seconds_at(self, dts: int) -> float:
        """Return how long the video is at a time of decoding."""
        return float((dts - (self._base or 0)) * self.connection.unit)

    def copy(self, packet: Any, pts: int, dts: int) -> None:
        """Add a packet, whose times are in units of its connection. `flush` writes it."""
        dts -= self.connection.early
        if self._base is None:  # it is a key frame, and the first that is shown
            self._base, self._last = pts, dts - pts - 1
        self._last = max(dts - self._base, self._last + 1)
        packet.stream, packet.time_base = self._stream, self.connection.unit
        packet.pts, packet.dts = max(pts - self._base, self._last), self._last
        self._container.mux(packet)
        self.count += 1


def write_index(part: Path, mark: str) -> int:
    """Write a video again with its index at the beginning, as players want it; return how many pictures it has."""
    import av

    whole = part.with_name(f"{part.name}.part")
    kind = CONTAINERS[part.with_suffix("").suffix]
    flags = {"movflags": "+faststart+write_colr"} if kind == "mp4" else {}
    try:
        _Output(whole).close()  # PyAV never closes a file whose beginning there is no room for
        with (
            _opened(part) as source,
            av.open(f"file:{whole}", "w", format=kind, options=flags) as target,
        ):
            target.metadata.update(source.metadata, comment=mark)
            stream = target.add_stream_from_template(source.streams.video[0], opaque=True)
            pictures = last = 0
            for packet in _packets(source):
                pictures += 1
                # FFmpeg says none of VP9, and a last picture without one is not shown.
                packet.duration = packet.duration or packet.dts - last or 1
                packet.stream, last = stream, packet.dts
                target.mux(packet)
        whole.replace(part)
    except (OSError, av.FFmpegError, LookupError):
        with suppress(OSError):
            whole.unlink(missing_ok=True)
        # There is no room, where fragments are played as well; or there is nothing.
        try:
            with _opened(part) as source:
                return sum(1 for _ in _packets(source))
        except (OSError, av.FFmpegError, LookupError):
            return 0
    return pictures


def _opened(path: Path) -> Any:
    """Open a video, whatever its tags say, in whatever encoding."""
    import av

    return av.open(f"file:{path}", metadata_errors="replace")


def mark_in(path: Path) -> Mark | None:
    """Return whose a video is. Of one whose beginning alone is there, that says it too."""
    import av

    try:
        with _opened(path) as container:
            return Mark.found_in("\0".join(container.metadata.values()))
    except (OSError, av.FFmpegError):
        with suppress(OSError), path.open("rb") as file:
            return Mark.found_in(file.read(HEAD_BYTES).decode("latin-1"))
    return None


def _packets(container: Any) -> Iterator[Any]:
    """Yield the packets of a video, as far as they can be read: the end of a file that has failed may be cut."""
    import av

    with suppress(av.FFmpegError):
        for packet in container.demux(video=0):
            if packet.dts is not None:
                yield packet


def _video_stream(container: Any, codec: str, options: dict[str, str]) -> Any:
    options = _PROMPT.get(codec, {}) | options
    if codec == "libx264" and "zerolatency" not in options["tune"]:
        options["tune"] += ",zerolatency"
    return container.add_stream(codec, rate=30, options=options)
