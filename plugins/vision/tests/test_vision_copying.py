"""`codec = "copy"` of SaveVideo: what the source encoded, packet by packet."""

from __future__ import annotations

import gc
import hashlib
import io
import itertools
import struct
import sys
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from processes import run_process

import headrace
import headrace_vision
from headrace_vision import SaveVideo, VideoRunner

AV1 = Path(__file__).with_name("av1") / "door.mkv"
"""What `film` made with libsvtav1, of SVT-AV1 4.1: that encoder stops for ever once in some hundred videos."""


def film(
    path,
    count=60,
    rate=10,
    key=10,
    codec="libx264",
    aspect=(1, 1),
    size=(48, 64),
    first=0,
    **options,
):
    """A video with key frames each `key` pictures, and pictures that are stored in another order than they are shown."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = {"mjpeg": "yuvj420p", "rawvideo": "yuv420p"}.get(codec, "yuv420p")
        context = stream.codec_context
        context.gop_size = key
        context.sample_aspect_ratio = Fraction(*aspect)
        if codec in ("libx264", "mpeg4"):
            context.max_b_frames = 2
        for number in range(first, first + count):
            image = np.full((*size, 3), 20 + 3 * (number % 70), np.uint8)
            image[10:22, number % 40 : number % 40 + 12] = (0, 0, 255)
            picture = av.VideoFrame.from_ndarray(image, format="bgr24")
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return str(path)


def packets(path):
    """Digest, key frame, and decoding time in seconds of each packet."""
    with av.open(str(path)) as container:
        return [
            (hashlib.sha256(bytes(one)).hexdigest(), one.is_keyframe)
            for one in container.demux(video=0)
            if one.size
        ]


def pictures(path):
    """Time and digest of each picture."""
    with av.open(str(path)) as container:
        return [
            (round(float(one.time), 4), hashlib.sha256(one.to_ndarray().tobytes()).hexdigest())
            for one in container.decode(video=0)
        ]


class Alarm(headrace.Backend):
    """Tells an event at some times in seconds."""

    at: tuple[float, ...] = ()

    def forward(self, batch):
        """Write result and events."""
        for request in batch:
            request["result"] = None
            now = request["context"]["timestamp"]
            if any(abs(now - one) < 1e-6 for one in self.at):
                request["events"] = [{"type": "line", "name": "door"}]


headrace.register("VisionAlarm", Alarm)


def recorded(given, sink, backend="Identity", **options):
    with VideoRunner({"backend": backend}, sinks=[sink]) as runner:
        frames = list(runner.run(given, **options))
    return frames, runner.status()["sinks"]["SaveVideo"]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("door.mp4", "libx264"),
        ("door.ts", "libx264"),
        ("door.mkv", "mpeg4"),
        ("door.avi", "mjpeg"),
        ("door.mkv", "libx265"),
        ("door.mkv", "av1"),
        ("door.webm", "libvpx-vp9"),
        ("door.webm", "libvpx"),
        ("door.mkv", "ffv1"),
    ],
)
def test_a_copy_has_each_packet_and_each_picture_at_its_time(tmp_path, name, codec):
    given = str(AV1) if codec == "av1" else film(tmp_path / name, codec=codec)
    frames, status = recorded(given, SaveVideo(tmp_path / "out", codec="copy"), max_fps=1)
    assert len(frames) == 6  # the recorder has all the same
    assert (status["lost_packets"], status["copy_error"]) == (0, None)
    (path,) = (tmp_path / "out").glob("*.m*")
    assert path.name == ("door.mkv" if codec == "libvpx" else "door.mp4")
    if name.endswith((".mp4", ".avi")) and path.suffix == ".mp4":
        assert packets(path) == packets(given)
    expected, found = pictures(given), pictures(path)
    assert [digest for _, digest in found] == [digest for _, digest in expected]
    assert [time for time, _ in found] == pytest.approx(
        [time - expected[0][0] for time, _ in expected], abs=1e-3
    )


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_a_copy_begins_a_new_file_where_the_stream_changes(tmp_path, codec):
    """As a camera does that is set to another size, and does not end its connection for that."""
    sizes, parts = [(48, 64), (96, 128), (48, 64)], []
    for number, size in enumerate(sizes):
        part = tmp_path / f"{number}.ts"
        film(part, 20, codec=codec, size=size, first=20 * number)
        parts.append(pictures(part))
        with (tmp_path / "gate.ts").open("ab") as joined:
            joined.write(part.read_bytes())
    sink = SaveVideo(tmp_path / "out", codec="copy")
    frames, status = recorded(str(tmp_path / "gate.ts"), sink)
    assert len(frames) == 60
    assert (status["lost_packets"], status["copy_error"]) == (0, None)
    digests = [digest for part in parts for _, digest in part]
    found = []
    for path in (tmp_path / "out").glob("*.mp4*"):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            found.append((stream.height, stream.width, [digest for _, digest in pictures(path)]))
    found.sort(key=lambda one: digests.index(one[2][0]))
    assert [(height, width) for height, width, _ in found] == sizes
    assert [digest for *_, own in found for digest in own] == digests


def test_a_copy_is_turned_and_has_the_pixels_and_colours_of_its_source(tmp_path):
    path = tmp_path / "door.mp4"
    film(path, aspect=(2, 1), colorspace="bt709", color_range="pc")
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    turned = struct.pack(">9i", 0, 65536, 0, 65536, 0, 0, 0, 0, 1 << 30)  # and mirrored
    data[at : at + 36] = turned
    path.write_bytes(data)
    recorded(str(path), SaveVideo(tmp_path / "out", codec="copy"))
    with (
        av.open(str(path)) as source,
        av.open(str(tmp_path / "out" / "door.mp4")) as copied,
    ):
        looks = []
        for container in (source, copied):
            stream = container.streams.video[0]
            codec = stream.codec_context
            picture = next(container.decode(stream))
            matrix = bytes(picture.side_data.get("DISPLAYMATRIX"))
            looks.append((stream.sample_aspect_ratio, codec.colorspace, codec.color_range, matrix))
    assert looks[0] == looks[1]
    assert looks[0][:3] == (2, 1, 2)


def test_a_copy_around_events_begins_at_the_key_frame_before(tmp_path, monkeypatch):
    """Key frames at each second. Events at 2.5 and 3.2 s are one video, that at 5 s another one, of the same second."""
    given = film(tmp_path / "door.mp4", count=80)
    monkeypatch.setattr(Alarm, "at", (2.5, 3.2, 5.0))
    sink = SaveVideo(tmp_path / "out", codec="copy", before_s=0.8, after_s=0.5)
    _, status = recorded(given, sink, "VisionAlarm")
    assert status["lost_packets"] == 0
    whole = [digest for _, digest in pictures(given)]
    found = sorted(
        [whole.index(digest) for _, digest in pictures(path)]
        for path in (tmp_path / "out").glob("*.mp4*")
    )
    keys = [at for at, (_, is_key) in enumerate(packets(given)) if is_key]
    assert len(keys) > 7
    # Before 1.7 s and before 4.2 s.
    assert [one[0] for one in found] == [max(k for k in keys if k <= t) for t in (17, 42)]
    for one, last in zip(found, (37, 55), strict=True):
        wanted = list(range(one[0], last + 1))
        assert one[: len(wanted)] == wanted
        assert (
            len(one) <= len(wanted) + 3
        )  # as they are stored, some before others that are shown first


def test_a_copy_in_parts_has_each_packet_once_and_parts_begin_at_key_frames(tmp_path):
    given = film(tmp_path / "door.mp4", codec="mpeg4")
    recorded(given, SaveVideo(tmp_path / "out", codec="copy", every_s=1.5))
    parts = [packets(path) for path in (tmp_path / "out").glob("*.mp4*")]
    assert all(one[0][1] for one in parts)
    assert sum(len(one) < 15 for one in parts) <= 1  # the last one
    assert len(parts) > 2
    assert sorted(itertools.chain(*parts)) == sorted(packets(given))


def test_the_packets_before_an_event_are_bounded_in_bytes(tmp_path, monkeypatch):
    given = film(tmp_path / "door.mp4", count=80)
    size = sum(len(one) for one in map(bytes, av.open(given).demux(video=0)))
    monkeypatch.setattr(Alarm, "at", (7.0,))
    sink = SaveVideo(tmp_path / "out", codec="copy", before_s=60, after_s=0, spool_bytes=size // 3)
    recorded(given, sink, "VisionAlarm")
    (path,) = (tmp_path / "out").glob("*.mp4*")
    found = packets(path)
    assert found[0][1]
    assert 10 <= len(found) < 45


def test_drawing_options_and_what_has_no_packets_are_refused(tmp_path, caplog):
    for wrong in ({"draw": True}, {"options": {"crf": "20"}}):
        with pytest.raises(ValueError, match='codec = "copy" records what the camera encoded'):
            SaveVideo(tmp_path, codec="copy", **wrong)
    for name, codec, why in (
        ("raw.mkv", "rawvideo", "its pictures are not encoded"),
        ("old.avi", "wmv2", "'matroska' format does not support 'wmv2'"),
    ):
        given = film(tmp_path / name, codec=codec, count=3)
        frames, status = recorded(given, SaveVideo(tmp_path / "out", codec="copy", close_s=0))
        assert [frame.error for frame in frames] == [None] * 3  # the sink fails alone
        assert (status["written"], status["lost"]) == (0, 3)
        assert f"cannot record this source: {why}" in status["error"]
    picture = np.zeros((48, 64, 3), np.uint8)
    _, status = recorded([picture], SaveVideo(tmp_path / "out", codec="copy", close_s=0))
    assert (status["written"], status["lost"]) == (0, 1)
    assert "no packets to record" in status["error"]
    assert list((tmp_path / "out").glob("*.mp4*")) == []


def test_a_copy_is_said_in_a_file(tmp_path):
    given = film(tmp_path / "door.mp4")
    text = 'model = { backend = "Identity" }\n[sources.door]\ninput = "door.mp4"\n'
    text += '[sinks.videos]\nkind = "SaveVideo"\nfolder = "out"\ncodec = "copy"\n'
    (tmp_path / "vision.toml").write_text(text)
    with headrace_vision.open(tmp_path / "vision.toml") as vision:
        list(vision.run())
    assert packets(tmp_path / "out" / "door.mp4") == packets(given)


@pytest.mark.parametrize("rate", [1, 4, 25, 60])
def test_what_a_killed_program_leaves_of_a_copy_lacks_two_seconds_at_most(tmp_path, rate):
    """A copy of the file at each frame is what the end of the process would leave."""
    given = film(tmp_path / "door.mp4", rate=rate, count=max(6, 3 * rate), key=max(rate, 2))
    sink = SaveVideo(tmp_path / "out", codec="copy")
    wrote, write = threading.Semaphore(0), sink.write

    def written(frame):
        write(frame)
        wrote.release()

    sink.write = written
    with VideoRunner({"backend": "Identity"}, sinks=[sink]) as runner:
        for frame in runner.run(given):
            assert wrote.acquire(timeout=120)
            part = tmp_path / "out" / "door.mp4.part"
            if frame.timestamp >= 2 and part.exists():
                with av.open(io.BytesIO(part.read_bytes())) as container:
                    ends = [one.pts + one.duration for one in container.demux(video=0) if one.size]
                    unit = container.streams.video[0].time_base
                assert max(ends) * unit > frame.timestamp + 1 / rate - 2


def test_packets_of_a_file_without_times_are_as_far_apart_as_its_frames(tmp_path):
    given = str(tmp_path / "door.h264")
    source = film(tmp_path / "source.mp4", bf="0")
    with av.open(source) as read, av.open(given, "w", format="h264") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.size:
                packet.stream = stream
                written.mux(packet)
    frames, _ = recorded(given, SaveVideo(tmp_path / "out", codec="copy"))
    times = [time for time, _ in pictures(tmp_path / "out" / "door.mp4")]
    assert times == pytest.approx([f.timestamp - frames[0].timestamp for f in frames], abs=1e-3)


def test_pictures_and_files_that_are_done_wait_for_no_collector_of_cycles(tmp_path):
    given = film(tmp_path / "door.mp4")

    def there():
        kinds = (av.VideoFrame, av.container.Container, av.stream.Stream)
        return [one for one in gc.get_objects() if isinstance(one, kinds)]

    gc.collect()
    before = len(there())
    gc.disable()
    try:
        for number in range(3):
            recorded(given, SaveVideo(tmp_path / f"out{number}", codec="copy"))
        assert len(there()) == before
    finally:
        gc.enable()


NO_ROOM = """
import os, resource, sys
from headrace_vision import SaveVideo, VideoRunner

given, folder, codec = sys.argv[1:]

def fill(frame):
    if frame.frame == 30:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

before = set(os.listdir("/proc/self/fd"))
for number in range(3):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    sinks = [SaveVideo(f"{folder}/{number}", codec=codec, close_s=0), fill]
    with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
        print(sum(1 for _ in runner.run(given)))
    assert [one for one in os.listdir(f"{folder}/{number}") if "mp4" in one]
print(len(os.listdir("/proc/self/fd")) - len(before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
@pytest.mark.parametrize("codec", ["copy", "libx264"])
def test_a_file_that_cannot_be_begun_is_closed(tmp_path, codec):
    given = film(tmp_path / "door.mp4")
    command = [sys.executable, "-B", "-c", NO_ROOM, given, str(tmp_path / "out"), codec]
    done = run_process(command, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["60"] * 3 + ["0"]
