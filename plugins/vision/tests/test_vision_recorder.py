"""Recordings: in parts, around events, of a week, and beside those of an earlier run."""

from __future__ import annotations

import calendar
import io
import json
import os
import re
import socket
import struct
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import supervision as sv

import headrace_vision
from headrace_vision import (
    Frame,
    SaveImages,
    SaveJSONL,
    SaveVideo,
    VideoRunner,
)


def frames(kit, times, events=(), source="door"):
    """Frames at times in seconds, some of which have an event."""
    for number, time_s in enumerate(times):
        request = {"events": [{"type": "line"}]} if time_s in events else {}
        yield Frame(source, number, time_s, image=kit.picture(number), request=request)


def record(sink, written):
    sink.open()
    for frame in written:
        sink.write(frame)
    sink.close()


def videos(folder):
    """Return the times and the brightness of the pictures of each video, by name."""
    found = {}
    for path in sorted(folder.glob("*.mp4")):
        with av.open(str(path)) as container:
            found[path.name] = [
                (round(f.time, 3), round(f.to_ndarray(format="bgr24")[40:].mean()))
                for f in container.decode(video=0)
            ]
    return found


def test_a_recording_in_parts_has_every_frame_once(kit, tmp_path):
    times = [n / 4 for n in range(18)]
    record(SaveVideo(tmp_path, every_s=2), frames(kit, times))
    found = videos(tmp_path)
    assert all(re.fullmatch(r"door-\d{8}-\d{6}(-\d)?\.mp4", name) for name in found)
    assert sorted(len(one) for one in found.values()) == [2, 8, 8]
    shades = sorted(shade for one in found.values() for _, shade in one)
    assert shades == pytest.approx([20 + 8 * n for n in range(18)], abs=4)
    assert all(
        [time for time, _ in one] == [n / 4 for n in range(len(one))] for one in found.values()
    )


def test_only_what_is_around_events_is_recorded(kit, tmp_path):
    """Events at 2, 2.5 and 6 s: from 1.5 to 3.5 s, and from 5.5 to 7 s."""
    times = [n / 4 for n in range(36)]
    sink = SaveVideo(tmp_path, before_s=0.5, after_s=1)
    record(sink, frames(kit, times, events=(2, 2.5, 6)))
    found = list(videos(tmp_path).values())
    first = [20 + 8 * (n % 20) for n in range(6, 15)]
    second = [20 + 8 * (n % 20) for n in range(22, 29)]
    assert sorted(map(len, found)) == [7, 9]
    for one in found:
        expected = first if len(one) == 9 else second
        assert [shade for _, shade in one] == pytest.approx(expected, abs=4)
        assert [time for time, _ in one] == [n / 4 for n in range(len(one))]


