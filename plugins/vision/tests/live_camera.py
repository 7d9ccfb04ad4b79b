"""A live camera, as sinks see it, that sends what a test says."""

from __future__ import annotations

import functools
import io
from contextlib import suppress

import av
import numpy as np
from quick_clock import Quick

from headrace_vision import Frame


@functools.lru_cache(maxsize=2)
def film(count, size):
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        options = {"bf": "0", "g": "10", "preset": "ultrafast"}
        stream = container.add_stream("libx264", rate=10, options=options)
        stream.height, stream.width = size
        for number in range(count):
            image = np.random.default_rng(number).integers(0, 255, (*size, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(stream.encode())
    return file.getvalue()


class Camera:
    """A live source of ten pictures a second, a key frame each second, that sends what a test says.

    Frames come so many pictures ``behind`` their packets, as behind a slow model.
    """

    def __init__(self, sink, path, count=100, size=(48, 64), behind=0):
        self.sink, self.number, self.clock, self.behind = sink, 0, Quick(), behind
        sink.runner_clock = self.clock
        path.write_bytes(film(count, size))
        sink.open()
        self.packets = sink.packets_of("cam")
        with av.open(str(path)) as container:
            (stream,) = container.streams
            self.pictures = [one.to_ndarray(format="bgr24") for one in container.decode(stream)]
            container.seek(0)
            self.sent = [one for one in container.demux(stream) if one.size]
            if self.packets is not None:
                self.packets.begin(stream, None, is_live=True)

    def send(self, count, event=None):
        """Send pictures, of which one has an event; return the error of the last one that the sink could not take."""
        error = None
        for _ in range(count):
            number, self.number = self.number, self.number + 1
            if self.packets is not None:
                self.packets.put(self.sent[number], number / 10)
                self.packets.note(number / 10, number / 10)
            number -= self.behind
            if number < 0:
                continue
            request = {"events": [{"type": "line"}]} if number == event else {}
            image = None if self.packets else self.pictures[number]
            frame = Frame("cam", number, number / 10, image=image, request=request, live=True)
            self.clock.time += 0.1
            try:
                self.sink.write(frame)
            except OSError as found:
                error = found
        return error

    def be_silent(self, seconds):
        for _ in range(round(2 * seconds)):
            self.clock.time += 0.5
            with suppress(OSError):  # as the thread of a sink does
                self.sink.tick()
