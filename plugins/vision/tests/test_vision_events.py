"""The list of what happened: an index that agrees with the files, and what a client gets of it over HTTP."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import threading
from time import gmtime, strftime

import av
import cv2
import numpy as np
import pytest
import supervision as sv

import headrace
from headrace_formats import page
from headrace_vision import SaveImages, SaveJSONL, SaveVideo, VideoRunner, View
from headrace_vision.sinks.event_index import EventIndex

T0 = 1_900_000_000.0


def record(number, *, source="door", label="car", zone="gate", time=None, **more):
    """A line as `SaveJSONL` writes it, with one event."""
    time = T0 + number if time is None else time
    event = {
        "id": f"{source}:x:{number}", "time": time, "type": "line", "name": zone, "direction": "in",
        "track_id": number, "class_name": label, "frame": number, "timestamp": float(number), **more,
    }  # fmt: skip
    return {"source": source, "frame": number, "timestamp": 0.0, "time": time, "path": None, "events": [event]}  # fmt: skip


def write(path, records, mode="w"):
    with path.open(mode, encoding="utf-8") as file:
        for one in records:
            file.write(json.dumps(one) + "\n")


def all_of(index, **wanted):
    """All events, page by page."""
    found, before = [], None
    while True:
        one = index.page(wanted, before=before, most=7)
        found += one["events"]
        before = one["next"]
        if before is None:
            return found


def tracks(index, **wanted):
    return [one["track_id"] for one in all_of(index, **wanted)]


@pytest.fixture
def index(tmp_path):
    made = EventIndex(tmp_path / "all.jsonl")
    yield made
    made.close()


def test_pages_hold_each_event_once_the_newest_first_and_those_that_are_wanted(index, tmp_path):
    rows = [
        record(n, source=f"cam{n % 3}", label=["car", "person", None][n % 5 % 3], zone=f"z{n % 2}", time=T0 + n // 4)
        for n in range(60)
    ]  # fmt: skip
    nothing = {"source": "cam0", "frame": 0, "time": T0, "events": []}
    write(tmp_path / "all.jsonl", [x for row in rows for x in (nothing, row)])
    assert index.look()
    assert tracks(index) == sorted(range(60), key=lambda n: (n // 4, n), reverse=True)
    for source, label, zone in itertools.product([None, "cam1"], [None, "person"], [None, "z0"]):
        wanted = {k: v for k, v in {"source": source, "label": label, "zone": zone}.items() if v}
        expected = [
            row["events"][0]["track_id"]
            for row in reversed(rows)
            if (source is None or row["source"] == source)
            and (label is None or row["events"][0]["class_name"] == label)
            and (zone is None or row["events"][0]["name"] == zone)
        ]
        assert tracks(index, **wanted) == expected
    within = index.page({}, since_s=T0 + 3, until_s=T0 + 4)["events"]
    assert [one["track_id"] for one in within] == list(range(19, 11, -1))
    assert index.choices() == {
        "source": ["cam0", "cam1", "cam2"], "label": ["car", "person"], "zone": ["z0", "z1"],
    }  # fmt: skip


def test_new_lines_are_read_on_and_files_that_are_gone_leave_the_list(index, tmp_path):
    path, ended = tmp_path / "all.jsonl", tmp_path / "all-20300131-235900.jsonl"
    write(path, [record(1), record(2)])
    assert index.look()
    with path.open("a", encoding="utf-8") as file:  # half a line
        text = json.dumps(record(3)) + "\n"
        file.write(text[:40])
        file.flush()
        assert index.look()
        assert tracks(index) == [2, 1]
        file.write(text[40:])
    assert index.look()
    ids = {one["track_id"]: one["id"] for one in all_of(index)}
    assert list(ids) == [3, 2, 1]
    path.rename(ended)
    write(path, [record(2), record(4)])  # the second is a repeat
    write(tmp_path / "other.jsonl", [record(5)])
    assert index.look()
    found = {one["track_id"]: one["id"] for one in all_of(index)}
    assert list(found) == [4, 3, 2, 1]
    assert found | ids == found  # a page that is open goes on
    ended.unlink()
    assert index.look()
    assert tracks(index) == [4]
    path.write_text(json.dumps(record(9)) + "\n")  # another file of the same name
    assert index.look()
    assert tracks(index) == [9]


@pytest.mark.parametrize("harm", [None, b"no index", b""])
def test_an_index_that_is_away_or_damaged_is_built_again(index, tmp_path, harm):
    write(tmp_path / "all.jsonl", [record(n) for n in range(5)])
    assert index.look()
    (file,) = tmp_path.glob(".all.jsonl.sqlite")
    index.close()
    file.unlink()
    if harm is not None:
        file.write_bytes(harm * 200)
    while not index.look():
        pass
    assert tracks(index) == [4, 3, 2, 1, 0]


def test_lines_that_are_no_records_are_left_out(index, tmp_path):
    lines = [
        '{"events": 3}', '{"events": [{}]}', '["events"]', '"events"', "{", '{"events": [7], "source": "a", "time": 1, "frame": 0}',
        '{"events": [{"name": "x"}], "source": "a", "time": "soon", "frame": 0}', json.dumps(record(7)), "\xff events",
    ]  # fmt: skip
    (tmp_path / "all.jsonl").write_text("\n".join(lines) + "\n", encoding="latin-1")
    assert index.look()
    assert tracks(index) == [7]


def test_a_look_ends_in_time_and_the_next_one_goes_on(index, tmp_path):
    write(tmp_path / "all.jsonl", [record(n) for n in range(30)])
    assert not index.look(most_s=-1)
    assert tracks(index) == []
    assert index.look()
    assert len(tracks(index)) == 30


def test_an_index_is_closed_between_questions_and_never_in_one(index, tmp_path):
    write(tmp_path / "all.jsonl", [record(n) for n in range(3000)])
    found = []
    asker = threading.Thread(target=lambda: found.append(index.look(600)))
    asker.start()
    while asker.is_alive():
        index.close()
    assert found == [True]
    assert len(index.page({}, most=4000)["events"]) == 3000


class Alarm(headrace.Backend):
    """An event at frames 8 and 30, on pictures of 10 a second."""

    def forward(self, batch):
        for request in batch:
            number = request["context"]["frame"]
            boxes = np.array([[8, 8, 40, 40]], np.float32)
            request["result"] = sv.Detections(boxes, class_id=np.array([0]))
            request["events"] = (
                [{"type": "line", "name": "gate", "class_name": "<b>car</b>", "frame": number}]
                if number in (8, 30)
                else []
            )


def films(folder, monkeypatch, codec="libx264"):
    """Run a source whose pictures come by a clock of the test, with all sinks. Return the place of each event's frame."""
    headrace.register("EventsAlarm", Alarm, replace=True)
    clock = itertools.count(10 * T0)
    monkeypatch.setattr("headrace_vision.reading.source.utc", lambda: next(clock) / 10)
    sinks = [
        SaveJSONL(folder / "all.jsonl"),
        SaveVideo(folder / "clips", before_s=0.3, after_s=0.3, codec=codec),
        SaveImages(folder / "images", only_events=True),
    ]
    pictures = [np.full((48, 64, 3), 4 * n, np.uint8) for n in range(40)]
    with VideoRunner({"backend": "EventsAlarm"}, sinks=sinks, image_fps=10) as runner:
        for _ in runner.run({"door": pictures}):
            pass
    for one in [*(folder / "clips").iterdir(), *(folder / "images" / "door").iterdir()]:
        os.utime(one, (T0 + 4.5, T0 + 4.5))  # the machine's clock is not that of the test