def test_what_could_not_be_written_before_an_event_is_there_once(kit, tmp_path, monkeypatch):
    """The disk is full for the third picture of an event, as a sink's thread would meet it."""
    sink = SaveVideo(tmp_path, before_s=1, after_s=0)
    sink.open()
    given = list(frames(kit, [0, 0.25, 0.5, 0.75], events=(0.75,)))
    for frame in given[:3]:
        sink.write(frame)
    plain, calls = SaveVideo._record, []

    def full(self, source, image, timestamp, time):
        calls.append(timestamp)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        plain(self, source, image, timestamp, time)

    monkeypatch.setattr(SaveVideo, "_record", full)
    with pytest.raises(OSError, match="No space"):
        sink.write(given[3])
    sink.write(given[3])
    sink.close()
    (found,) = videos(tmp_path).values()
    assert [time for time, _ in found] == [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("away", [False, True])
def test_a_recording_is_called_by_when_its_first_picture_was_captured(kit, tmp_path, away):
    """The event is at 3 s, so it begins at 1 s; the disk is away until long after."""
    begin = calendar.timegm((2030, 3, 31, 23, 59, 58))
    given = list(frames(kit, [0, 1, 2, 3, 4, 5], events=(3,)))
    for number, frame in enumerate(given):
        frame.time = begin + number + 0.25
    folder = tmp_path / "out"
    sink = SaveVideo(folder, before_s=2, after_s=1)
    folder.mkdir()
    if away:
        folder.rmdir()
        with pytest.raises(OSError, match="No such file"):
            [sink.write(one) for one in given[:4]]
        folder.mkdir()
        given = given[3:]
    record(sink, given)
    (name,) = videos(folder)
    assert name == "door-20300331-235959.mp4"


@pytest.mark.parametrize(
    ("events", "spans"),
    [
        ((2, 5), [(0, 7)]),  # 0 to 4, and 3 to 7
        ((2, 6), [(0, 8)]),  # they touch
        ((2, 6.25), [(0, 4), (4.25, 8.25)]),
        ((2, 3, 11), [(0, 5), (9, 13)]),
    ],
)
def test_recordings_that_overlap_are_one_without_a_gap(kit, tmp_path, events, spans):
    times = [n / 4 for n in range(60)]
    given = list(frames(kit, times, events=events))
    for frame in given:
        frame.time = 1_900_000_000 + frame.timestamp
    record(SaveVideo(tmp_path, before_s=2, after_s=2), given)
    lengths = [[time for time, _ in one] for one in videos(tmp_path).values()]
    assert lengths == [[n / 4 for n in range(round(4 * (end - begin)) + 1)] for begin, end in spans]


def test_a_second_run_replaces_nothing(kit, tmp_path):
    for run in range(2):
        sinks = [SaveVideo(tmp_path), SaveImages(tmp_path / "images"), SaveJSONL(tmp_path / "all")]
        with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
            list(runner.run({"door": [kit.picture(n) for n in range(3 + run)]}))
        if not run:
            before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
            with (tmp_path / "all").open("ab") as file:
                file.write(b'{"source": "do')  # the power was cut
    assert {name: len(one) for name, one in videos(tmp_path).items()} == {
        "door.mp4": 3,
        "door-2.mp4": 4,
    }
    assert sorted(p.name for p in (tmp_path / "images").iterdir()) == ["door", "door-2"]
    for path, data in before.items():
        assert path.read_bytes()[: len(data)] == data
    lines = (tmp_path / "all").read_text().splitlines()
    assert [json.loads(one)["frame"] for one in [*lines[:3], *lines[4:]]] == [0, 1, 2, 0, 1, 2, 3]


def test_the_title_of_a_video_says_whose_it_is(kit, tmp_path):
    folders = [tmp_path / "cam1", tmp_path / "cam2"]
    for folder in folders:
        folder.mkdir()
    paths = [kit.render(folder / "video.mp4", count=3) for folder in folders]
    with VideoRunner({"backend": "Identity"}, sinks=[SaveVideo(tmp_path / "out")]) as runner:
        list(runner.run(paths))
    titles = set()
    for path in (tmp_path / "out").glob("*.mp4*"):
        with av.open(str(path)) as container:
            titles.add(container.metadata["title"])
    assert titles == set(paths)


SECRET = "eyJhbGciOiJIUzI1NiJ9." + 40 * "YWJj" + "." + 10 * "c2ln"
ADDRESSES = {
    f"https://cam.example/clip.ts?token={SECRET}": "clip",
    f"https://cam.example/other.ts?user=eyJ.eyJ&token={SECRET}": "other",
    f"https://cam.example/list.m3u8;token={SECRET}#{SECRET}": "list",
    f"rtsp://me:{SECRET}@cam.example:554/live/7": "7",
    f"rtsp://cam.example/live/{SECRET}": "cam.example-[0-9a-f]{8}",
    f"rtsp://cam.example/live/{SECRET}2/": "cam.example-[0-9a-f]{8}",
    f"rtmp://cam.example/{30 * 'eyJ'}.ts": "cam.example-[0-9a-f]{8}",
    f"rtsp://cam2.example?{SECRET}": "cam2.example",
    "rtsp://cam3.example:554/": "cam3.example_554",
    "x://[": "_",
    "/videos/" + 200 * "k" + ".mp4": "k{71}-[0-9a-f]{8}",
    "/others/" + 200 * "k" + ".mp4": "k{71}-[0-9a-f]{8}",
    "/videos/" + 70 * "日本" + ".mp4": "(日本){11}日-[0-9a-f]{8}",
    "/videos/a b?token=c.mp4": "a_b_token_c",
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SaveImages, r"(.*)/000000\.jpg"),
        (SaveVideo, r"(.*)\.mp4"),
    ],
)
def test_a_name_is_bounded_and_distinct_and_has_no_key_of_an_address(kit, tmp_path, kind, name):
    def written(folder):
        sink = kind(folder)
        sink.open()
        for source in ADDRESSES:
            result = sv.Detections.empty()
            sink.write(Frame(source, 0, 0.0, image=kit.picture(0), result=result))
        sink.close()
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    found = written(tmp_path / "one")
    assert found.keys() == written(tmp_path / "two").keys()  # another run has the same names
    for path, data in found.items():
        assert (
            max(map(len, map(os.fsencode, path.split("/")))) <= 120
        )  # time and number fit as well
        assert "eyJ" not in path
        assert b"eyJ" not in data
    names = {match[1] for path in found if (match := re.fullmatch(name, path))}
    assert len(names) == len(ADDRESSES)
    for expected in ADDRESSES.values():
        assert any(re.fullmatch(expected, name) for name in names)


