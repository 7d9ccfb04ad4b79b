"""The list of events of a `View`, in a browser: ``./dev test browser`` runs this."""

from __future__ import annotations

import itertools
import json
import os

import browser
import numpy as np
import pytest
import supervision as sv

import headrace
import headrace_vision

pytestmark = pytest.mark.browser

T0 = 1_900_000_000.0
COUNT = 10_000
EVIL = "<img src=x onerror=alert(1)>"


class PageEventsAlarm(headrace.Backend):
    """An event in the eighth picture."""

    def forward(self, batch):
        for request in batch:
            boxes = np.array([[8, 8, 40, 40]], np.float32)
            request["result"] = sv.Detections(boxes, class_id=np.array([0]))
            is_event = request["context"]["frame"] == 7
            event = {"type": "line", "name": "gate", "direction": "in", "class_name": EVIL}
            request["events"] = [event] if is_event else []


def run(folder, name, codec, begin_s, monkeypatch):
    """Record a source whose pictures come by a clock of the test."""
    clock = itertools.count(round(10 * begin_s))
    monkeypatch.setattr("headrace_vision.reading.source.utc", lambda: next(clock) / 10)
    sinks = [
        headrace_vision.SaveJSONL(folder / "all.jsonl"),
        headrace_vision.SaveVideo(folder / "clips", before_s=0.5, after_s=0.5, codec=codec),
        headrace_vision.SaveImages(folder / "images", only_events=True),
    ]
    pictures = [np.full((90, 160, 3), 60 + 5 * n, np.uint8) for n in range(16)]
    with headrace_vision.VideoRunner(
        {"backend": "PageEventsAlarm"}, sinks=sinks, image_fps=10
    ) as runner:
        for _ in runner.run({name: pictures}):
            pass
    for one in [*(folder / "clips").glob(f"{name}-*"), *(folder / "images" / name).iterdir()]:
        os.utime(one, (begin_s + 3, begin_s + 3))


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """A page with 10,000 events without files, and two with clips: of a codec that plays, and of another one."""
    headrace.register("PageEventsAlarm", PageEventsAlarm, replace=True)
    with (tmp_path / "all-20300101-000000.jsonl").open("w") as file:
        for n in range(COUNT):
            event = {
                "id": f"n{n}", "time": T0 + n, "type": "zone", "name": ["yard", "lot"][n % 2], "direction": "enter",
                "track_id": n, "class_name": ["car", "person", "dog"][n % 3],
            }  # fmt: skip
            line = {"source": f"cam{n % 4}", "frame": n, "time": T0 + n, "path": None, "events": [event]}  # fmt: skip
            file.write(json.dumps(line) + "\n")
    run(tmp_path, "door", "libx264", T0 + COUNT + 100, monkeypatch)
    run(tmp_path, "side", "mpeg4", T0 + COUNT + 200, monkeypatch)
    view = headrace_vision.View(
        records=tmp_path / "all.jsonl", videos=tmp_path / "clips", images=tmp_path / "images"
    )
    with browser.opened(tmp_path / "profile") as tab:
        tab.open(view.url)
        tab.wait(
            f"{ROWS}.length === 50 && document.getElementById('happened-note').textContent === ''"
        )
        yield tab
        assert tab.errors == []
    view.close()


ROWS = "document.querySelectorAll('#happened li')"


def titles(tab, count=4):
    return tab.run(
        f"return [...{ROWS}].slice(0, {count}).map((e) => e.querySelector('strong').textContent)"
    )


def press(tab, key, **more):
    for kind in ("rawKeyDown", "keyUp"):
        tab.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)


def choose(tab, name, value):
    tab.run(
        f"const field = document.querySelector('#chosen [name={name}]'); field.value = {value!r};"
        "field.dispatchEvent(new Event('change', { bubbles: true }))"
    )


def test_the_list_has_the_newest_first_in_pages_and_labels_are_text(listed):
    assert titles(listed) == [
        f"gate in, {EVIL}", f"gate in, {EVIL}", f"lot enter, car #{COUNT - 1}", f"yard enter, dog #{COUNT - 2}",
    ]  # fmt: skip
    assert listed.run("return document.querySelectorAll('[onerror]').length") == 0
    seen = 50
    for _ in range(3):
        listed.run("document.getElementById('older').click()")
        seen += 50
        listed.wait(f"{ROWS}.length === {seen}")
    numbers = listed.run(
        f"return [...{ROWS}].slice(2).map((e) => Number(e.textContent.match(/#(\\d+)/)[1]))"
    )
    assert numbers == list(range(COUNT - 1, COUNT - 199, -1))
    assert listed.run("return document.activeElement.closest('li').dataset.id")  # the first new one