@pytest.fixture
def shown(tmp_path, monkeypatch):
    films(tmp_path, monkeypatch)
    view = View(
        records=tmp_path / "all.jsonl", videos=tmp_path / "clips", images=tmp_path / "images"
    )
    yield view
    view.close()


def get(view, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", view.url.split(":")[2].strip("/"))
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def events_of(view):
    return json.loads(get(view, "/ui/events.json")[2])["events"]


def test_each_event_has_its_own_clip_and_its_snapshot(shown, tmp_path):
    found = events_of(shown)
    assert [(one["frame"], one["clip"], one["snapshot"]) for one in found] == [
        (30, "plays", True),
        (8, "plays", True),
    ]
    for one in found:
        status, headers, body = get(shown, f"/ui/clip?id={one['id']}")
        assert (status, headers["Content-Type"]) == (200, "video/mp4")
        (tmp_path / "clip.mp4").write_bytes(body)
        with av.open(str(tmp_path / "clip.mp4")) as container:
            greys = [f.to_ndarray(format="gray").mean() for f in container.decode(video=0)]
        # Three pictures before, the event, three behind, with a box on each.
        assert len(greys) == 7
        assert abs(greys[3] - 4 * one["frame"]) < 40
        status, headers, body = get(shown, f"/ui/snapshot?id={one['id']}")
        assert (status, headers["Content-Type"]) == (200, "image/jpeg")
        corner = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)[-1, -1]
        assert np.abs(corner.astype(int) - 4 * one["frame"]).max() < 12
    assert sorted(one.name for one in (tmp_path / "images" / "door").glob("*.jpg")) == [
        "000008.jpg",
        "000030.jpg",
    ]


def test_clips_and_snapshots_that_were_deleted_leave_the_list(shown, tmp_path):
    new, old = events_of(shown)
    assert new["clip"] == "plays"
    min((tmp_path / "clips").glob("*.mp4")).unlink()
    (tmp_path / "images" / "door" / "000030.jpg").unlink()
    found = events_of(shown)
    assert [(one["clip"], one["snapshot"]) for one in found] == [("plays", False), (None, True)]
    assert get(shown, f"/ui/clip?id={old['id']}")[0] == 404
    assert get(shown, f"/ui/snapshot?id={new['id']}")[0] == 404


