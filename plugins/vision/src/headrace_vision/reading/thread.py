"""What the thread of a source does: open, read, and try again when a live source is lost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, InputError
from headrace_formats import back_off
from headrace_vision.frames import NoFrameError, Shot, TooLargeError
from headrace_vision.options import FFMPEG
from headrace_vision.reading.stills import StillDecoder, as_image
from headrace_vision.reading.timing import PictureTimes

if TYPE_CHECKING:
    from headrace_vision.reading.inputs import Input
    from headrace_vision.reading.source import Source

__all__ = ["Stills", "failed_shot", "read_source", "still_shot"]

MOST_AWAY_S = 5.0
"""The longest pause before a source that is lost is tried again: a camera that is back is found by then."""


def failed_shot(error: Exception, path: str | None) -> Shot:
    """Return the shot that stands for what could not be read."""
    return Shot(lambda: None, path=path, error=error)  # type: ignore[arg-type, return-value]


def still_shot(still: Input, decode: StillDecoder, max_pixels: int) -> Shot:
    """Return the shot of a still; it is decoded when it is converted."""
    target = still.target

    def convert() -> Any:
        if isinstance(target, Path):
            try:
                return decode(target.read_bytes(), max_pixels)
            except OSError as error:
                raise InputError("the file cannot be read", got=str(error)) from error
        if isinstance(target, bytes):
            return decode(target, max_pixels)
        return as_image(target, max_pixels)

    return Shot(convert, path=still.name)


class Stills:
    """Stills that follow each other in one source: number N is at N / ``image_fps`` seconds, or at its arrival.

    Args:
        source: Gets the shots.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._pace = _Pace(source)
        self._zero_s = source.clock.now()
        self._number = 0
        self._turn = 0
        self._pushed = False

    def push(self, shot: Shot) -> bool:
        """Push a shot, unless it is before ``start``; return False at ``stop``, or if the source is to stop."""
        source, options = self.source, self.source.options
        shot.time_s = self._number / options.image_fps
        if options.clock == "arrival":
            shot.time_s = source.clock.now() - self._zero_s
        self._number += 1
        if options.start is not None and shot.time_s < options.start:
            return not source.stopping.is_set()
        if options.stop is not None and shot.time_s >= options.stop:
            return False
        if not self._pushed and self._turn:
            shot.gap = True
            source.timeline.continue_after(source.timeline.period_s)
        self._pushed = True
        return self._pace.waits(shot) and source.push(shot)

    def begins_again(self) -> bool:
        """Begin another round, if that is asked for and the last one had a shot; return whether it begins."""
        if not (self.source.options.loop and self._pushed) or self.source.stopping.is_set():
            return False
        self._turn, self._number, self._pushed = self._turn + 1, 0, False
        self._pace = _Pace(self.source)
        return True


def read_source(source: Source, media: Input, decode: StillDecoder) -> None:
    """Read a source to its end, and note the end. No error leaves this function.

    Args:
        source: Gets the shots.
        media: What is read. No collection.
        decode: Decodes stills.
    """
    try:
        if media.kind == "still":
            stills = Stills(source)
            max_pixels = source.options.max_pixels
            while stills.push(still_shot(media, decode, max_pixels)) and stills.begins_again():
                pass
        elif media.live:
            _follow(source, media)
        else:
            _read_file(source, media)
    except Exception as error:  # noqa: BLE001 - it is the outcome of this source
        try:
            source.push(failed_shot(_as_input_error(error), media.name))
        finally:
            source.finish(error)
    else:
        source.finish()


