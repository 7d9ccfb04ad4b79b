"""Pictures out of videos, animations, cameras and addresses, packet by packet (PyAV, Pillow)."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_vision.frames import NoFrameError, Shot, check_pixels, too_large
from headrace_vision.network import FILE_PROTOCOLS, FORMATS
from headrace_vision.options import check_name
from headrace_vision.reading.damage import Damage
from headrace_vision.reading.orientation import matrix_of, pixels_of_pillow, pixels_of_video, turns
from headrace_vision.reading.playlists import PlaylistOpener, is_playlist
from headrace_vision.reading.rtsp_relay import RtspRelay
from headrace_vision.reading.timing import CaptureTimes
from headrace_vision.reading.web_files import WebFile

if TYPE_CHECKING:
    from headrace_vision.options import SourceOptions
    from headrace_vision.reading.orientation import Matrix
    from headrace_vision.reading.timing import PictureTimes

__all__ = [
    "CAMERAS",
    "MAX_DAMAGED_PACKETS",
    "check_hardware",
    "clock_of",
    "has_times",
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

_NO_DECODING = "none"
"""No codec that FFmpeg may use to find out what a file has: some formats show their streams so late that no limit holds."""

_NO_DECODING_OF_FLV = {"codec_whitelist": _NO_DECODING, "analyzeduration": "5000000"}
"""The same for FLV over the network, and what other formats have: at most 5 s (in microseconds) to find that out."""

_NO_TIMES = 0x80
_BREAKS = 0x200
_NO_INDEX = 0x100 | _BREAKS
"""FFmpeg's ``AVFMT_NOTIMESTAMPS``, ``AVFMT_TS_DISCONT`` and ``AVFMT_GENERIC_INDEX`` (avformat.h)."""

_LOOKS = ("colorspace", "color_range", "color_primaries", "color_trc")
"""What PyAV calls the parts of `Frame.color`."""

CAMERAS = {
    "linux": ("v4l2", "/dev/video{}"),
    "darwin": ("avfoundation", "{}"),
    "win32": ("vfwcap", "{}"),
}
"""FFmpeg's input device, and how it names camera N, by ``sys.platform``."""


