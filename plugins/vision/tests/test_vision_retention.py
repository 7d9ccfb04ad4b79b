"""Which files of a sink stay, and for how long: by age, bytes, room on the disk, and by whose they are."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import av
import pytest
from live_camera import Camera

from headrace_vision import Frame, SaveImages, SaveJSONL, SaveVideo, VideoRunner

DAY_S = 86_400.0


class Calendar:
    """The time of day, as a test turns it."""

    def __init__(self, monkeypatch):
        self.now_s = time.time()
        monkeypatch.setattr(time, "time", lambda: self.now_s)


@pytest.fixture
def calendar(monkeypatch):
    return Calendar(monkeypatch)


def recorder(folder, name="clips", names=("clips",), **options):
    """A sink as a runner opens it."""
    sink = SaveVideo(folder, **{"every_s": 60, **options})
    sink.known_as, sink.runner_names = name, names
    sink.open()
    return sink


def record(kit, sink, source="door", count=2, begin_s=0.0, events=False):
    for number in range(count):
        request = {"events": [{"type": "line"}]} if events else {}
        image = kit.picture(number)
        frame = Frame(source, number, begin_s + number, image=image, request=request)
        frame.time = time.time()
        sink.write(frame)


def finished(kit, folder, **options):
    """The path of a video that a run of another day has left."""
    before = set(folder.glob("*.mp4"))
    source = options.pop("source", "door")
    events = options.pop("events", False)
    sink = recorder(folder, **options)
    record(kit, sink, source, events=events)
    sink.close()
    (path,) = set(folder.glob("*.mp4")) - before
    return path


def killed(kit, folder, source="door", **options):
    """What a run leaves that is killed in the middle of a video."""
    sink = recorder(folder, **options)
    record(kit, sink, source, count=5)
    (part,) = folder.glob("*.mp4.part")
    copy = part.with_name(f"killed-{part.name}")
    shutil.copyfile(part, copy)
    sink.close()
    for path in folder.glob(f"{source}*.mp4"):
        path.unlink()
    return copy


@pytest.mark.parametrize("codec", ["libx264", "copy"])
@pytest.mark.parametrize(
    ("bounds", "age_s"),
    [({"keep_s": 20}, 21), ({"keep_bytes": 400_000}, 40), ({"keep_free_bytes": 500_000}, 40)],
)
def test_a_disk_that_is_full_is_freed_and_recording_goes_on(
    disk, tmp_path, calendar, codec, bounds, age_s
):
    """Ten pictures a second of noise, which fill the disk of 1 MB again and again."""
    options = {} if codec == "copy" else {"options": {"preset": "ultrafast", "crf": "10"}}
    sink = SaveVideo(disk / "out", codec=codec, every_s=1, **bounds, **options)
    camera = Camera(sink, tmp_path / "cam.mp4", count=400, size=(64, 96))
    is_full = False
    for second in range(40):
        calendar.now_s += 0.5
        is_full |= camera.send(10) is not None
        calendar.now_s += 0.5
        camera.be_silent(1)
        videos = list((disk / "out").glob("*.mp4"))
        ages_s = [calendar.now_s - path.stat().st_mtime for path in videos]
        assert max(ages_s, default=0) <= age_s
        assert 3 < second < 35 or min(ages_s, default=0) <= 10
        sizes = sum(path.stat().st_size for path in videos)
        assert sizes <= bounds.get("keep_bytes", sizes)
        assert shutil.disk_usage(disk).free >= bounds.get("keep_free_bytes", 0)
    assert is_full == ("keep_s" in bounds)
    calendar.now_s += 60
    with suppress(OSError):
        sink.tick()
    sink.close()


def turn_back(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def pictures_in(path):
    with av.open(str(path)) as container:
        return sum(1 for one in container.demux(video=0) if one.size)


def test_only_files_of_the_sink_and_of_its_folder_are_deleted(kit, tmp_path):
    """As another sink, another program, or somebody who copied a file there has them, and the same names."""
    out = tmp_path / "out"
    ours = [finished(kit, out, source=name) for name in ("door", "gone", "renamed")]
    theirs = finished(kit, out, name="whole", names=("whole", "clips"))
    foreign = finished(kit, tmp_path / "elsewhere")
    copied = out / "copied-20200101-000000.mp4"
    shutil.copyfile(foreign, copied)
    unmarked = out / "door-20200101-000000.mp4"
    unmarked.write_bytes(b"somebody's")
    for path in out.iterdir():
        turn_back(path, 3 * DAY_S)
    sink = recorder(out, names=("whole", "clips"), keep_s=DAY_S)
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in (theirs, copied, unmarked))
    sink.close()


def test_files_of_a_sink_that_is_gone_are_told_once_and_deleted_only_if_adopted(
    kit, tmp_path, calendar, caplog
):
    old = finished(kit, tmp_path, name="old", names=("old",))
    turn_back(old, 3 * DAY_S)
    sink = recorder(tmp_path, keep_s=DAY_S)
    for _ in range(3):
        calendar.now_s += 3600
        sink.tick()
    sink.close()
    (said,) = [one.getMessage() for one in caplog.records]
    assert "1 files of a sink 'old'" in said
    assert old.exists()
    recorder(tmp_path, keep_s=DAY_S, adopt=True).close()
    assert not old.exists()


def test_what_a_killed_run_has_left_is_finished_and_goes_by_its_own_age(kit, tmp_path, calendar):
    part = killed(kit, tmp_path)
    whole = part.with_suffix("")
    pictures = pictures_in(part)
    recorder(tmp_path, keep_s=DAY_S).close()
    assert part.exists()  # it may be another run's that lives
    turn_back(part, DAY_S / 2)
    with part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        recorder(tmp_path, keep_s=DAY_S).close()
        assert part.exists()
    sink = recorder(tmp_path, keep_s=DAY_S)
    assert pictures_in(whole) == pictures
    assert not part.exists()
    calendar.now_s += DAY_S / 2 + 1
    sink.tick()
    assert not whole.exists()
    sink.close()


def test_what_a_killed_run_has_left_and_cannot_be_played_goes_by_age(kit, tmp_path):
    part = killed(kit, tmp_path)
    data = part.read_bytes()
    part.write_bytes(data[: data.index(b"moof")])  # no picture
    empty = part.with_name("empty.mp4.part")
    empty.touch()
    download = part.with_name("film.mp4.part")
    download.write_bytes(b"of a browser")
    for age_s in (DAY_S / 2, 2 * DAY_S):
        for path in (part, empty, download):
            turn_back(path, age_s)
        recorder(tmp_path, keep_s=DAY_S).close()
        assert part.exists() == empty.exists() == (age_s < DAY_S)
    assert download.exists()


def test_videos_with_events_stay_longer(kit, tmp_path, calendar):
    plain = finished(kit, tmp_path, source="plain")
    event = finished(kit, tmp_path, source="event", events=True)
    clip = finished(kit, tmp_path, source="clip", before_s=1, events=True)
    for days, there in ((0, (1, 1, 1)), (2, (0, 1, 1)), (8, (0, 0, 0))):
        for path in filter(lambda path: path.exists(), (plain, event, clip)):
            turn_back(path, days * DAY_S)
        recorder(tmp_path, keep_s=DAY_S, keep_events_s=7 * DAY_S).close()
        assert (plain.exists(), event.exists(), clip.exists()) == there


@pytest.mark.parametrize("codec", ["copy", "libx264"])
@pytest.mark.parametrize(("event", "part"), [(9, 0), (10, 1), (19, 1)])
@pytest.mark.parametrize("end", ["goes on", "is silent", "ends"])
def test_an_event_marks_the_part_that_has_its_picture(tmp_path, codec, event, part, end):
    """Parts of ten pictures. Frames come four pictures late, when the next part has begun."""
    out = tmp_path / "out"
    sink = SaveVideo(out, codec=codec, every_s=1)
    camera = Camera(sink, tmp_path / "cam.mp4", behind=4)
    camera.send(28 if end == "goes on" else 24, event=event)
    if end == "is silent":
        camera.be_silent(11)
        assert codec != "copy" or len(list(out.glob("*.mp4"))) == 2
    sink.close()
    for path in out.glob("*.mp4"):
        turn_back(path, 2 * DAY_S)
    sink = SaveVideo(out, every_s=1, keep_s=DAY_S, keep_events_s=7 * DAY_S)
    sink.open()
    (stays,) = out.glob("*.mp4")
    with av.open(str(stays)) as container:
        first = next(container.decode(video=0)).to_ndarray(format="bgr24").astype(int)
    errors = [abs(first - one).mean() for one in camera.pictures[:30:10]]
    assert errors.index(min(errors)) == part


def test_bounds_need_parts_and_are_no_less_than_zero(tmp_path):
    for wrong in ({"keep_s": 1}, {"keep_bytes": 1}, {"keep_free_bytes": 1}, {"keep_events_s": 1}):
        with pytest.raises(ValueError, match="they need every_s"):
            SaveVideo(tmp_path, **wrong)
        ((name, _),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name} is at least 0"):
            SaveVideo(tmp_path, every_s=60, **{name: -1})


def test_a_month_of_cameras_that_come_and_go_stays_in_its_bounds(kit, tmp_path, calendar):
    """Each half day a video of each camera that is there, five days kept, and a bound of bytes."""
    bounds = {"keep_s": 5 * DAY_S, "keep_bytes": 40_000, "keep_events_s": 9 * DAY_S}
    sink = recorder(tmp_path, **bounds)
    written = {}
    for half in range(60):
        calendar.now_s += DAY_S / 2
        if half % 15 == 8:  # the program begins again
            sink.close()
            sink = recorder(tmp_path, **bounds)
        cameras = [f"cam{n}" for n in range(4) if (half // (3 + n)) % 2 == 0]
        for camera in cameras:
            events = half % 4 == 0
            record(kit, sink, camera, begin_s=half * DAY_S / 2, events=events)
            sink.source_ended(camera)
            (new,) = set(tmp_path.glob("*.mp4")) - written.keys()
            written[new] = (calendar.now_s, events, new.stat().st_size)
        sink.tick()
        there = [path for path in written if path.exists()]
        assert sum(written[path][2] for path in there) <= 40_000
        stays = {
            path: at_s + (9 if events else 5) * DAY_S - calendar.now_s
            for path, (at_s, events, _) in written.items()
        }
        assert all(stays[path] > 0 for path in there)
        gone = [path for path in written if not path.exists() and stays[path] > 0]
        if gone:  # for bytes alone: what was next to go, and no more than was needed
            assert max(map(stays.get, gone)) <= min(map(stays.get, there))
            total = sum(written[path][2] for path in there)
            assert total + max(size for *_, size in written.values()) > 20_000
    sink.close()
    assert len(written) > 100


def test_a_vision_toml_says_bounds(kit, tmp_path):
    import headrace_vision

    kit.render(tmp_path / "door.mp4", count=20, rate=10)
    text = 'model = { backend = "Identity" }\n[sources.door]\ninput = "door.mp4"\n'
    text += '[sinks.videos]\nkind = "SaveVideo"\nfolder = "out"\nevery_s = 0.5\nkeep_bytes = 1\n'
    text += "keep_free_bytes = 1\nkeep_events_s = 60\nadopt = true\n"
    (tmp_path / "vision.toml").write_text(text)
    with headrace_vision.open(tmp_path / "vision.toml") as vision:
        list(vision.run())
    assert len(list((tmp_path / "out").glob("*.mp4"))) <= 1


def test_runners_tell_sinks_their_names(kit, tmp_path):
    """Two sinks of one kind in one folder: each has its own."""
    for keep_s in (None, 1):
        sinks = {
            "short": SaveVideo(tmp_path, every_s=9, keep_s=keep_s),
            "long": SaveVideo(tmp_path, every_s=9, draw=False),
        }
        with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
            list(runner.run({"door": [kit.picture(0)]}))
        if keep_s is None:
            for path in tmp_path.glob("*.mp4"):
                turn_back(path, 60)
    ages_s = [time.time() - path.stat().st_mtime for path in tmp_path.glob("*.mp4")]
    assert sum(age_s > 50 for age_s in ages_s) == 1


def test_a_video_that_another_sink_finishes_meanwhile_stays(kit, tmp_path, monkeypatch):
    """It is finished when its name has been looked for, and before the name is taken."""
    touch, theirs = Path.touch, tmp_path / "door.mp4"

    def late(path, *args, **settings):
        if path.name == "door.mp4.part":
            theirs.write_bytes(b"somebody's")
        touch(path, *args, **settings)

    monkeypatch.setattr(Path, "touch", late)
    sinks = [SaveVideo(tmp_path)]
    with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
        list(runner.run({"door": [kit.picture(0)]}))
    assert theirs.read_bytes() == b"somebody's"
    assert sorted(path.name for path in tmp_path.glob("door*")) == ["door-2.mp4", "door.mp4"]


def opened(sink, name="pictures"):
    sink.known_as, sink.runner_names = name, (name,)
    sink.open()
    return sink


def test_images_stay_in_their_bounds_of_any_source_and_run(kit, tmp_path, calendar):
    other = tmp_path / "other"
    other.mkdir()
    (other / "000000.jpg").write_bytes(b"somebody's")
    turn_back(other / "000000.jpg", 9 * DAY_S)
    for day in range(6):
        sink = opened(SaveImages(tmp_path, keep_s=3 * DAY_S, keep_bytes=20_000))
        for number in range(4):
            calendar.now_s += DAY_S / 4
            sink.write(Frame(f"cam{day % 2}", number, number, image=kit.picture(number)))
            sink.tick()
            there = [path for path in tmp_path.rglob("*.jpg") if path.parent != other]
            assert sum(path.stat().st_size for path in there) <= 20_000
            assert min(path.stat().st_mtime for path in there) > calendar.now_s - 3 * DAY_S
            assert len(there) == min(4 * day + number + 1, 12)
        (notes := tmp_path / "cam0" / "notes.txt").touch()
        turn_back(notes, 9 * DAY_S)
    opened(SaveImages(tmp_path, keep_bytes=5000)).close()
    there = [path for path in tmp_path.rglob("*.jpg") if path.parent != other]
    assert sum(path.stat().st_size for path in there) <= 5000
    assert (other / "000000.jpg").exists()
    assert notes.exists()


def with_event(number, *, is_event, image=None):
    request = {"events": [{"type": "line"}]} if is_event else {}
    return Frame("cam", number, number, image=image, request=request)


@pytest.mark.parametrize("is_again", [False, True])
def test_images_of_frames_with_events_stay_longer(kit, tmp_path, calendar, is_again):
    options = {"keep_s": DAY_S, "keep_events_s": 7 * DAY_S}
    sink, begun_s = opened(SaveImages(tmp_path, **options)), calendar.now_s
    for number in range(4):
        image = kit.picture(number)
        sink.write(with_event(number, is_event=number in (1, 2), image=image))
    for days, numbers in ((0.5, [0, 1, 2, 3]), (2, [1, 2]), (8, [])):
        calendar.now_s = begun_s + days * DAY_S
        if is_again:
            sink = opened(SaveImages(tmp_path, **options))
        sink.tick()
        assert sorted(int(one.name[:6]) for one in tmp_path.rglob("*.jpg")) == numbers


@pytest.mark.parametrize("is_killed", [False, True])
def test_files_of_lines_with_events_stay_longer(tmp_path, calendar, is_killed):
    """An event in the hours 1 and 3 of five. The program is killed behind it, within the hour."""
    calendar.now_s = 1_900_000_800.0 // 3600 * 3600
    options = {"every_s": 3600, "keep_s": DAY_S, "keep_events_s": 7 * DAY_S}
    sink = opened(SaveJSONL(tmp_path / "all.jsonl", **options), "lines")
    for number in range(20):
        calendar.now_s += 900
        sink.write(with_event(number, is_event=number in (5, 13)))
        if is_killed and number in (5, 13):
            sink.close()
            os.utime(tmp_path / "all.jsonl", (calendar.now_s,) * 2)
            sink = opened(SaveJSONL(tmp_path / "all.jsonl", **options), "lines")
    for days, events in ((0.5, [5, 13]), (2, [5, 13]), (8, [])):
        calendar.now_s = 1_900_000_800.0 + days * DAY_S
        if days == 2:
            sink.close()
            sink = opened(SaveJSONL(tmp_path / "all.jsonl", **options), "lines")
        sink.tick()
        files = [lines_of(one) for one in tmp_path.glob("all-*.jsonl")]
        assert len(files) == {0.5: 6, 2: 2, 8: 0}[days]
        assert sorted(one for lines in files for one in lines if one in (5, 13)) == events
    sink.close()


def lines_of(path):
    return [json.loads(line)["frame"] for line in path.read_text().splitlines()]


def test_lines_are_in_files_of_an_hour_which_go_by_age(tmp_path, calendar):
    calendar.now_s = 1_900_000_800.0 // 3600 * 3600 + 60
    path, options = tmp_path / "all.jsonl", {"every_s": 3600, "keep_s": 5 * 3600}
    theirs = tmp_path / "all-20200101-000000.txt"
    theirs.touch()
    opened(SaveJSONL(renamed := tmp_path / "of_an_earlier_name.jsonl", **options), "lines").close()
    turn_back(renamed, DAY_S)
    sink = opened(SaveJSONL(path, **options), "lines")
    for number in range(40):
        sink.write(Frame("cam", number, number))
        calendar.now_s += 900
        if number == 17:
            os.utime(path, (calendar.now_s - 900,) * 2)
            sink.close()
            sink = opened(SaveJSONL(path, **options), "lines")
    calendar.now_s += 3600
    sink.tick()  # no line comes, and the hour is over
    sink.close()
    files = sorted(tmp_path.glob("all-*.jsonl"))
    assert [lines_of(file) for file in files] == [
        list(range(first, first + 4)) for first in range(40 - 4 * len(files), 40, 4)
    ]
    assert 4 <= len(files) <= 6
    assert lines_of(path) == []
    assert theirs.exists()
    assert not renamed.exists()


def test_lines_are_in_files_of_a_size_and_all_files_have_a_bound(tmp_path, calendar):
    path = tmp_path / "all.jsonl"
    sink = opened(SaveJSONL(path, every_bytes=1000, keep_bytes=5000), "lines")
    for number in range(100):
        calendar.now_s += 1
        sink.write(Frame("cam", number, number))
        sink.tick()
        files = [*sorted(tmp_path.glob("all-*.jsonl")), path]
        assert all(file.stat().st_size <= 1000 for file in files)
        assert sum(file.stat().st_size for file in files) <= 5000
    found = [number for file in files for number in lines_of(file)]
    assert found == list(range(100 - len(found), 100))
    assert sum(file.stat().st_size for file in files) > 3500
    sink.close()


def test_lines_go_on_in_a_new_file_where_somebody_moves_theirs_or_cuts_it(tmp_path):
    path, moved = tmp_path / "all.jsonl", tmp_path / "all.jsonl.1"
    sink = opened(SaveJSONL(path))
    for number in range(6):
        if number == 2:
            path.rename(moved)
        if number == 4:
            os.truncate(path, 0)
        sink.write(Frame("cam", number, number))
    sink.close()
    assert (lines_of(moved), lines_of(path)) == ([0, 1], [4, 5])
    with pytest.raises(ValueError, match="they need every_s or every_bytes"):
        SaveJSONL(path, keep_s=1)
    with pytest.raises(ValueError, match="every_s is more than 0"):
        SaveJSONL(path, every_s=0)
