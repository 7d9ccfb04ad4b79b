"""Pictures out of videos, animations, cameras and addresses, packet by packet (PyAV, Pillow)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_vision.frames import NoFrameError, Shot
from headrace_vision.network import FILE_PROTOCOLS, FORMATS, NETWORK_PROTOCOLS
from headrace_vision.playlists import PlaylistOpener, is_playlist
from headrace_vision.web_files import WebFile

if TYPE_CHECKING:
    from headrace_vision.options import SourceOptions

__all__ = [
    "CAMERAS",
    "MAX_DAMAGED_PACKETS",
    "Damage",
    "open_address",
    "open_camera",
    "open_video",
    "rate_of",
    "video_shots",
    "web_file",
    "webp_shots",
]

MAX_DAMAGED_PACKETS = 100
"""So many packets in a row that cannot be decoded lose a source."""

KEY_FRAMES_S = 60.0
"""Most seconds between two pictures from which decoding can begin, in formats without an index of them."""

_NO_TIMES = 0x80
_NO_INDEX = 0x100 | 0x200
"""FFmpeg's ``AVFMT_NOTIMESTAMPS``, ``AVFMT_GENERIC_INDEX`` and ``AVFMT_TS_DISCONT`` (avformat.h)."""

CAMERAS = {
    "linux": ("v4l2", "/dev/video{}"),
    "darwin": ("avfoundation", "{}"),
    "win32": ("vfwcap", "{}"),
}
"""FFmpeg's input device, and how it names camera N, by ``sys.platform``."""


class Damage:
    """A packet that could not be decoded.

    Args:
        error: What FFmpeg said.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


def open_video(file: Path | Any) -> Any:
    """Open a file or a file object that FFmpeg reads; it can open no other file and no address.

    Raises:
        InputError: It is no video.
    """
    import av

    options = {"protocol_whitelist": FILE_PROTOCOLS, "format_whitelist": FORMATS}
    target = f"file:{file}" if isinstance(file, Path) else file
    try:
        container = av.open(target, options=options)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise InputError(
            "it cannot be read as image, animation or video",
            expected="a file that FFmpeg, or the decoder of stills, knows by its content",
            got=str(error),
        ) from error
    return _with_video(container)


def _with_video(container: Any) -> Any:
    if not container.streams.video:
        container.close()
        raise InputError("it has no pictures", expected="a video stream", got="other streams")
    return container


def web_file(address: str, timeout_s: float) -> WebFile | None:
    """Return what an address is read from where that is one file of HTTP, and no playlist; else None.

    Raises:
        OSError, http.client.HTTPException: There is no answer within ``timeout_s`` seconds, or another one.
    """
    is_http = address.lower().startswith(("http:", "https:"))
    return WebFile(address, timeout_s) if is_http and not is_playlist(address) else None


def open_address(
    address: str, timeout_s: float, hosts: Iterable[str] = (), file: WebFile | None = None
) -> Any:
    """Open an address, which `headrace_vision.network.check_address` has allowed.

    Args:
        address: It; a playlist (HLS) may name others.
        timeout_s: Seconds of silence after which it is lost.
        hosts: Those that a playlist may name.
        file: What `web_file` returned.

    Raises:
        InputError: It has no pictures, or names a host that is not allowed.
        av.FFmpegError, OSError: It cannot be opened within ``timeout_s`` seconds.
    """
    import av

    if is_playlist(address):
        return _open_playlist(address, timeout_s, hosts)
    options = {"protocol_whitelist": NETWORK_PROTOCOLS, "format_whitelist": FORMATS}
    if file is not None:
        return _with_video(av.open(file, format=file.format, options=options))
    options["rtsp_transport"] = "tcp"
    timeouts = (timeout_s, timeout_s)
    return _with_video(av.open(address, options=options, timeout=timeouts))


def _open_playlist(address: str, timeout_s: float, hosts: Iterable[str]) -> Any:
    import av

    opener = PlaylistOpener(address, hosts, timeout_s)
    address = opener.best_variant()
    options = {
        "protocol_whitelist": "http,https,tcp,tls",
        "format_whitelist": f"hls,{FORMATS}",
        "http_persistent": "0",  # each segment is asked for through the opener
    }
    timeouts = (timeout_s, timeout_s)
    try:
        return _with_video(av.open(address, options=options, timeout=timeouts, io_open=opener))
    except (av.FFmpegError, OSError):
        if opener.refused is not None:
            raise opener.refused from None
        raise


def open_camera(number: str, timeout_s: float) -> Any:
    """Open the camera of that number (``"0"``), or of that device (``"/dev/video0"``).

    Raises:
        InputError: Cameras of this system cannot be opened.
        av.FFmpegError: It cannot be opened within ``timeout_s`` seconds.
    """
    import av

    if sys.platform not in CAMERAS:
        known = ", ".join(CAMERAS)
        raise InputError("no cameras here", expected=f"one of {known}", got=sys.platform)
    kind, pattern = CAMERAS[sys.platform]
    device = pattern.format(number) if number.isdigit() else number
    return _with_video(av.open(device, format=kind, timeout=(timeout_s, timeout_s)))


def rate_of(container: Any) -> float:
    """Return the frames per second of an open video; 25 where it says none."""
    rate = container.streams.best("video").average_rate
    return float(rate) if rate else 25.0


def video_shots(
    container: Any, options: SourceOptions, path: str | None, after_s: float | None = None
) -> Iterator[Shot | Damage]:
    """Yield the pictures of an open video, and each packet that cannot be decoded.

    Args:
        container: What one of the functions that open returned; it is left open.
        options: ``start`` and ``stop``, in seconds of the video.
        path: The file it is, for the shots.
        after_s: Pictures up to this time, in seconds of the video, are passed over.

    Raises:
        InputError: `MAX_DAMAGED_PACKETS` in a row cannot be decoded.
        NoFrameError: There is no picture, not even outside of ``start`` and ``stop``.
        av.FFmpegError, OSError: Reading goes no further.
    """
    import av

    stream = container.streams.best("video")
    begin_s = max((one for one in (options.start, after_s) if one is not None), default=None)
    if begin_s is not None:
        _seek(container, begin_s)
    damaged, gap, said, is_empty = 0, False, "no packet with one", True
    for packet in _packets(container, stream):
        try:
            pictures = packet.decode()
        except (av.FFmpegError, ValueError) as error:
            damaged, gap, said = damaged + 1, True, str(error)
            yield Damage(error)
            if damaged >= MAX_DAMAGED_PACKETS:
                raise InputError(
                    f"{damaged} packets in a row are damaged", got=str(error)
                ) from error
            continue
        for picture in pictures:
            damaged, is_empty = 0, False
            time_s = picture.time
            if options.start is not None and time_s is not None and time_s < options.start:
                continue
            if after_s is not None and time_s is not None and time_s <= after_s:
                continue
            if options.stop is not None and time_s is not None and time_s >= options.stop:
                return
            yield Shot(_converter(picture), time_s, gap, path)
            gap = False
    if is_empty and after_s is None and (begin_s is None or not _has_picture(container, stream)):
        raise NoFrameError(
            "the video has no frame",
            expected="a frame that can be decoded; it may be cut off, or damaged",
            got=said,
        )


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the packets of an open video; a multipart stream that ends behind a boundary has ended."""
    import av

    try:
        yield from container.demux(stream)
    except av.error.InvalidDataError:
        if container.format.name != "mpjpeg":
            raise