def test_keys_of_a_recorder_are_in_the_file_and_checked(kit, tmp_path):
    kit.render(tmp_path / "door.mp4", count=20, rate=10)
    text = 'model = { backend = "Identity" }\n[sources.door]\ninput = "door.mp4"\n'
    text += '[sinks.videos]\nkind = "SaveVideo"\nfolder = "out"\nevery_s = 0.5\nkeep_s = 60\n'
    (tmp_path / "vision.toml").write_text(text)
    with headrace_vision.open(tmp_path / "vision.toml") as vision:
        assert len(list(vision.run())) == 20
    assert sorted(map(len, videos(tmp_path / "out").values())) == [5, 5, 5, 5]
    with pytest.raises(ValueError, match="they need every_s"):
        SaveVideo(tmp_path, keep_s=1)
    with pytest.raises(ValueError, match="before_s is at least 0"):
        SaveVideo(tmp_path, before_s=-1)


def test_a_source_that_begins_again_has_nothing_of_before_in_its_recording(kit, tmp_path):
    sink = SaveVideo(tmp_path, before_s=9, after_s=0)
    again = [*frames(kit, [5, 6, 7]), *frames(kit, [0, 1], events=(1,))]
    record(sink, again)
    (found,) = videos(tmp_path).values()
    assert [time for time, _ in found] == [0, 1]
    assert np.ptp([shade for _, shade in found]) > 4


PROMPT = [("libx264", {}), ("libx264", {"tune": "film", "preset": "slow"}), ("mpeg4", {})]
PROMPT += [("libx265", {}), ("libvpx-vp9", {})]
RATES = [(rate, *encoder) for rate in (1, 4, 25, 60) for encoder in PROMPT]
# SVT-AV1 4.1 stops for ever once in some hundred videos, the longer the likelier.
RATES.append((1, "libsvtav1", {}))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_an_encoder_takes_no_real_time_for_any_thread(kit, tmp_path):
    """SVT-AV1 does where root runs it, and all that is started later inherits that."""
    if "libsvtav1" not in av.codecs_available:
        pytest.skip("this FFmpeg has no libsvtav1")
    sink = SaveVideo(tmp_path, codec="libsvtav1")
    sink.open()
    before = os.sched_getscheduler(0)
    for frame in frames(kit, [0, 0.1, 0.2]):
        sink.write(frame)
    assert {os.sched_getscheduler(int(one.name)) for one in Path("/proc/self/task").iterdir()} == {
        before
    }
    sink.close()


@pytest.mark.parametrize(("rate", "codec", "options"), RATES)
def test_what_a_killed_program_leaves_lacks_two_seconds_at_most(
    kit, tmp_path, codec, options, rate
):
    """A copy of the file after each frame is what the end of the process would leave."""
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg has no {codec}")
    sink = SaveVideo(tmp_path, codec=codec, options=options)
    sink.open()
    count = max(6, 3 * rate + 1)
    for number, frame in enumerate(frames(kit, [n / rate for n in range(count)])):
        sink.write(frame)
        now_s = (number + 1) / rate  # the next frame is about to come
        if now_s > 2 and (number % 7 == 0 or rate < 5):
            left = io.BytesIO((tmp_path / "door.mp4.part").read_bytes())
            with av.open(left) as container:
                next(container.decode(video=0))
                container.seek(0)
                times = [
                    float(one.pts * one.time_base) for one in container.demux(video=0) if one.size
                ]
            assert times == pytest.approx([n / rate for n in range(len(times))], abs=1e-3)
            assert now_s - (times[-1] + 1 / rate) < 2 - 0.5
    sink.close()
    with av.open(str(tmp_path / "door.mp4")) as container:
        (stream,) = container.streams
        assert stream.frames == count
        assert stream.duration * stream.time_base == pytest.approx(count / rate, abs=1e-3)


