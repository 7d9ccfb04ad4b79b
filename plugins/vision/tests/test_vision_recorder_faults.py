"""What must not stop a recorder or make it keep files for ever: kills, other programs, odd files, clocks that are put back."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import av
import pytest
from live_camera import Camera
from test_vision_retention import DAY_S, Calendar, finished, killed, record, recorder, turn_back

from headrace_vision import SaveVideo

KILLED = """
import resource, signal, sys
from headrace_vision import SaveVideo

sink = SaveVideo(sys.argv[1], every_s=60)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
sink.open()
"""


def test_a_folder_whose_first_program_was_killed_while_it_marked_it_can_be_used(kit, tmp_path):
    killed_ = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed_.returncode == -signal.SIGXFSZ
    path = finished(kit, tmp_path)
    turn_back(path, 2 * DAY_S)
    recorder(tmp_path, keep_s=DAY_S).close()
    assert not path.exists()


@pytest.mark.parametrize("name", ["T\u00fcr", "two\nlines", "100%25", "a:b;c", "nul\0", "\udcff"])
def test_any_name_of_a_sink_is_found_in_its_files(kit, tmp_path, name):
    path = finished(kit, tmp_path, name=name)
    part = killed(kit, tmp_path, "yard", name=name)
    data = part.read_bytes()
    part.write_bytes(data[: data.index(b"moof")])  # no picture, and no list of its tags
    for one in (path, part):
        turn_back(one, 2 * DAY_S)
    recorder(tmp_path, name="T", names=("T", name), keep_s=DAY_S).close()
    assert path.exists()
    assert part.exists()
    recorder(tmp_path, name=name, names=(name,), keep_s=DAY_S).close()
    assert not path.exists()
    assert not part.exists()


@pytest.mark.parametrize("codec", ["copy", "libx264"])
def test_a_kill_does_not_lose_that_a_video_has_an_event(tmp_path, codec):
    out = tmp_path / "out"
    bounds = {"every_s": 60, "keep_s": DAY_S, "keep_events_s": 7 * DAY_S}
    for event in (None, 1, 29):
        folder = out / str(event)
        camera = Camera(SaveVideo(folder, codec=codec, **bounds), tmp_path / "cam.mp4")
        camera.send(40, event=event)
        (part,) = folder.glob("*.part")
        data = part.read_bytes()
        camera.sink.close()
        (path,) = folder.glob("*.mp4")
        path.unlink()
        part.write_bytes(data)
        for days, is_there in ((0.5, True), (2, event is not None), (8, False)):
            left = part if part.exists() else path
            turn_back(left, days * DAY_S)
            sink = SaveVideo(folder, **bounds)
            sink.open()
            assert path.exists() == is_there
            if not is_there:
                break


def test_odd_files_in_its_folder_do_not_stop_a_recorder(kit, tmp_path):
    """A pipe, a folder, a link to itself, and a video whose title is in Latin-1."""
    path = finished(kit, tmp_path)
    video = tmp_path / "holiday.mp4"
    video.write_bytes(path.read_bytes().replace(b"door", b"caf\xe9"))
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "loop.mp4").symlink_to("loop.mp4")
    turn_back(path, 2 * DAY_S)
    thread = threading.Thread(target=recorder, args=[tmp_path], kwargs={"keep_s": DAY_S})
    thread.daemon = True
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not path.exists()
    assert video.exists()


@pytest.mark.parametrize("codec", ["copy", "libx264"])
def test_a_recorder_whose_file_somebody_has_removed_goes_on(tmp_path, codec):
    out = tmp_path / "out"
    camera = Camera(SaveVideo(out, codec=codec, every_s=1, keep_s=DAY_S), tmp_path / "cam.mp4")
    camera.send(25)
    for path in out.glob("*.part"):
        path.unlink()
    camera.send(24)
    assert camera.send(1) is None
    camera.sink.close()
    counts = []
    for path in out.glob("*.mp4"):
        with av.open(str(path)) as container:
            counts.append(sum(1 for one in container.demux(video=0) if one.size))
    assert len(counts) == 4  # of five
    assert 38 <= sum(counts) <= 40


def test_a_disk_without_links_and_times_of_files_does_not_stop_a_recorder(
    kit, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "link", refuse)
    sink = recorder(tmp_path, every_s=1, keep_s=DAY_S)
    record(kit, sink, count=4)
    sink.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 4


def test_a_video_is_locked_until_it_has_its_name(kit, tmp_path, monkeypatch):
    """So that no other program takes it for one of a dead run, however long its index takes."""
    is_free, given = [], av.open

    def look(file, *arguments, **options):
        if str(file).endswith(".part.part"):
            with Path(file.removeprefix("file:").removesuffix(".part")).open("rb") as part:
                try:
                    fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_free.append(True)
                except BlockingIOError:
                    is_free.append(False)
        return given(file, *arguments, **options)

    monkeypatch.setattr(av, "open", look)
    finished(kit, tmp_path)
    part = killed(kit, tmp_path)
    turn_back(part, DAY_S)
    is_free.clear()
    recorder(tmp_path).close()
    assert part.with_suffix("").exists()
    finished(kit, tmp_path, source="yard")
    assert is_free == [False, False]


def test_a_file_of_before_the_clock_was_put_back_is_not_kept_longer(kit, tmp_path, monkeypatch):
    calendar = Calendar(monkeypatch)
    path = finished(kit, tmp_path)
    turn_back(path, 0)
    calendar.now_s -= 30 * DAY_S
    for _ in range(12):
        sink = recorder(tmp_path, keep_s=DAY_S)
        assert path.exists()
        calendar.now_s += DAY_S / 12
        sink.close()
    recorder(tmp_path, keep_s=DAY_S).close()
    assert not path.exists()