def _as_input_error(error: Exception) -> Exception:
    if isinstance(error, HeadraceError):
        return error
    wrapped = InputError("reading goes no further", got=f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _read_file(source: Source, media: Input) -> None:
    _refuse_arrival(source)
    pace = _Pace(source)
    turn = 0
    while True:
        count = 0
        with closing(_shots(source, media)) as shots:
            for shot in shots:
                if not count and turn:
                    shot.gap = True
                    source.timeline.continue_after(source.timeline.period_s)
                count += 1
                if not pace.waits(shot) or not source.push(shot):
                    return
        if not source.options.loop or not count:
            return
        turn += 1
        pace = _Pace(source)
        if hasattr(media.target, "seek"):
            media.target.seek(0)


def _shots(source: Source, media: Input) -> Generator[Shot, None, None]:
    from headrace_vision.reading.video_files import open_video, webp_shots

    if media.kind == "webp":
        yield from webp_shots(media.target, media.name, source.options.max_pixels)
        return
    with open_video(media.target, _ffmpeg(source, media)) as container:
        yield from _shots_of(container, source, media)


class _Pace:
    """Holds the frames of a file back to the speed at which it plays, if that is asked for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._zero: float | None = None

    def waits(self, shot: Shot) -> bool:
        """Wait for the time of the shot; return False if the source is to stop."""
        source = self._source
        if not source.options.realtime or shot.time_s is None:
            return True
        now = source.clock.now()
        if self._zero is None:
            self._zero = now - shot.time_s
        ahead = self._zero + shot.time_s - now
        return ahead <= 0 or not source.clock.wait(source.stopping, ahead)


def _follow(source: Source, media: Input) -> None:
    """Read a live source until it is stopped, or an address to its end if it has one; try again when it is lost."""
    way = _Way(source)
    while not source.stopping.is_set():
        try:
            with closing(_live_shots(source, media, way)) as shots:
                goes_on = way.read(shots)
            if not goes_on:
                return
            if not source.live:
                continue
            reason: BaseException | str = "the stream ended"
        except OptionError:
            raise
        except Exception as error:
            if source.stopping.is_set():
                return
            # What was read to its end would be the same again.
            is_same = isinstance(error, (NoFrameError, TooLargeError)) and not source.live
            if way.is_over or is_same:
                raise
            if isinstance(error, TooLargeError) and not way.attempt:
                source.push(failed_shot(error, media.name))
            reason = error
        wait_s = back_off(way.attempt, most_s=MOST_AWAY_S, chance=random.random)
        text = str(reason) or type(reason).__name__
        if why := getattr(reason, "strerror", None):
            # FFmpeg adds the address that it was given, which may have a password in it. The name has none.
            text = f"{why}: {media.name}"
        source.lost(text, way.attempt, wait_s)
        way.lose()
        source.clock.wait(source.stopping, wait_s)


class OptionError(InputError):
    """An option is about what a source does not have, such as a beginning or an end."""


class _Way:
    """How far a source that may be lost was read.

    Attributes:
        attempt: How often it was tried in vain since its last frame.
        last_s: Of an address with an end: the time of its last frame, behind which reading goes on, else None.
        is_over: Whether what was read is over: the server said that this is its end.
    """

    def __init__(self, source: Source) -> None:
        self.attempt = 0
        self.last_s: float | None = None
        self.is_over = False
        self._source = source
        self._seen_s = source.clock.now()
        self._is_gap = False

    def lose(self) -> None:
        """Note that the source was lost."""
        self.attempt += 1
        self._is_gap = True

    def read(self, shots: Iterable[Shot]) -> bool:
        """Push the shots of what was opened; return whether it is to be opened again."""
        source = self._source
        pace, is_any = _Pace(source), False
        for shot in shots:
            now, is_any = source.clock.now(), True
            if self._is_gap:
                shot.gap, self._is_gap = True, False
                if source.live:
                    source.timeline.continue_after(now - self._seen_s)
                elif self.last_s is None:  # another round
                    source.timeline.continue_after(source.timeline.period_s)
            if self.attempt:
                source.found()
            self.attempt, self._seen_s = 0, now
            if not source.live:
                self.last_s = self.last_s if shot.time_s is None else shot.time_s
                if not pace.waits(shot):
                    return False
            if not source.push(shot):
                return False
        if source.live:
            return not self.is_over
        self.last_s, self._is_gap = None, True
        return source.options.loop and is_any


def _live_shots(source: Source, media: Input, way: _Way) -> Generator[Shot, None, None]:
    from headrace_vision.reading.video_files import open_address, open_camera, web_file

    timeout_s, max_pixels = source.options.read_timeout, source.options.max_pixels
    way.is_over = False
    if media.kind == "camera":
        _refuse_ends(source)
        with open_camera(media.target, timeout_s, _ffmpeg(source, media)) as container:
            yield from _shots_of(container, source, media, way.last_s)
        return
    options = _ffmpeg(source, media)
    file = web_file(media.target, timeout_s, source.hang_up_with)
    try:
        with open_address(
            media.target, timeout_s, max_pixels, media.hosts, file, options, source.hang_up_with
        ) as container:
            has_length = file is not None and file.size is not None
            source.live = container.duration is None and not has_length
            (_refuse_ends if source.live else _refuse_arrival)(source)
            yield from _shots_of(container, source, media, way.last_s)
    finally:
        source.hang_up_with(None)
        if file is not None:
            way.is_over = file.is_over
            file.close()


def _shots_of(
    container: Any, source: Source, media: Input, after_s: float | None = None
) -> Generator[Shot, None, None]:
    """Yield the shots of an open video, and count its damaged packets."""
    from headrace_vision.reading.video_files import clock_of, has_times, rate_of, video_shots

    clock = source.options.clock or clock_of(container, is_live=source.live)
    source.timeline.period_s = period_s = 1.0 / rate_of(container)
    times = PictureTimes(clock, period_s, source.clock.now)
    count = itertools.count()

    def now_s() -> float:
        return source.clock.now() if source.live else next(count) * period_s

    for packets in source.packets:
        begun_s = None if has_times(container) else now_s()
        packets.begin(container.streams.best("video"), begun_s, is_live=source.live)

    def put(packet: Any) -> None:
        for packets in source.packets:
            packets.put(packet, now_s())

    shots = video_shots(
        container, source.options, media.name, times, after_s, put, is_live=source.live
    )
    try:
        for shot in shots:
            if shot is None:
                source.damaged()
            else:
                yield shot
    finally:
        for packets in source.packets:
            packets.hang_up()


def _ffmpeg(source: Source, media: Input) -> dict[str, str]:
    """Return the options that are set, for opening a file, an address or a camera.

    Raises:
        OptionError: One is for something else, or names hardware that is not there.
    """
    from headrace_vision.reading.video_files import check_hardware

    kind = media.kind if media.live else "file"
    options = {name: str(value) for name, value in (source.options.ffmpeg or {}).items()}
    for name in options:
        if kind not in FFMPEG[name]:
            known = ", ".join(option for option, kinds in FFMPEG.items() if kind in kinds)
            text = f"the option {name!r} of FFmpeg is not for this kind of source: {kind}"
            raise OptionError(text, expected=known, got=name)
    if "rtsp_transport" in options and not media.target.lower().startswith("rtsp"):
        text = f"rtsp_transport is for RTSP, and {source.name!r} is another address"
        raise OptionError(text, expected="rtsp://...", got=media.name)
    if "hwaccel" in options:
        try:
            check_hardware(options["hwaccel"])
        except ValueError as error:
            raise OptionError(str(error)) from error
    options.pop("threads", None)  # of the decoder
    return options


def _refuse_arrival(source: Source) -> None:
    if source.options.clock == "arrival":
        text = f"clock is about when pictures arrive, and {source.name!r} is not live"
        raise InputError(text, expected='"pts" or "dts"', got='clock = "arrival"')


def _refuse_ends(source: Source) -> None:
    options = source.options
    for name in ("start", "stop", "loop"):
        value = getattr(options, name)
        if value is not None and value is not False:
            text = f"{name} is for what has a beginning and an end, and {source.name!r} is live"
            expected = "a file, or an address with an end"
            raise OptionError(text, expected=expected, got=f"{name} = {value}")