def test_new_events_come_above_and_the_focus_stays_on_its_event(listed, tmp_path):
    listed.run("document.getElementById('older').click()")
    listed.wait(f"{ROWS}.length === 100")
    listed.run(f"{ROWS}[70].firstChild.focus()")
    before = titles(listed, 100)
    event = {"id": "new", "time": T0 + 2 * COUNT, "name": "yard", "class_name": "bird"}
    line = {"source": "cam9", "frame": 0, "time": T0, "path": None, "events": [event]}
    with (tmp_path / "all.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    listed.wait(f"{ROWS}.length === 101")
    assert titles(listed, 101) == ["yard, bird", *before]
    assert listed.run(f"return [...{ROWS}].indexOf(document.activeElement.closest('li'))") == 71


def test_fields_choose_by_camera_class_zone_and_time(listed):
    offered = listed.run(
        "return [...document.querySelectorAll('#chosen select')].map((e) => [...e.options].map((o) => o.textContent))"
    )
    assert offered == [
        ["all sources", "cam0", "cam1", "cam2", "cam3", "door", "side"],
        ["all classes", EVIL, "car", "dog", "person"],
        ["all lines and zones", "gate", "lot", "yard"],
    ]
    for name, value in (("source", "=cam2"), ("label", "=dog"), ("zone", "=yard")):
        choose(listed, name, value)
    last = max(n for n in range(COUNT) if n % 4 == 2 and n % 3 == 2 and n % 2 == 0)
    listed.wait(f"{ROWS}[0]?.textContent.includes('#{last}')")
    assert titles(listed, 2) == [f"yard enter, dog #{last}", f"yard enter, dog #{last - 12}"]
    local = listed.run(
        f"const at = new Date(({T0} + 500) * 1000);"
        "return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19)"
    )
    choose(listed, "until", local)
    listed.wait(f"{ROWS}[0]?.textContent.includes('#494')")
    choose(listed, "since", local)
    listed.wait("document.getElementById('happened-note').textContent === 'no events'")


def test_arrows_enter_and_escape_are_enough(listed, tmp_path):
    listed.run(f"{ROWS}[0].firstChild.focus()")
    at = f"[...{ROWS}].indexOf(document.activeElement.closest('li'))"
    tops = listed.run(f"return [...{ROWS}].map((e) => e.getBoundingClientRect().top)")
    wide = tops.count(tops[0])
    assert wide > 1  # columns
    for key, code, there in (
        ("Right", 39, 1),
        ("Down", 40, 1 + wide),
        ("Left", 37, wide),
        ("Up", 38, 0),
        ("Right", 39, 1),
    ):
        press(listed, f"Arrow{key}", windowsVirtualKeyCode=code)
        assert listed.run(f"return {at}") == there
    assert listed.run(
        "const look = getComputedStyle(document.activeElement); return [look.outlineStyle, parseFloat(look.outlineWidth) >= 2]"
    ) == ["solid", True]
    listed.send(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13,
    )  # fmt: skip
    listed.send("Input.dispatchKeyEvent", type="keyUp", key="Enter", code="Enter")
    listed.wait("document.getElementById('event').open")
    # The clip in H.264 is there, and plays.
    listed.wait("document.querySelector('#event video').currentTime > 0.3")
    assert listed.run(
        "const video = document.querySelector('#event video'); return [video.videoWidth, video.videoHeight, Math.round(video.duration * 10)]"
    ) == [160, 90, 11]
    press(listed, "Escape", windowsVirtualKeyCode=27)
    listed.wait("!document.getElementById('event').open")
    assert listed.run(f"return {at}") == 1  # where it was
    listed.wait("document.querySelectorAll('#event *').length === 0")
    press(listed, "End", windowsVirtualKeyCode=35)
    assert listed.run("return document.activeElement.id") == "older"
    press(listed, "Home", windowsVirtualKeyCode=36)
    assert listed.run(f"return {at}") == 0


def test_a_clip_that_no_browser_plays_is_a_download_beside_its_snapshot(listed):
    listed.wait(f"{ROWS}[0].querySelector('img').naturalWidth === 160")
    listed.run(f"{ROWS}[0].firstChild.click()")
    listed.wait("document.querySelector('#event img').naturalWidth === 160")
    found = listed.run(
        "const link = document.querySelector('#event a'); return [document.querySelectorAll('#event video').length, link.hidden, link.download === '']"
    )
    assert found == [0, False, True]
    status = listed.run(
        "const answer = await fetch(document.querySelector('#event a').href); return [answer.status, answer.headers.get('content-disposition')]"
    )
    assert status[0] == 200
    assert "side-" in status[1]


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_no_event_lies_beside_the_screen(listed, dark):
    listed.look(390, 844, dark=dark)
    listed.wait("matchMedia('(max-width: 40rem)').matches")
    assert listed.run("return document.documentElement.scrollWidth") == 390
