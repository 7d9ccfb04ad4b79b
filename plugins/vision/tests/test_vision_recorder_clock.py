"""Recordings by the clock: of cameras that are silent, on disks that are full or slow."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import av
import pytest
from live_camera import Camera
from quick_clock import Quick

from headrace_vision import SaveVideo, Sink, VideoRunner


def fill(folder):
    path = folder / "filler"
    with suppress(OSError):
        path.write_bytes(bytes(2 << 20))
    return path


def pictures_in(folder, pattern="*.mp4*"):
    count = 0
    for path in folder.glob(pattern):
        with av.open(str(path)) as container:
            count += sum(1 for one in container.demux(video=0) if one.size)
    return count


@pytest.mark.parametrize("codec", ["copy", "libx264"])
def test_the_clip_of_the_last_event_before_a_camera_falls_silent_ends_by_the_clock(tmp_path, codec):
    sink = SaveVideo(tmp_path / "out", codec=codec, before_s=3, after_s=5)
    camera = Camera(sink, tmp_path / "cam.mp4")
    camera.send(50, event=49)
    camera.be_silent(4)
    assert not list((tmp_path / "out").glob("*.mp4"))
    assert list((tmp_path / "out").glob("*.mp4.part"))
    camera.be_silent(2)
    assert 30 <= pictures_in(tmp_path / "out", "*.mp4") <= 40
    camera.send(10)  # it is back, and still within the time of the event
    sink.source_ended("cam")
    assert 40 <= pictures_in(tmp_path / "out", "*.mp4") <= 50


@pytest.mark.parametrize("begun", [0, 45])
def test_packets_that_waited_for_a_full_disk_are_written_though_the_camera_is_silent(
    disk, tmp_path, begun
):
    camera = Camera(SaveVideo(disk / "out", codec="copy"), tmp_path / "cam.mp4")
    camera.send(begun)
    filler = fill(disk)
    assert "No space" in str(camera.send(90 - begun))
    assert "No space" in camera.sink.status()["copy_error"]
    with pytest.raises(OSError, match="No space"):
        camera.sink.tick()
    filler.unlink()
    camera.be_silent(1)
    assert pictures_in(disk / "out") >= 85  # FFmpeg holds half a second back
    assert camera.sink.status() == {"missing": 0, "lost_packets": 0, "copy_error": None}
    camera.sink.close()


class Slow:
    """A file whose disk takes nothing while its gate is shut."""

    def __init__(self, file, gate, reached):
        self.file, self.gate, self.reached = file, gate, reached

    def write(self, data):
        self.reached.set()
        assert self.gate.wait(120)
        return self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_slow_disk_does_not_hold_the_thread_that_reads_a_camera(tmp_path, monkeypatch):
    """The disk takes nothing more until the camera has sent all."""
    opened, gate, reached = Path.open, threading.Event(), threading.Event()

    def slow(path, *args, **options):
        file = opened(path, *args, **options)
        return Slow(file, gate, reached) if path.name == "cam.mp4.part" else file

    gate.set()
    monkeypatch.setattr(Path, "open", slow)
    sink = SaveVideo(tmp_path / "out", codec="copy")
    camera = Camera(sink, tmp_path / "cam.mp4")
    camera.send(20)
    gate.clear()
    reached.clear()
    for packet in camera.sent[20:40]:
        camera.packets.put(packet, 0.0)
    thread = threading.Thread(target=sink.tick)
    thread.start()
    assert reached.wait(120)
    for packet in camera.sent[40:]:
        camera.packets.put(packet, 0.0)
    assert not gate.is_set()
    gate.set()
    thread.join()
    sink.close()
    assert pictures_in(tmp_path / "out", "*.mp4") == 100


class Ticking(Sink):
    """Counts its ticks, which fail as it is told."""

    tick_s = 0.01

    def __init__(self):
        self.ticks, self.error, self.ticked = [], None, threading.Semaphore(0)

    def tick(self):
        self.ticks.append(self.runner_clock.now())
        self.ticked.release()
        if self.error is not None:
            raise self.error

    def write(self, frame):
        pass


def test_a_sink_ticks_though_no_frame_comes_and_says_once_that_it_fails(caplog):
    clock, sink = Quick(), Ticking()
    with VideoRunner({"backend": "Identity"}, sinks={"ticks": sink}, machine_clock=clock) as runner:
        assert sink.ticked.acquire(timeout=120)
        for number in range(12):
            clock.time += 1
            if 4 <= number < 8:
                sink.error = OSError("full")
            elif sink.error is not None:
                assert runner.status()["sinks"]["ticks"]["state"] == "failed"
                sink.error = None
            assert sink.ticked.acquire(timeout=120)
    assert sink.ticks == sorted(sink.ticks)
    assert sink.ticks[:4] == [0, 1, 2, 3]
    said = [one.getMessage() for one in caplog.records if "sink ticks" in one.getMessage()]
    assert len(said) == 2
    assert "fails" in said[0]
    assert "works again" in said[1]
