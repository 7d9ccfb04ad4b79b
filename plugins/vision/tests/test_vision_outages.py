"""Sinks whose receiver or disk is away for a while: what is kept, in which order it comes, what is lost, and what is said."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import shutil
import threading
import tracemalloc
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
import supervision as sv

import headrace
import headrace_vision
from headrace.errors import ConfigError, InputError, code_of
from headrace_vision import (
    Clock,
    SaveImages,
    SaveJSONL,
    SaveVideo,
    Sink,
    VideoRunner,
    Webhook,
)
from headrace_vision.reading.packets import Packets, Span

PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


class Steps(Clock):
    """A clock that stands still until the test lets the seconds pass that somebody waits for."""

    def __init__(self):
        self.time = 100.0
        self.waits = []
        self._changed = threading.Condition()
        self._free = False

    def now(self):
        return self.time

    def wait(self, stop, seconds):
        with self._changed:
            number = len(self.waits)
            self.waits.append(seconds)
            self._changed.notify_all()
            while not (stop.is_set() or self._free or number < self._passed):
                self._changed.wait(0.01)  # `stop` is set without a word to this clock
            if not stop.is_set():
                self.time += seconds
            return stop.is_set()

    _passed = 0

    def step(self):
        """Let the wait under way pass; then wait until the next one has begun, or forever if none does."""
        with self._changed:
            self._passed = len(self.waits)
            self._changed.notify_all()

    def until_waits(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.waits) >= count, PATIENCE_S)

    def free(self):
        with self._changed:
            self._free = True
            self._changed.notify_all()


class Broken(Sink):
    """Writes down what it gets, unless it is told to fail."""

    name = "broken"

    def __init__(self, error=None, **attributes):
        self.error, self.seen, self.ended = error, [], []
        self.wrote = threading.Semaphore(0)
        for key, value in attributes.items():
            setattr(self, key, value)

    def write(self, frame):
        if self.error is not None:
            raise self.error
        self.seen.append(frame.frame)
        self.wrote.release()

    def source_ended(self, source):
        self.ended.append((source, len(self.seen)))


def pictures(count, size=(32, 32)):
    return [np.full((*size, 3), number % 256, np.uint8) for number in range(count)]


def runner_of(sink, clock, **options):
    return VideoRunner({"backend": "Identity"}, sinks=[sink], machine_clock=clock, **options)


def status_of(runner):
    return next(iter(runner.status()["sinks"].values()))


@pytest.mark.parametrize("error", [OSError("away"), RuntimeError("away"), ConfigError("x")])
def test_what_came_while_a_sink_failed_is_written_in_order_once_it_works(error, caplog):
    clock, sink = Steps(), Broken(error)
    with runner_of(sink, clock) as runner:
        assert len(list(runner.run({"a": pictures(40)}))) == 40  # it holds nobody up
        for attempt in range(1, 6):
            clock.until_waits(attempt)
            status = status_of(runner)
            assert (status["state"], status["attempts"]) == ("failed", attempt)
            assert (status["written"], status["waiting"], status["lost"]) == (0, 40, 0)
            assert status["retry_in_s"] == pytest.approx(clock.waits[-1])
            clock.step() if attempt < 5 else None
        sink.error = None
        clock.step()
        for _ in range(40):
            assert sink.wrote.acquire(timeout=PATIENCE_S)
    assert sink.seen == list(range(40))
    assert sink.ended == [("a", 40)]
    status = status_of(runner)
    assert (status["state"], status["error"], status["written"]) == ("closed", None, 40)
    for number, wait_s in enumerate(
        clock.waits[:5]
    ):  # as cameras: doubled, with jitter of a quarter
        assert max(0.5, 0.375 * 2**number) <= wait_s <= 0.625 * 2**number
    texts = [one.getMessage() for one in caplog.records if one.name == "headrace.vision"]
    assert len(texts) == 2
    assert "sink broken fails, and is tried again" in texts[0]
    assert "works again after 5 attempts: 40 frames were kept, 0 were lost" in texts[1]


def test_beyond_its_bytes_the_oldest_frames_are_lost_and_counted():
    clock = Steps()
    sink = Broken(OSError("away"), spool_bytes=5 * 32 * 32 * 3)
    with runner_of(sink, clock) as runner:
        list(runner.run({"a": pictures(20)}))
        status = status_of(runner)
        assert (status["lost"], status["waiting"], status["waiting_bytes"]) == (15, 5, 15360)
        clock.until_waits(1)
        sink.error = None
        clock.step()
    assert sink.seen == [15, 16, 17, 18, 19]
    assert status_of(runner)["written"] + status_of(runner)["lost"] == 20


def test_without_room_the_newest_frame_is_kept_and_the_sink_comes_back():
    clock, sink = Steps(), Broken(OSError("away"), spool_bytes=0)
    with runner_of(sink, clock) as runner:
        list(runner.run({"a": pictures(7)}))
        clock.until_waits(1)
        sink.error = None
        clock.step()
    assert sink.seen == [6]
    assert status_of(runner)["lost"] == 6


def test_a_frame_that_never_can_be_written_is_lost_alone():
    def picky(frame):
        if frame.frame == 3:
            raise ValueError("not this one")
        seen.append(frame.frame)

    seen, clock = [], Steps()
    clock.free()
    with runner_of(picky, clock) as runner:
        list(runner.run({"a": pictures(8)}))
    assert sorted(seen) == [0, 1, 2, 4, 5, 6, 7]
    assert (status_of(runner)["lost"], status_of(runner)["written"]) == (1, 7)


def test_a_sink_that_cannot_be_opened_is_opened_later():
    class Late(Broken):
        def open(self):
            if self.error is not None:
                raise self.error

    clock, sink = Steps(), Late(RuntimeError("no room"))
    with runner_of(sink, clock) as runner:
        list(runner.run({"a": pictures(30)}))
        clock.until_waits(1)
        sink.error = None
        clock.step()
    assert sink.seen == list(range(30))


@pytest.mark.parametrize(("close_s", "attempts"), [(0, 2), (0.4, 2), (3.0, 6)])
def test_closing_tries_for_close_s_and_no_longer(close_s, attempts):
    class Counted(Broken):
        calls = 0

        def write(self, frame):
            self.calls += 1
            if self.calls == 2:  # closing has ended the first wait: from here on time passes
                clock.free()
            super().write(frame)

    clock, sink = Steps(), Counted(OSError("away"), close_s=close_s)
    with runner_of(sink, clock) as runner:
        list(runner.run({"a": pictures(4)}))
        clock.until_waits(1)
        begin_s = clock.time
        runner.close()
    assert clock.time - begin_s <= close_s + 0.7  # the wait that closing ended has not passed
    assert 2 <= sink.calls <= attempts + 1
    status = status_of(runner)
    assert (status["state"], status["lost"], status["waiting"]) == ("failed", 4, 0)
    assert status["error"] == "OSError: away"


def test_a_receiver_that_comes_back_while_the_runner_closes_gets_everything():
    class Back(Broken):
        calls = 0

        def write(self, frame):
            self.calls += 1
            self.error = OSError("away") if self.calls < 5 else None
            super().write(frame)

    clock, sink = Steps(), Back()
    clock.free()
    with runner_of(sink, clock) as runner:
        list(runner.run({"a": pictures(4)}))
    assert sink.seen == [0, 1, 2, 3]
    assert status_of(runner)["lost"] == 0


def find(image):
    """A detection with everything that detections have."""
    number = int(image[0, 0, 0])
    return sv.Detections(
        np.array([[number, 1, 20, 21]], np.float32),
        mask=np.arange(32 * 32).reshape(1, 32, 32) % 3 == 0,
        confidence=np.array([0.25], np.float32),
        class_id=np.array([4]),
        data={"class_name": np.array(["boîte"])},
    )


class Keeps(Broken):
    def write(self, frame):
        super().write(frame)
        self.frames = [*getattr(self, "frames", []), frame]


def test_what_a_folder_keeps_survives_the_program_and_is_written_first(tmp_path):
    headrace.register("VisionFindAll", find, replace=True)
    clock = Steps()
    clock.free()
    first = Keeps(OSError("away"), spool=tmp_path / "spool", close_s=0)
    with VideoRunner({"backend": "VisionFindAll"}, sinks=[first], machine_clock=clock) as runner:
        frames = list(runner.run({"a\udcff": [*pictures(2), b"broken", *pictures(1)]}))
    status = status_of(runner)
    assert (status["lost"], status["waiting"], status["state"]) == (0, 4, "failed")
    assert len(list((tmp_path / "spool").iterdir())) == 4
    second = Keeps(spool=tmp_path / "spool")
    with VideoRunner({"backend": "VisionFindAll"}, sinks=[second], machine_clock=clock) as runner:
        list(runner.run({"b": pictures(2)}))
    kept = {(one.source, one.frame): one for one in second.frames[:4]}
    assert [one.source for one in second.frames[4:]] == ["b"] * 2
    assert set(kept) == {(one.source, one.frame) for one in frames}
    for before in frames:
        after = kept[before.source, before.frame]
        for name in ("source", "frame", "timestamp", "gap", "path"):
            assert getattr(after, name) == getattr(before, name)
        assert (after.error is None) == (before.error is None)
        assert str(after.error) == str(before.error)
        if before.error is not None:
            assert code_of(after.error) == code_of(before.error)
        assert after.result == before.result
        if before.image is not None:
            np.testing.assert_array_equal(after.image, before.image)
    assert not list((tmp_path / "spool").iterdir())


def test_a_folder_keeps_every_number_as_it_was(tmp_path):
    odd = [math.nan, math.inf, -math.inf, -0.0, 2**70, (1.5, "\udc80")]
    headrace.register("VisionOddNumbers", lambda _: {"a": odd}, replace=True)
    clock = Steps()
    clock.free()
    for frames, sink in (
        (1, Keeps(OSError("away"), spool=tmp_path, close_s=0)),
        (0, Keeps(spool=tmp_path)),
    ):
        with VideoRunner(
            {"backend": "VisionOddNumbers"}, sinks=[sink], machine_clock=clock
        ) as runner:
            list(runner.run({"a": pictures(frames)}))
    assert repr(sink.frames[0].result) == repr({"a": odd})


def test_a_damaged_file_is_left_out_with_a_warning_and_other_files_stay(tmp_path, caplog):
    clock = Steps()
    clock.free()
    with runner_of(Broken(OSError("away"), spool=tmp_path, close_s=0), clock) as runner:
        list(runner.run({"a": pictures(4)}))
    one, two, *_ = sorted(tmp_path.iterdir())
    one.write_bytes(one.read_bytes()[:100])
    two.write_bytes(b"")
    (tmp_path / f"{'9' * 15}-01234567.npz.0123456789abcdef.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("mine")
    caplog.clear()
    sink = Broken(spool=tmp_path)
    with runner_of(sink, clock) as runner:
        pass
    assert sink.seen == [2, 3]
    assert status_of(runner)["lost"] == 2
    assert sum("is damaged, and left out" in one.getMessage() for one in caplog.records) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


class AlarmInEach(headrace.Backend):
    def forward(self, batch):
        for request in batch:
            request["result"] = None
            request["events"] = [{"type": "alarm"}]


@pytest.mark.parametrize("attributes", [{"full": "keep", "queue_size": 2}, {"queue_size": 50}])
def test_with_a_folder_each_event_is_on_the_disk_before_it_is_sent(tmp_path, attributes):
    """The receiver is slow, and never fails; what is in the folder then is what a kill would leave."""
    headrace.register("VisionAlarmInEach", AlarmInEach, replace=True)
    gate, left = threading.Event(), tmp_path / "left"

    class Slow(Broken):
        def write(self, frame):
            if not left.exists():
                assert gate.wait(PATIENCE_S)
                shutil.copytree(tmp_path / "spool", left)
            super().write(frame)

    clock, slow = Steps(), Slow(spool=tmp_path / "spool", **attributes)
    with VideoRunner({"backend": "VisionAlarmInEach"}, sinks=[slow], machine_clock=clock) as runner:
        frames = list(runner.run({"a": pictures(20)}))
        assert slow.seen == []
        gate.set()
    assert slow.seen == list(range(20))
    assert not list((tmp_path / "spool").iterdir())
    again = Keeps(spool=left)
    with runner_of(again, clock):
        pass
    told = [[one.request["events"] for one in found] for found in (again.frames, frames)]
    assert told[0] == told[1]  # with the same ids and times


def test_a_folder_without_room_is_told_once_and_the_frames_stay_in_memory(tmp_path, caplog):
    clock, sink = Steps(), Broken(full="keep", spool=tmp_path / "spool")
    with runner_of(sink, clock) as runner:
        (tmp_path / "spool").rmdir()
        list(runner.run({"a": pictures(5)}))
    assert sink.seen == list(range(5))
    assert sum("cannot be kept in" in one.getMessage() for one in caplog.records) == 1


def test_a_folder_has_a_bound_and_belongs_to_one_sink(tmp_path):
    clock = Steps()
    sink = Broken(OSError("away"), spool=tmp_path, spool_bytes=40_000, close_s=0)
    with runner_of(sink, clock) as runner:
        list(runner.run({"a": pictures(50)}))
        sizes = sum(path.stat().st_size for path in tmp_path.iterdir())
        status = status_of(runner)
        assert sizes == status["waiting_bytes"] <= 40_000
        assert status["lost"] == 50 - status["waiting"] == 50 - len(list(tmp_path.iterdir()))
    again = Broken(spool=tmp_path)
    with runner_of(again, clock):
        pass
    assert again.seen == list(range(50 - status["waiting"], 50))
    with pytest.raises(ValueError, match="give each its own folder"):
        VideoRunner({"backend": "Identity"}, sinks=[Broken(spool=tmp_path), Broken(spool=tmp_path)])
    with pytest.raises(ValueError, match="spool_bytes is at least 0"):
        SaveImages(tmp_path, spool_bytes=-1)
    with pytest.raises(ValueError, match="close_s is at least 0"):
        SaveImages(tmp_path, close_s=float("nan"))


@pytest.mark.slow
def test_outages_leave_no_memory_no_thread_and_no_file(tmp_path):
    clock, sink = Steps(), Broken(spool=tmp_path, spool_bytes=200_000)
    clock.free()

    def outages():
        for number in range(400):
            if number % 20 == 5:
                sink.error = OSError("away")
            if number % 20 == 15:
                sink.error = None
            yield np.full((32, 32, 3), number % 250, np.uint8)

    with runner_of(sink, clock) as runner:
        assert sum(1 for _ in runner.run({"a": outages()})) == 400
        tracemalloc.start()
        before = tracemalloc.take_snapshot()
        assert sum(1 for _ in runner.run({"b": outages()})) == 400
        grown = tracemalloc.take_snapshot().compare_to(before, "filename")
        tracemalloc.stop()
        ours = sum(one.size_diff for one in grown if "headrace_vision" in str(one.traceback))
        assert ours < 300_000  # the bound of the spool, and the queue
    assert not [one for one in threading.enumerate() if one.name.startswith("headrace-vision")]
    assert not list(tmp_path.iterdir())
    status = status_of(runner)
    assert status["written"] + status["lost"] == 800


def test_a_frame_that_is_lost_while_it_is_saved_leaves_no_file(tmp_path, monkeypatch):
    """The sink's thread saves the first frame when it fails, and meanwhile so many come that this one is lost."""
    opened, reached, gate = Path.open, threading.Event(), threading.Event()

    def slow(path, *args, **options):
        if path.suffix == ".part" and not reached.is_set():
            reached.set()
            assert gate.wait(PATIENCE_S)
        return opened(path, *args, **options)

    def feed():
        yield pictures(1)[0]
        assert reached.wait(PATIENCE_S)
        yield from pictures(20)

    monkeypatch.setattr(Path, "open", slow)
    clock, sink = Steps(), Broken(OSError("away"), spool=tmp_path, spool_bytes=20_000)
    with runner_of(sink, clock) as runner:
        assert sum(1 for _ in runner.run({"a": feed()})) == 21
        gate.set()
        clock.until_waits(1)
        assert 0 < status_of(runner)["waiting"] < 20
        assert len(list(tmp_path.glob("*.npz"))) == status_of(runner)["waiting"]
        clock.free()