def test_parts_of_a_clip_are_given_as_a_player_asks_for_them(shown):
    path = f"/ui/clip?id={events_of(shown)[0]['id']}"
    whole = get(shown, path)[2]
    size = len(whole)
    for asked, first, end in [
        ("bytes=0-", 0, size), ("bytes=10-19", 10, 20), (f"bytes={size - 1}-", size - 1, size),
        (f"bytes=5-{size * 9}", 5, size),
    ]:  # fmt: skip
        status, headers, body = get(shown, path, Range=asked)
        assert (status, body) == (206, whole[first:end])
        assert headers["Content-Range"] == f"bytes {first}-{end - 1}/{size}"
    assert get(shown, path, Range=f"bytes={size}-")[0] == 416
    assert get(shown, path, Range="bytes=9-3")[0] == 416
    assert get(shown, path, Range="bytes=-5")[2] == whole  # not supported, so it is ignored


def test_what_no_browser_plays_is_a_download(tmp_path, monkeypatch):
    films(tmp_path, monkeypatch, codec="mpeg4")
    view = View(records=tmp_path / "all.jsonl", videos=tmp_path / "clips")
    try:
        one = events_of(view)[0]
        assert (one["clip"], one["snapshot"]) == ("download", False)
        _, headers, _ = get(view, f"/ui/clip?id={one['id']}")
        assert headers["Content-Disposition"].startswith("attachment; filename*=UTF-8''door-")
    finally:
        view.close()


@pytest.mark.parametrize(
    "asked",
    [
        "clip?id=../all.jsonl", "clip?id=", "clip", "clip?id=1e9", f"clip?id={9**40}", "snapshot?id=%00", "snapshot?id=/etc/passwd",
        "events.json?before=x", "events.json?since=soon", f"events.json?before=1,{9**40}",
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(shown, asked):
    status, headers, body = get(shown, f"/ui/{asked}")
    assert (status, headers["Content-Type"]) == (400, "text/plain")
    assert b"etc" not in body
    for name, value in page.SANDBOXED.items():
        assert headers[name] == value


def test_links_out_of_the_folder_lead_nowhere(shown, tmp_path):
    numbers = [one["id"] for one in events_of(shown)]
    for path in [*(tmp_path / "clips").glob("*.mp4"), *(tmp_path / "images").glob("*/*.jpg")]:
        secret = tmp_path / path.name
        path.rename(secret)  # with its content and its time
        path.symlink_to(secret)
    assert [one["clip"] for one in events_of(shown)] == ["plays", "plays"]
    for number in numbers:
        for kind in ("clip", "snapshot"):
            assert get(shown, f"/ui/{kind}?id={number}")[0] == 404


def test_files_of_another_source_or_time_belong_to_no_event(shown, tmp_path):
    clips = sorted((tmp_path / "clips").glob("*.mp4"))
    shutil.copy2(clips[1], clips[1].with_name("door-20310101-000000.mp4"))
    clips[0].unlink()
    os.utime(tmp_path / "images" / "door" / "000008.jpg", (T0 + 900, T0 + 900))
    found = events_of(shown)
    assert [(one["clip"], one["snapshot"]) for one in found] == [("plays", True), (None, False)]
    with VideoRunner(
        {"backend": "Identity"}, sinks=[SaveVideo(tmp_path / "clips", every_s=9)]
    ) as runner:
        for _ in runner.run({"yard": [np.zeros((48, 64, 3), np.uint8)]}):
            pass
    assert [one["clip"] for one in events_of(shown)] == ["plays", None]


def clip(folder, begin_s, end_s, number="", seconds=10):
    """A video of a source as `SaveVideo` would have written it in this time."""
    stamp = strftime("%Y%m%d-%H%M%S", gmtime(begin_s))
    path = folder / f"door-{stamp}{number}.mp4"
    with av.open(str(path), "w") as container:
        container.metadata["title"] = "door"
        stream = container.add_stream("libx264", rate=1)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(seconds):
            container.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        container.mux(stream.encode())
    os.utime(path, (end_s, end_s))
    return path.name


def test_of_clips_that_overlap_the_one_that_was_being_written_is_that_of_the_event(tmp_path):
    (folder := tmp_path / "clips").mkdir()
    # Live: the second begins with what was before its event. From a file: several within a second.
    one, other = clip(folder, T0, T0 + 11), clip(folder, T0 + 9, T0 + 20)
    fast, next_fast = clip(folder, T0 + 100, T0 + 100.5), clip(folder, T0 + 100, T0 + 100.9, "-2")
    whens = {4: one, 9.5: other, 20.5: None, 100.3: fast, 100.7: next_fast, 101: None}
    write(tmp_path / "all.jsonl", [record(n, time=T0 + at) for n, at in enumerate(whens)])
    index = EventIndex(tmp_path / "all.jsonl", folder)
    assert index.look()
    events = {one["time"] - T0: index.clip(one["id"]) for one in all_of(index)}
    found = {round(at, 3): one and one.path.name for at, one in events.items()}
    index.close()
    assert found == whens


def test_without_records_there_is_no_list():
    view = View()
    try:
        assert get(view, "/ui/events.json")[0] == get(view, "/ui/clip?id=1")[0] == 404
        assert not view.state()["has_events"]
    finally:
        view.close()
