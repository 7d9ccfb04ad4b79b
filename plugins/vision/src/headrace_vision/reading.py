"""What the thread of a source does: open, read, and try again when a live source is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, InputError
from headrace_vision.frames import Shot
from headrace_vision.stills import StillDecoder, as_image

if TYPE_CHECKING:
    from headrace_vision.inputs import Input
    from headrace_vision.source import Source

__all__ = ["MOST_WAIT_S", "back_off", "failed_shot", "read_source", "still_shot"]

LEAST_WAIT_S, MOST_WAIT_S = 0.5, 30.0
"""Shortest and longest time before a lost source is tried again, in seconds."""


def back_off(attempt: int, chance: Callable[[], float]) -> float:
    """Return the seconds before attempt number ``attempt`` (from 0): doubled each time, with jitter.

    Args:
        attempt: How often the source was tried in vain since its last frame.
        chance: Returns a number from 0 to 1.
    """
    whole = LEAST_WAIT_S * 2.0 ** min(attempt, 10)
    return float(min(MOST_WAIT_S, max(LEAST_WAIT_S, whole * (0.75 + 0.5 * chance()))))


def failed_shot(error: Exception, path: str | None) -> Shot:
    """Return the shot that stands for what could not be read."""
    return Shot(lambda: None, path=path, error=error)  # type: ignore[arg-type, return-value]


def still_shot(one: Input, decode: StillDecoder) -> Shot:
    """Return the shot of a still; it is decoded when it is converted."""
    target = one.target

    def convert() -> Any:
        if isinstance(target, Path):
            try:
                return decode(target.read_bytes())
            except OSError as error:
                raise InputError("the file cannot be read", got=str(error)) from error
        return decode(target) if isinstance(target, bytes) else as_image(target)

    return Shot(convert, path=one.name)


def read_source(source: Source, one: Input, decode: StillDecoder) -> None:
    """Read a source to its end, and note the end; no error leaves this function.

    Args:
        source: Gets the shots.
        one: What is read; no collection.
        decode: Decodes stills.
    """
    try:
        if one.kind == "still":
            source.push(still_shot(one, decode))
        elif one.live:
            _follow(source, one)
        else:
            _read_file(source, one)
    except Exception as error:  # noqa: BLE001 - it is the outcome of this source
        source.push(failed_shot(_as_input_error(error), one.name))
        source.finish(error)
    else:
        source.finish()


def _as_input_error(error: Exception) -> Exception:
    if isinstance(error, HeadraceError):
        return error
    made = InputError("reading goes no further", got=f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made


def _read_file(source: Source, one: Input) -> None:
    pace = _Pace(source)
    turn = 0
    while True:
        found = 0
        with closing(_shots(source, one)) as shots:
            for shot in shots:
                if not found and turn:
                    shot.gap = True
                    source.timeline.continue_after(source.timeline.period_s)
                found += 1
                if not pace.waits(shot) or not source.push(shot):
                    return
        if not source.options.loop or not found:
            return
        turn += 1
        pace = _Pace(source)
        if hasattr(one.target, "seek"):
            one.target.seek(0)


def _shots(source: Source, one: Input) -> Generator[Shot, None, None]:
    from headrace_vision.video_files import open_video, rate_of, video_shots, webp_shots

    if one.kind == "webp":
        yield from webp_shots(one.target, one.name)
        return
    with open_video(one.target) as container:
        source.timeline.period_s = 1.0 / rate_of(container)
        for found in video_shots(container, source.options, one.name):
            if isinstance(found, Shot):
                yield found
            else:
                source.damaged()


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


def _follow(source: Source, one: Input) -> None:
    """Read a live source until it is stopped, or an address until its end if it has one."""
    attempt, last_s = 0, source.clock.now()
    lost = False
    while not source.stopping.is_set():
        try:
            with closing(_live_shots(source, one)) as shots:
                for shot in shots:
                    now = source.clock.now()
                    if lost:
                        shot.gap, lost = True, False
                        source.timeline.continue_after(now - last_s)
                    attempt, last_s = 0, now
                    if not source.push(shot):
                        return
            if not source.live:
                return
            reason: BaseException | str = "the stream ended"
        except Exception as error:  # noqa: BLE001 - types of errors of reads mislead; any loses the source
            if source.stopping.is_set():
                return
            reason = error
        lost = True
        source.lost(reason)
        source.clock.wait(source.stopping, back_off(attempt, random.random))
        attempt += 1


def _live_shots(source: Source, one: Input) -> Generator[Shot, None, None]:
    from headrace_vision.video_files import open_address, open_camera, rate_of, video_shots

    opened = open_camera if one.kind == "camera" else open_address
    with opened(one.target, source.options.read_timeout) as container:
        source.timeline.period_s = 1.0 / rate_of(container)
        if one.kind == "address":
            source.live = container.duration is None
        for found in video_shots(container, source.options, one.name):
            if isinstance(found, Shot):
                yield found
            else:
                source.damaged()
