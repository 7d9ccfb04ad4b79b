"""Recordings: in parts, around events, of a week, and beside those of an earlier run."""

from __future__ import annotations

import calendar
import json
import os
import re

import av
import numpy as np
import pytest
import supervision as sv

import headrace_vision
from headrace_vision import Frame, SaveImages, SaveJSONL, SaveVideo, SaveYOLO, VideoRunner


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


def test_videos_of_a_source_that_are_too_old_are_deleted_and_nothing_else(kit, tmp_path):
    names = ["door-20200101-000000.mp4", "door-20200101-000000-2.mp4", "door.mp4"]
    names += ["door-2-20200101-000000.mp4", "door-20200101-000000.txt", "door-20990101-000000.mp4"]
    for name in names:
        (tmp_path / name).write_bytes(b"old")
        if "2099" not in name:
            os.utime(tmp_path / name, (1_500_000_000, 1_500_000_000))
    record(SaveVideo(tmp_path, every_s=60, keep_s=3600), frames(kit, [0, 1]))
    left = {path.name for path in tmp_path.iterdir()}
    assert left & set(names) == set(names[2:])
    assert len(left) == len(names[2:]) + 1


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
    for path in (tmp_path / "out").iterdir():
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
        (SaveYOLO, r"labels/(.*)_000000\.txt"),
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
    assert found == written(tmp_path / "two")  # another run has the same names
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
    with pytest.raises(ValueError, match="keep_s needs every_s"):
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