# What is written to a disk that is full for a moment.


class Disk:
    """Files of the sinks go to a disk that is full when it is told so: each write fails after a few bytes."""

    def __init__(self, monkeypatch):
        self.errno = None
        disk, opened = self, Path.open

        class Raw:
            def __init__(self, file):
                self.file, self.is_dead = file, False

            def write(self, data):
                self.is_dead = self.is_dead or disk.errno == errno.EIO  # it never comes back
                if self.is_dead:
                    raise OSError(errno.EIO, "Input/output error")
                disk.check()
                return self.file.write(bytes(data[: max(len(data) // 2, 1)]))  # in parts, as it may

            def __getattr__(self, name):
                return getattr(self.file, name)

        def open_on_disk(path, mode="r", *args, **options):
            file = opened(path, mode, *args, **options)
            return Raw(file) if mode in {"wb", "ab"} and options.get("buffering") == 0 else file

        def write_bytes(path, data):
            with opened(path, "wb") as file:
                file.write(data[:5])
                disk.check()
                return file.write(data[5:]) + 5

        monkeypatch.setattr(Path, "open", open_on_disk)
        monkeypatch.setattr(Path, "write_bytes", write_bytes)

    def check(self):
        code = self.errno
        if code is not None:
            raise OSError(code, os.strerror(code))


def through_a_bad_day(sink, disk, code, count=150, first=90, last=120):
    """Run pictures into a sink, whose disk fails for some of them."""
    clock = Steps()
    clock.free()
    wrote, write = threading.Semaphore(0), sink.write

    def written(frame):
        write(frame)
        wrote.release()

    sink.write = written

    def feed():
        for number in range(count):
            if number == first:
                for _ in range(first - 10):  # the others are under way
                    assert wrote.acquire(timeout=PATIENCE_S)
                disk.errno = code
            if number == last:
                disk.errno = None
            yield np.full((32, 32, 3), number, np.uint8)

    with runner_of(sink, clock, image_fps=5) as runner:
        assert sum(1 for _ in runner.run({"cam": feed()})) == count
    return status_of(runner)


def test_lines_are_whole_after_a_full_disk(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    status = through_a_bad_day(SaveJSONL(tmp_path / "a.jsonl"), disk, errno.ENOSPC)
    assert (status["written"], status["lost"]) == (150, 0)
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["frame"] for line in lines] == list(range(150))


def test_images_go_on_after_a_full_disk(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    assert through_a_bad_day(SaveImages(tmp_path), disk, errno.ENOSPC)["written"] == 150
    names = sorted(path.name for path in (tmp_path / "cam").iterdir())
    assert names == [f"{number:06d}.jpg" for number in range(150)]


def times_of(path):
    with av.open(str(path)) as video:
        return [frame.time for frame in video.decode(video=0)]


def test_a_video_goes_on_after_a_full_disk_without_a_gap(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    status = through_a_bad_day(SaveVideo(tmp_path), disk, errno.ENOSPC)
    assert (status["written"], status["lost"], status["missing"]) == (150, 0, 0)
    assert [path.name for path in tmp_path.glob("*.mp4*")] == ["cam.mp4"]
    assert times_of(tmp_path / "cam.mp4") == pytest.approx([n / 5 for n in range(150)], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 12, 90, 149])
@pytest.mark.parametrize("names", [["cam"], ["cam", "yard"]])
def test_a_video_whose_disk_is_full_to_the_end_has_the_frames_that_count_as_written(
    tmp_path, monkeypatch, first, names
):
    clock, disk, sink = Steps(), Disk(monkeypatch), SaveVideo(tmp_path, close_s=0)
    clock.free()
    write, written = sink.write, itertools.count()

    def fill(frame):
        if next(written) == first * len(names):
            disk.errno = errno.ENOSPC
        write(frame)

    sink.write = fill
    with runner_of(sink, clock, image_fps=5) as runner:
        came = sum(1 for _ in runner.run({name: pictures(150) for name in names}))
    status = status_of(runner)
    assert status["written"] + status["lost"] + status["missing"] == came == 150 * len(names)
    files = sorted(path.name for path in tmp_path.glob("*.mp4*"))
    assert set(files) <= {f"{name}.mp4" for name in names}  # no part, and none without a picture
    times = [times_of(tmp_path / name) for name in files]
    assert sum(map(len, times)) == status["written"]
    assert all(one == pytest.approx([n / 5 for n in range(len(one))], abs=1e-3) for one in times)
    assert bool(files) == (first > 1)  # a picture is written when the next one comes


def test_a_video_whose_end_finds_the_disk_full_has_the_frames_that_count_as_written(
    tmp_path, monkeypatch
):
    clock, disk, sink = Steps(), Disk(monkeypatch), SaveVideo(tmp_path, close_s=0)
    clock.free()
    source_ended = sink.source_ended

    def fill(source):
        disk.errno = errno.ENOSPC
        source_ended(source)

    sink.source_ended = fill
    with runner_of(sink, clock, image_fps=5) as runner:
        list(runner.run({"cam": pictures(150)}))
    status = status_of(runner)
    assert status["written"] == len(times_of(tmp_path / "cam.mp4")) > 50
    assert status["written"] + status["lost"] == 150


@pytest.fixture
def film(tmp_path):
    """Six seconds of ten pictures, each second from a key frame on."""
    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as container:
        wanted = {"g": "10", "bf": "0", "sc_threshold": "0"}
        stream = container.add_stream("libx264", rate=10, options=wanted)
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        for image in pictures(60):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        container.mux(stream.encode())
    return path


def test_a_file_that_packets_wait_for_is_called_by_when_the_first_of_them_came(film):
    """A packet comes each second, and none can be written: the first one waits."""
    waited_s = []

    def make(_, ago_s):
        waited_s.append(ago_s)
        raise OSError(errno.ENOSPC, "full")

    packets = Packets(Span(None, 0.0, 60.0, 1 << 20), make, int)
    with av.open(str(film)) as container:
        packets.begin(container.streams.video[0], None)
        for second, packet in enumerate(container.demux(video=0)):
            packets.put(packet, float(second))
            packets.note(second / 10, second / 10)
            with suppress(OSError):
                packets.advance()
    assert waited_s[:60] == [float(second) for second in range(60)]


def test_packets_wait_for_a_file_that_cannot_be_begun(film, tmp_path, monkeypatch):
    """A file for each key frame, one a second, whose disk is full from 1.5 to 3.5 s."""
    disk, out = Disk(monkeypatch), tmp_path / "out"
    clock, sink = Steps(), SaveVideo(out, codec="copy", every_s=0.5)
    clock.free()
    with runner_of(sink, clock) as runner:
        for f in runner.run(str(film)):
            disk.errno = errno.ENOSPC if 15 <= f.frame < 35 else None
    assert status_of(runner)["lost_packets"] == 0
    assert sorted(len(times_of(path)) for path in out.glob("*.mp4*")) == [10] * 6


def test_a_video_whose_file_is_lost_goes_on_in_another_and_says_what_is_missing(
    tmp_path, monkeypatch
):
    disk = Disk(monkeypatch)
    status = through_a_bad_day(SaveVideo(tmp_path), disk, errno.EIO)
    files = sorted(path.name for path in tmp_path.glob("*.mp4*"))
    assert files == ["cam-part2.mp4", "cam.mp4"]
    before, after = times_of(tmp_path / "cam.mp4"), times_of(tmp_path / "cam-part2.mp4")
    assert before == pytest.approx([n / 5 for n in range(len(before))], abs=1e-3)
    assert 0 < len(before) < 150
    assert len(before) + len(after) == status["written"]
    assert status["written"] + status["lost"] + status["missing"] == 150


def test_a_video_that_is_being_written_can_be_played(tmp_path):
    clock = Steps()
    sink = SaveVideo(tmp_path)
    wrote, write = threading.Semaphore(0), sink.write

    def written(frame):
        write(frame)
        wrote.release()

    sink.write = written
    with runner_of(sink, clock, image_fps=5) as runner:
        frames = iter(pictures(250))
        for count, _ in enumerate(runner.run({"cam": frames})):
            assert wrote.acquire(timeout=PATIENCE_S)
            if count == 200:
                found = times_of(tmp_path / "cam.mp4.part")  # as after a crash
    assert len(found) > 100
    assert found == pytest.approx([n / 5 for n in range(len(found))], abs=1e-3)


def test_kept_frames_of_the_run_before_are_a_video_of_their_own(tmp_path, monkeypatch):
    clock = Steps()
    clock.free()
    disk = Disk(monkeypatch)
    disk.errno = errno.EIO
    out, spool = tmp_path / "out", tmp_path / "spool"
    with runner_of(SaveVideo(out, spool=spool, close_s=0), clock, image_fps=5) as runner:
        list(runner.run({"cam": pictures(30)}))
    disk.errno = None
    with runner_of(SaveVideo(out, spool=spool), clock, image_fps=5) as runner:
        list(runner.run({"cam": pictures(10)}))
    counts = {path.name: len(times_of(path)) for path in out.glob("*.mp4")}
    assert counts == {"cam.mp4": 30, "cam-part2.mp4": 10}


# A receiver that restarts, and its address.


class Alarms(headrace.Backend):
    """Writes an event for each fifth frame."""

    def forward(self, batch):
        for request in batch:
            request["result"] = 0
            number = request["context"]["frame"]
            if number % 5 == 0:
                request["events"] = [{"type": "line", "id": number}]


@pytest.fixture(scope="module", autouse=True)
def _alarms():
    headrace.register("VisionAlarms", Alarms)


def frames_of(receiver):
    return [body["frame"] for body in receiver.bodies]


@pytest.mark.parametrize("away", ["down", 503, 404, 429])
def test_every_event_reaches_a_receiver_that_was_away(receiver, away):
    clock = Steps()
    hook = Webhook(f"http://127.0.0.1:{receiver.port}/x", network=["127.0.0.1"])
    with VideoRunner({"backend": "VisionAlarms"}, sinks=[hook], machine_clock=clock) as runner:
        if away == "down":
            receiver.down()
        else:
            receiver.answer = lambda body: away
        list(runner.run({"cam": pictures(200)}))
        clock.until_waits(1)
        if away == "down":
            receiver.up()
        else:
            receiver.answer = lambda body: 200
        clock.free()
    assert frames_of(receiver) == list(range(0, 200, 5))
    status = status_of(runner)
    assert (status["posted"], status["lost"], status["dropped"]) == (40, 0, 0)


def test_events_wait_for_a_slow_receiver_beside_many_frames_without(receiver):
    go = threading.Event()
    receiver.answer = lambda body: go.wait(PATIENCE_S) and 200
    hook = Webhook(
        f"http://127.0.0.1:{receiver.port}/x", network=["127.0.0.1"], timeout_s=PATIENCE_S
    )
    with VideoRunner({"backend": "VisionAlarms"}, sinks=[hook]) as runner:
        list(runner.run({"cam": pictures(400)}))
        go.set()
    assert frames_of(receiver) == list(range(0, 400, 5))


def test_an_event_that_the_receiver_refuses_is_lost_alone(receiver):
    receiver.answer = lambda body: 422 if body["frame"] == 10 else 200
    clock = Steps()
    clock.free()
    hook = Webhook(f"http://127.0.0.1:{receiver.port}/x", network=["127.0.0.1"], attempts=2)
    with VideoRunner({"backend": "VisionAlarms"}, sinks=[hook], machine_clock=clock) as runner:
        list(runner.run({"cam": pictures(30)}))
    assert frames_of(receiver) == [0, 5, 15, 20, 25]
    assert status_of(runner)["lost"] == 1


def test_an_event_of_the_run_before_is_posted_from_the_folder(receiver, tmp_path):
    clock = Steps()
    clock.free()
    url = f"http://127.0.0.1:{receiver.port}/x"
    receiver.down()
    for frames in (pictures(11), []):
        if not frames:
            receiver.up()
        hook = Webhook(url, network=["127.0.0.1"], spool=tmp_path, close_s=0)
        with VideoRunner({"backend": "VisionAlarms"}, sinks=[hook], machine_clock=clock) as runner:
            list(runner.run({"cam": frames}))
    assert frames_of(receiver) == [0, 5, 10]
    time = receiver.bodies[1]["time"]
    assert receiver.bodies[1]["events"] == [{"type": "line", "id": 5, "time": time}]


SECRETS = [
    "http://user:SECRET@127.0.0.1:{port}/services/SECRET?token=SECRET#SECRET",
    "http://127.0.0.1:{port}/SECRET SECRET\tSECRET",
    "http://127.0.0.1:{port}/é/SECRET",
]


@pytest.mark.parametrize("url", SECRETS)
@pytest.mark.parametrize("away", ["down", 503, 404])
def test_the_address_of_a_webhook_is_shown_nowhere(receiver, caplog, url, away):
    caplog.set_level(logging.DEBUG)
    if away == "down":
        receiver.down()
    receiver.answer = lambda body: away
    hook = Webhook(url.format(port=receiver.port), network=["127.0.0.1"], close_s=0)
    with VideoRunner({"backend": "VisionAlarms"}, sinks=[hook]) as runner:
        list(runner.run({"cam": pictures(3)}))
    status = status_of(runner)
    assert f"http://127.0.0.1:{receiver.port}/..." in status["error"]
    assert "SECRET" not in json.dumps(status) + caplog.text + repr(hook)


def test_a_webhook_sends_the_user_of_its_address_and_hides_it_in_errors(receiver):
    hook = Webhook(f"http://me:p%40ss@127.0.0.1:{receiver.port}/x", network=["127.0.0.1"])
    with VideoRunner({"backend": "VisionAlarms"}, sinks=[hook]) as runner:
        list(runner.run({"cam": pictures(1)}))
    assert receiver.headers[0]["Authorization"] == "Basic bWU6cEBzcw=="
    for wrong in ("rtsp://h/SECRET", "http://other/SECRET"):
        with pytest.raises(InputError) as error:
            Webhook(wrong, network=["h"])
        assert "SECRET" not in str(error.value)


def test_the_options_stand_in_a_vision_toml(tmp_path):
    (tmp_path / "vision.toml").write_text(
        'model = { backend = "Identity" }\n[sinks.call]\nkind = "Webhook"\n'
        'url = "http://127.0.0.1:9/x"\nnetwork = ["127.0.0.1"]\n'
        'spool = "kept"\nspool_bytes = 1000\nclose_s = 0.5\n'
    )
    with headrace_vision.open(tmp_path / "vision.toml"):
        assert (tmp_path / "kept").is_dir()
    (tmp_path / "vision.toml").write_text(
        'model = { backend = "Identity" }\n[sinks.a]\nkind = "SaveJSONL"\npath = "x"\n'
        "spool_bytes = -1\nclose_s = -2.0\nspol = 1\n"
    )
    with pytest.raises(ConfigError) as error:
        headrace_vision.open(tmp_path / "vision.toml")
    for text in ("spool_bytes", "close_s", "Did you mean 'spool'"):
        assert text in str(error.value)