def _seek(container: Any, time_s: float) -> None:
    """Go to the last picture before a time from which decoding can begin, or stay where that is impossible."""
    import av

    flags = container.format.flags
    if flags & _NO_TIMES:
        return
    if (
        flags & _NO_INDEX
    ):  # a seek finds any packet, so that pictures up to the next key frame would be missing
        time_s -= KEY_FRAMES_S
        if time_s <= 0:
            return
    with suppress(av.FFmpegError):  # where that is impossible, what comes before is read as well
        container.seek(int(time_s * av.time_base), backward=True)


def _has_picture(container: Any, stream: Any) -> bool:
    """Return whether a video has a picture from its beginning on."""
    import av

    with suppress(av.FFmpegError, ValueError):
        container.seek(0)
        return any(True for _ in container.decode(stream))
    return False


def _converter(picture: Any) -> Callable[[], Any]:
    def convert() -> Any:
        import numpy as np

        image = picture.to_ndarray(format="bgr24")
        turns = round(picture.rotation / 90) % 4
        return np.ascontiguousarray(np.rot90(image, turns)) if turns else image

    return convert


def webp_shots(file: Any, path: str | None) -> Iterator[Shot]:
    """Yield the pictures of an animated WebP with their times; FFmpeg does not decode those.

    Args:
        file: A path, or a file object.
        path: The file it is, for the shots.

    Raises:
        InputError: The file is damaged.
    """
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            time_s = 0.0
            for index in range(getattr(image, "n_frames", 1)):
                image.seek(index)
                pixels = np.ascontiguousarray(np.asarray(image.convert("RGB"))[..., ::-1])
                yield Shot(lambda pixels=pixels: pixels, time_s, path=path)  # type: ignore[misc]
                time_s += image.info.get("duration", 40) / 1000
    except (UnidentifiedImageError, OSError, EOFError, SyntaxError) as error:
        raise InputError("the WebP animation is damaged", got=str(error)) from error
