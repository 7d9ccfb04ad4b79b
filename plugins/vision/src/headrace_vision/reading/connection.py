"""What packets of a video share, and one of them with its times."""

from __future__ import annotations

import io
import math
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

__all__ = ["CONTAINERS", "Connection", "StreamPacket"]

CONTAINERS = {".mp4": "mp4", ".mkv": "matroska"}
"""FFmpeg's format by the suffix of a video. Matroska holds what MP4 has no place for."""


class Connection:
    """What packets share that belong into one file: they come from one connection, or one round of a file.

    Args:
        stream: A video stream of PyAV. Its parameters are copied.
        begun_s: When it was opened, in seconds, if its packets have no times but those of arrival, else None.

    Attributes:
        template: A stream that files are made like.
        suffix: That of files with a place for it, ``".mp4"`` or ``".mkv"``.
        unit: Unit of the times of its packets in seconds.
        known: A time of a packet, and when it came, in seconds. None until one has a time.
        offset_s: What is added to times of packets for those of frames. None until a frame was decoded.
        size: Width and height of its pictures in pixels. (0, 0) until one was decoded.
        early: By how much packets are decoded before their times of decoding.
        extradata: What decoders need beside the packets, where it has changed since the template, else None.

    Raises:
        ValueError: Its pictures are not encoded, as those of some cameras, or no container holds them.
    """

    def __init__(self, stream: Any, begun_s: float | None) -> None:
        import av

        self.codec = stream.codec_context
        self.size = (0, 0)
        self.early = 0
        self.unit = stream.time_base if begun_s is None else Fraction(1, 90_000)
        self.has_times = begun_s is None
        self.known = None if begun_s is None else (0, begun_s)
        self.offset_s: float | None = None
        self.extradata: bytes | None = None
        self._seen: bytes | None = None
        self._sets: Any = None
        with suppress(ValueError):  # a codec whose packets have no parameters
            self._sets = av.bitstream.BitStreamFilterContext("extract_extradata", stream)
        if self.codec.name in ("rawvideo", "wrapped_avframe"):
            raise ValueError("its pictures are not encoded")
        for self.suffix, kind in CONTAINERS.items():
            with av.open(io.BytesIO(), "w", format=kind) as container:
                if self.codec.name in container.supported_codecs or kind == "matroska":
                    self.template = container.add_stream_from_template(stream, opaque=True)
                    break

    def at(self, packet: Any) -> Connection:
        """Return where a key frame belongs: here, or to what follows where the stream changes with it, as in size."""
        import av

        parts = [packet] if self._sets is None else [packet, *self._sets.filter(av.Packet(packet))]
        kind = "new_extradata"
        sets = [part.get_sidedata(kind) for part in parts if part.has_sidedata(kind)]
        if not sets or (extradata := bytes(sets[-1])) == self._seen:
            return self
        if self._seen is None:
            self._seen = extradata
            return self
        changed = copy(self)
        changed.extradata = changed._seen = extradata
        decoder = av.CodecContext.create(self.codec.name, "r")
        pictures = [*decoder.decode(packet), *decoder.decode(None)]
        changed.size = (pictures[0].width, pictures[0].height)
        return changed

    def seconds(self, ticks: int | None) -> float:
        """Return the time of a frame in seconds. It is infinite while it is not known."""
        if ticks is None or self.offset_s is None:
            return math.inf
        return float(ticks * self.unit) + self.offset_s


@dataclass(slots=True, eq=False)
class StreamPacket:
    """A packet, with its times in units of its connection. They are None until they are known."""

    packet: Any
    connection: Connection
    came_s: float
    pts: Any
    dts: Any

    @property
    def is_key(self) -> bool:
        """Whether it can be decoded without those before it."""
        return bool(self.packet.is_keyframe)