def _limits(max_pixels: int) -> dict[str, str]:
    """Return the option of FFmpeg's decoders that bounds what they reserve for a picture.

    Codecs store pictures in whole blocks, so what they reserve is somewhat larger than what is shown.
    """
    return {"max_pixels": str(min(max_pixels + max_pixels // 4 + 65_536, 2**31 - 1))}


def open_video(file: Path | Any, extra: Mapping[str, str] | None = None) -> Any:
    """Open a file or a file object that FFmpeg reads. It can open no other file and no address.

    Args:
        file: It.
        extra: More options of FFmpeg, among those in `headrace_vision.options.FFMPEG`.

    Raises:
        InputError: It is no video.
    """
    import av

    allowed = {"protocol_whitelist": FILE_PROTOCOLS, "format_whitelist": FORMATS}
    options = {**(extra or {}), **allowed, "codec_whitelist": _NO_DECODING}
    target = f"file:{file}" if isinstance(file, Path) else file
    try:
        container = _open(target, options)
    except (av.FFmpegError, OSError, ValueError) as error:
        text = "it cannot be read as image, animation or video"
        expected = "a file that FFmpeg, or the decoder of stills, knows by its content"
        raise InputError(text, expected=expected, got=str(error)) from error
    return _with_video(container)


def _hardware(name: str) -> Any:
    """Return what decodes in hardware: ``"cuda"``, or with its device, ``"cuda:1"``, ``"vaapi:/dev/dri/renderD128"``."""
    from av.codec.hwaccel import HWAccel

    kind, _, device = name.partition(":")
    return HWAccel(kind, device or None, allow_software_fallback=False)


def check_hardware(name: str) -> None:
    """Refuse hardware that cannot decode here.

    Raises:
        ValueError: It cannot. The text says why.
    """
    import av
    from av.codec.hwaccel import hwdevices_available

    check_name("hwaccel", name.partition(":")[0], hwdevices_available())
    try:
        _hardware(name).create(av.Codec("h264", "r"))
    except (av.FFmpegError, OSError, ValueError, NotImplementedError) as error:
        raise ValueError(f"hwaccel {name!r} cannot be used on this machine: {error}") from error


def _open(target: Any, options: dict[str, str], **more: Any) -> Any:
    """Open something with PyAV.

    Raises:
        InputError: The hardware that is to decode it cannot.
        av.FFmpegError, OSError, ValueError: It cannot be opened.
    """
    import av

    name = options.pop("hwaccel", None)
    if name is None:
        return av.open(target, options=options, **more)
    try:
        return av.open(target, options=options, hwaccel=_hardware(name), **more)
    except (RuntimeError, NotImplementedError) as error:  # PyAV says so of each codec
        text = f"hwaccel {name!r} cannot decode it"
        raise InputError(text, expected="another one, or none", got=str(error)) from error


def _with_video(container: Any) -> Any:
    if not container.streams.video:
        container.close()
        raise InputError("it has no pictures", expected="a video stream", got="other streams")
    return container


def web_file(
    address: str,
    timeout_s: float,
    connected: Callable[[Callable[[], None]], object] = lambda hang_up: None,
) -> WebFile | None:
    """Return what an address is read from where that is one file of HTTP, and no playlist, else None.

    Args:
        address: It.
        timeout_s: Seconds of silence after which reading fails.
        connected: See `headrace_vision.reading.web_files.WebFile`.

    Raises:
        OSError, http.client.HTTPException: There is no answer within ``timeout_s`` seconds, or another one.
    """
    is_http = address.lower().startswith(("http:", "https:"))
    return WebFile(address, timeout_s, connected) if is_http and not is_playlist(address) else None


@contextmanager
def open_address(
    address: str,
    timeout_s: float,
    max_pixels: int,
    hosts: Iterable[str] = (),
    file: WebFile | None = None,
    extra: Mapping[str, str] | None = None,
    connected: Callable[[Callable[[], None]], object] = lambda hang_up: None,
) -> Iterator[Any]:
    """Open an address, which `headrace_vision.network.check_address` has allowed, and close it at the end.

    FFmpeg may open what the kind of the address needs, and nothing else.

    Args:
        address: It. A playlist (HLS) may name others.
        timeout_s: Seconds of silence after which it is lost.
        max_pixels: Most pixels of a picture. See `_limits`.
        hosts: Those that a playlist may name.
        file: What `web_file` returned.
        extra: See `open_video`.
        connected: Gets what ends the connection to an RTSP camera.

    Raises:
        InputError: It has no pictures, names a host that is not allowed, or a camera redirects us.
        av.FFmpegError, OSError: It cannot be opened within ``timeout_s`` seconds.
    """
    import av

    extra = dict(extra or {})
    options, timeouts = extra | _limits(max_pixels), (timeout_s, timeout_s)
    if is_playlist(address):
        with _open_playlist(address, timeout_s, hosts, extra) as container:
            yield container
    elif file is not None:
        options |= {"protocol_whitelist": "", "format_whitelist": FORMATS}
        options |= _NO_DECODING_OF_FLV | extra if file.is_flv else {}
        with _with_video(_open(file, options, format=file.format)) as container:
            yield container
    elif address.lower().startswith("rtsp"):
        transport = options.setdefault("rtsp_transport", "tcp")
        options["allowed_media_types"] = "video"
        protocols = "tcp" if transport == "tcp" else "tcp,rtp,udp"
        options |= {"protocol_whitelist": protocols, "format_whitelist": "rtsp"}
        with closing(RtspRelay(address, timeout_s)) as relay:
            connected(relay.close)
            try:
                opened = _open(relay.address, options, format="rtsp", timeout=timeouts)
            except (av.FFmpegError, OSError):
                if relay.refused is not None:
                    raise relay.refused from None
                raise
            with _with_video(opened) as container:
                yield container
    else:
        options |= {"protocol_whitelist": "rtmp,rtmps,tcp,tls", "format_whitelist": "flv,live_flv"}
        options |= _NO_DECODING_OF_FLV | extra
        with _with_video(_open(address, options, timeout=timeouts)) as container:
            yield container


def _open_playlist(
    address: str, timeout_s: float, hosts: Iterable[str], extra: dict[str, str]
) -> Any:
    import av

    opener = PlaylistOpener(address, hosts, timeout_s)
    address = opener.best_variant()
    options = extra | {
        "codec_whitelist": _NO_DECODING,
        "protocol_whitelist": "http,https,tcp,tls",
        "format_whitelist": f"hls,{FORMATS}",
        "http_persistent": "0",  # each segment is asked for through the opener
    }
    timeouts = (timeout_s, timeout_s)
    try:
        return _with_video(_open(address, options, timeout=timeouts, io_open=opener))
    except (av.FFmpegError, OSError):
        if opener.refused is not None:
            raise opener.refused from None
        raise


def open_camera(number: str, timeout_s: float, extra: Mapping[str, str] | None = None) -> Any:
    """Open the camera of that number (``"0"``), or of that device (``"/dev/video0"``).

    Args:
        number: It.
        timeout_s: Seconds of silence after which it is lost.
        extra: See `open_video`.

    Raises:
        InputError: Cameras of this system cannot be opened.
        av.FFmpegError: It cannot be opened within ``timeout_s`` seconds.
    """
    if sys.platform not in CAMERAS:
        known = ", ".join(CAMERAS)
        raise InputError("no cameras here", expected=f"one of {known}", got=sys.platform)
    kind, pattern = CAMERAS[sys.platform]
    device = pattern.format(number) if number.isdigit() else number
    timeouts = (timeout_s, timeout_s)
    return _with_video(_open(device, dict(extra or {}), format=kind, timeout=timeouts))


def clock_of(container: Any, *, is_live: bool) -> str | None:
    """Return the clock that an open video needs, or None where its own presentation times are to be tried.

    FFmpeg makes times up where a format has none.
    """
    if is_live and not has_times(container):
        return "arrival"
    return "dts" if container.format.name == "avi" else None  # it has no presentation times


def has_times(container: Any) -> bool:
    """Return whether the format of an open video has times."""
    return not container.format.flags & _NO_TIMES


def rate_of(container: Any) -> float:
    """Return the frames per second of an open video; 25 where it says none."""
    rate = container.streams.best("video").average_rate
    return float(rate) if rate else 25.0


def _set_up(codec: Any, options: SourceOptions, *, is_live: bool) -> None:
    """Bound a decoder before its first packet."""
    check_pixels(codec.width, codec.height, options.max_pixels)
    codec.options = _limits(options.max_pixels)
    threads = (options.ffmpeg or {}).get("threads")
    if threads is not None:
        codec.thread_count, codec.thread_type = int(threads), "FRAME"
    elif is_live or codec.name == "h264":
        # Slices that are decoded by several threads hide which of its pictures are whole.
        codec.thread_count = 1


def _is_passed_over(time_s: float | None, start_s: float | None, after_s: float | None) -> bool:
    """Return whether a picture is before those that are wanted."""
    if after_s is not None and (time_s is None or time_s <= after_s):
        return True
    return start_s is not None and time_s is not None and time_s < start_s


def video_shots(
    container: Any,
    options: SourceOptions,
    path: str | None,
    times: PictureTimes,
    after_s: float | None = None,
    on_packet: Callable[[Any], object] = lambda packet: None,
    *,
    is_live: bool = False,
) -> Iterator[Shot | None]:
    """Yield the pictures of an open video, and None for each that cannot be decoded, lacks a part, or is not wanted for damage.

    Args:
        container: What one of the functions that open returned. It is left open.
        options: ``start`` and ``stop``, in seconds of the video, ``skip_damaged`` and ``max_pixels``.
        path: The file it is, for the shots.
        times: Says the times of the pictures.
        after_s: Pictures up to this time, in seconds of the video, are passed over.
        on_packet: Gets each packet before it is decoded.
        is_live: Whether it may be cut off at any time. It is decoded in one thread, as H.264 always is, unless ``options`` say
            another number: then several pictures are decoded at a time.

    Raises:
        InputError: `MAX_DAMAGED_PACKETS` in a row cannot be decoded, or a picture is too large.
        NoFrameError: There is no picture, not even outside of ``start`` and ``stop``.
        av.FFmpegError, OSError: Reading goes no further.
    """
    from av.video.reformatter import VideoReformatter

    stream = container.streams.best("video")
    codec = stream.codec_context
    _set_up(codec, options, is_live=is_live)
    begin_s = max((begin for begin in (options.start, after_s) if begin is not None), default=None)
    if begin_s is not None:
        _seek(container, begin_s)
    refusal, is_empty, matrix = "no packet with one", True, None
    captured, reformatter = CaptureTimes(), VideoReformatter()
    damage = Damage(may_lose=is_live or bool(container.format.flags & _BREAKS))

    def note(packet: Any) -> None:
        on_packet(packet)
        captured.note(packet)
        damage.note(packet)

    for picture in _pictures(container, stream, options.max_pixels, note):
        if isinstance(picture, Exception):
            damage.note_error()
            refusal = str(picture)
            yield None
            continue
        check_pixels(picture.width, picture.height, options.max_pixels)
        is_empty = False
        # FFmpeg says it of the first picture of an APNG, for all.
        matrix = matrix_of(picture) or (matrix if codec.name == "apng" else None)
        time_s, begins_again = times.stamp(picture)
        when = captured.of(picture)
        is_damaged = damage.reaches(picture)
        damage.gap = damage.gap or begins_again
        if _is_passed_over(time_s, options.start, after_s):
            continue
        if options.stop is not None and time_s is not None and time_s >= options.stop:
            return
        if picture.is_corrupt or (is_damaged and options.skip_damaged):
            yield None
            continue
        gap, damage.gap = damage.gap, False
        shot = _shot_of(picture, stream, reformatter, matrix, time_s, gap, path, when)
        shot.damaged = is_damaged
        yield shot
    if is_empty and after_s is None and (begin_s is None or not _has_picture(container, stream)):
        expected = "a frame that can be decoded; it may be cut off, or damaged"
        raise NoFrameError("the video has no frame", expected=expected, got=refusal)


def _pictures(
    container: Any, stream: Any, max_pixels: int, note: Callable[[Any], object]
) -> Iterator[Any]:
    """Yield the pictures of an open video in order, and the error of each packet that cannot be decoded.

    Raises:
        InputError: See `video_shots`.
        av.FFmpegError, OSError: Reading goes no further.
    """
    import av

    in_a_row = 0
    for packet in _packets(container, stream):
        note(packet)
        try:
            pictures = packet.decode()
        except (av.FFmpegError, ValueError) as error:
            _refuse_size(stream.codec_context, error, max_pixels)
            in_a_row += 1
            yield error
            if in_a_row >= MAX_DAMAGED_PACKETS:
                text = f"{in_a_row} packets in a row are damaged"
                raise InputError(text, got=str(error)) from error
            continue
        in_a_row = 0 if pictures else in_a_row
        yield from pictures


def _shot_of(
    picture: Any,
    stream: Any,
    reformatter: Any,
    matrix: Matrix | None,
    time_s: float | None,
    gap: bool,
    path: str | None,
    when: tuple[float | None, float | None],
) -> Shot:
    aspect = stream.sample_aspect_ratio or Fraction(1)
    if matrix and turns(*matrix):
        aspect = 1 / aspect
    shot = Shot(partial(pixels_of_video, picture, matrix, reformatter), time_s, gap, path)
    shot.aspect = (aspect.numerator, aspect.denominator)
    shot.came, shot.told = when
    shot.color = tuple(int(getattr(picture, look)) for look in _LOOKS)  # type: ignore[assignment]
    shot.stream_s = None if picture.pts is None else float(picture.pts * picture.time_base)
    return shot


def _refuse_size(codec: Any, error: Exception, max_pixels: int) -> None:
    """Refuse what a decoder refused for its size. It says so by its own size, or by the error and no size.

    Raises:
        TooLargeError: The picture is too large.
    """
    for width, height in ((codec.width, codec.height), (codec.coded_width, codec.coded_height)):
        check_pixels(width, height, max_pixels)
    number = getattr(error, "errno", None)
    if number == errno.ERANGE or (number == errno.EINVAL and not codec.width):
        raise too_large(max_pixels, "a size that the decoder refuses")


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


def webp_shots(file: Any, path: str | None, max_pixels: int) -> Iterator[Shot]:
    """Yield the pictures of an animated WebP with their times. FFmpeg does not decode those.

    Args:
        file: A path, or a file object.
        path: The file it is, for the shots.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: The file is damaged, or its pictures are too large.

    Source:
        The WebP container: bytes 24 to 29 are width and height, less one, of an animation.
    """
    from PIL.WebPImagePlugin import WebPImageFile

    data = file.read_bytes() if isinstance(file, Path) else file.read()
    width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    check_pixels(
        width, height, max_pixels
    )  # Pillow reserves memory for two pictures when it opens it
    try:
        # The class itself: `Image.open` has a limit of its own, which holds for the whole process.
        with WebPImageFile(io.BytesIO(data)) as image:
            time_s = 0.0
            for index in range(getattr(image, "n_frames", 1)):
                image.seek(index)
                pixels = pixels_of_pillow(image)
                yield Shot(lambda pixels=pixels: pixels, time_s, path=path)  # type: ignore[misc]
                time_s += image.info.get("duration", 40) / 1000
    except (OSError, EOFError, SyntaxError) as error:
        raise InputError("the WebP animation is damaged", got=str(error)) from error