@pytest.mark.parametrize(
    "name", ["2026-11-27T10:30:00", "http://127.0.0.1:{}/x", "concat:a|b", "%d", "a\nb"]
)
def test_a_folder_of_any_name_is_a_folder(kit, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        folder = name.format(server.getsockname()[1])
        record(SaveVideo(folder), frames(kit, [0, 0.5, 1]))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has called
            server.accept()
    (path,) = tmp_path.rglob("*.mp4*")
    assert path.relative_to(tmp_path) == Path(folder) / "door.mp4"
    with path.open("rb") as file, av.open(file) as container:
        assert [one.time for one in container.decode(video=0)] == [0, 0.5, 1]


PATCHES = np.array([(0, 0, 255), (0, 255, 0), (255, 0, 0), (255, 255, 255), (90, 30, 180)])


def film_of_patches(path, aspect, matrix, range_, primaries=2, codec="libx264"):
    """A video of patches of colour, converted by FFmpeg with this matrix and range, and marked with them."""
    image = np.repeat(np.repeat(PATCHES.astype(np.uint8)[None], 96, 0), 32, 1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=5)
        stream.height, stream.width = image.shape[:2]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        context = stream.codec_context
        context.sample_aspect_ratio = Fraction(*aspect)
        context.colorspace, context.color_range, context.color_primaries = matrix, range_, primaries
        for number in range(4):
            picture = av.VideoFrame.from_ndarray(image, format="bgr24").reformat(
                format=stream.pix_fmt, dst_colorspace=matrix, dst_color_range=range_ or 1
            )
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return str(path)


def look_of(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pixels = next(container.decode(stream)).to_ndarray(format="bgr24")
        codec = stream.codec_context
        found = (codec.colorspace, codec.color_range, codec.color_primaries)
        return stream.sample_aspect_ratio, found, pixels[pixels.shape[0] // 2, 16::32].astype(int)


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
@pytest.mark.parametrize("range_", [1, 2])
@pytest.mark.parametrize(("matrix", "primaries"), [(1, 1), (5, 5), (6, 6), (9, 9)])
def test_pixels_and_colours_keep_their_shape_matrix_and_range(
    tmp_path, matrix, primaries, range_, codec
):
    given = film_of_patches(tmp_path / "door.mp4", (2, 1), matrix, range_, primaries)
    sink = SaveVideo(tmp_path / "out", codec=codec)
    with VideoRunner({"backend": "Identity"}, sinks=[sink]) as runner:
        list(runner.run(given))
    aspect, found, seen = look_of(tmp_path / "out" / "door.mp4")
    assert (aspect, found) == (2, (matrix, range_, primaries))
    assert np.abs(seen - PATCHES).max() < 14


def test_colours_of_which_nothing_is_said_are_marked_as_what_they_are_taken_for(kit, tmp_path):
    """FFmpeg takes them for BT.601. Players take those of 720 lines for BT.709 unless the file says it."""
    inputs = {"film": film_of_patches(tmp_path / "f.mp4", (1, 1), 2, 0)}
    inputs["jpeg"] = film_of_patches(tmp_path / "j.avi", (1, 1), 2, 2, codec="mjpeg")
    inputs["memory"] = [np.repeat(np.repeat(PATCHES.astype(np.uint8)[None], 96, 0), 32, 1)] * 4
    with VideoRunner({"backend": "Identity"}, sinks=[SaveVideo(tmp_path / "out")]) as runner:
        list(runner.run(inputs))
    for name in inputs:
        aspect, (matrix, range_, _), seen = look_of(tmp_path / "out" / f"{name}.mp4")
        assert aspect == 1
        assert matrix in (5, 6)
        assert range_ == (2 if name == "jpeg" else 1)
        assert np.abs(seen - PATCHES).max() < 14


def test_a_picture_that_is_turned_has_its_pixels_turned_too(tmp_path):
    path = Path(film_of_patches(tmp_path / "door.mp4", (2, 1), 1, 1))
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    data[at : at + 36] = struct.pack(">9i", 0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    with VideoRunner({"backend": "Identity"}, sinks=[SaveVideo(tmp_path / "out")]) as runner:
        (image, *_) = [f.image for f in runner.run(str(path))]
    assert image.shape == (160, 96, 3)
    assert look_of(tmp_path / "out" / "door.mp4")[0] == Fraction(1, 2)


def test_a_source_whose_pixels_change_their_shape_goes_on_in_another_file(kit, tmp_path):
    written = list(frames(kit, [0, 1, 2, 3]))
    written[2].aspect = written[3].aspect = (2, 1)
    record(SaveVideo(tmp_path), written)
    found = {path.name: look_of(path)[0] for path in tmp_path.glob("*.mp4*")}
    assert found == {"door.mp4": 1, "door-part2.mp4": 2}
