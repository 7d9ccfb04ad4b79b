"""The page of a `View`, in a browser: ``./dev test browser`` runs this."""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

import browser
import cv2
import numpy as np
import pytest
import supervision as sv

import headrace
import headrace_vision

pytestmark = pytest.mark.browser

LONG = "rtsp://camera-4.warehouse.example/live/stream/with-a-name-that-is-longer-than-a-phone/<b>main</b>"


def page_squares(image):
    boxes = np.array([[8, 8, 40, 40]], np.float32)
    found = sv.Detections(boxes, class_id=np.array([0]), confidence=np.array([1.0]))
    found.data["class_name"] = np.array(["square"])
    return found


class NeverAgain(headrace_vision.Clock):
    """A source that is lost waits until it is stopped, and says when it is lost."""

    def __init__(self):
        super().__init__()
        self.lost = threading.Event()

    def wait(self, stop, seconds):
        self.lost.set()
        return stop.wait()


@pytest.fixture
def shown(tmp_path):
    """A page with two pictures that were delivered, and a camera that does not open."""
    headrace.register("PageViewSquares", page_squares, replace=True)
    for name, grey in (("door", 60), ("long", 200)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.full((90, 160, 3), grey, np.uint8))
    view, clock = headrace_vision.View(), NeverAgain()
    inputs = {"door": str(tmp_path / "door.png"), LONG: str(tmp_path / "long.png")}
    pipe = {"backend": "PageViewSquares"}
    with headrace_vision.VideoRunner(pipe, sinks=[view], machine_clock=clock) as runner:
        for _ in runner.run(inputs):
            pass
        camera = runner.add({"yard": "camera:999"})
        assert clock.lost.wait(300)
        with browser.opened(tmp_path / "profile") as tab:
            tab.open(view.url)
            tab.wait("document.querySelectorAll('.source').length === 3")
            tab.wait("[...document.querySelectorAll('img:not([hidden])')].length === 2")
            tab.wait(
                "[...document.querySelectorAll('img:not([hidden])')].every((i) => i.naturalWidth === 160)"
            )
            yield tab
            assert tab.errors == []
            asked = {urlsplit(url).netloc for url in tab.asked if not url.startswith("data:")}
            assert asked == {urlsplit(view.url).netloc}
        camera.stop()


def tile(name):
    return f"[...document.querySelectorAll('.source')].find((e) => e.querySelector('h2 span').textContent === {name!r})"


def test_each_source_has_its_picture_and_its_figures(shown):
    figures = shown.run(
        f"return [...{tile('door')}.querySelectorAll('.figures > div')].map((e) => [e.firstChild.textContent, e.lastChild.textContent])"
    )
    assert dict(figures) | {"frames/s": ""} == {
        "frames/s": "", "objects": "1", "frame": "0", "time": "0.0 s", "dropped": "0", "failed": "0",
    }  # fmt: skip
    assert shown.run("return document.getElementById('note').textContent") == "3 sources"
    # A name is text, whatever it holds.
    assert shown.run(f"return {tile(LONG)}.querySelectorAll('b').length") == 0
    # The box is drawn along its sides, and the picture is as it was inside.
    colours = shown.run(
        f"const image = {tile('door')}.querySelector('img'), canvas = document.createElement('canvas');"
        "canvas.width = 160; canvas.height = 90; const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);"
        "return [[8, 30], [25, 30], [100, 60]].map(([x, y]) => [...context.getImageData(x, y, 1, 1).data])"
    )
    side, inside, outside = (np.array(one[:3], int) for one in colours)
    assert np.ptp(side) > 40
    assert np.abs(inside - 60).max() < 20
    assert np.abs(outside - 60).max() < 20


def test_a_camera_that_fails_is_there_with_its_reason(shown):
    assert "lost, next try in" in shown.run(
        f"return {tile('yard')}.querySelector('.badge').textContent"
    )
    assert "999" in shown.run(f"return {tile('yard')}.querySelector('.error').textContent")
    assert shown.run(f"return {tile('yard')}.querySelector('.nothing').textContent") == "no picture"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_lies_beside_the_screen(shown, dark):
    shown.look(390, 844, dark=dark)
    shown.wait("matchMedia('(max-width: 40rem)').matches")
    assert shown.run("return document.documentElement.scrollWidth") == 390
    wide = shown.run(
        "return [...document.querySelectorAll('.source *')].map((e) => e.getBoundingClientRect().right)"
    )
    assert max(wide) <= 390


class PageViewWalker(headrace.Backend):
    """One confirmed track of 20 x 20 pixels that goes to the right by 20 pixels each frame."""

    def forward(self, batch):
        for request in batch:
            left = 20 * request["context"]["frame"]
            boxes = np.array([[left, 30, left + 20, 50]], np.float32)
            found = sv.Detections(boxes, class_id=np.array([0]), tracker_id=np.array([7]))
            found.data["class_name"] = np.array(["walker"])
            request["result"] = found


@pytest.fixture
def counted(tmp_path):
    """A page with two clips of the same name, after a track went over a line and into a zone."""
    headrace.register("PageViewWalker", PageViewWalker)
    view, written = headrace_vision.View(), threading.Semaphore(0)
    write = view.write

    def counting(frame):
        write(frame)
        written.release()

    view.write, view.full = counting, "wait"
    clips = {f"/films/{name}/video.avi": [np.zeros((90, 160, 3), np.uint8)] * 7 for name in "ab"}
    with headrace_vision.VideoRunner(
        {"backend": "PageViewWalker"},
        sinks=[view],
        lines={"door": [65, 10, 65, 85]},
        zones={"yard": [[80, 5], [155, 5], [155, 85], [80, 85]]},
    ) as runner:
        for _ in runner.run(clips):
            pass
        for _ in range(14):
            assert written.acquire(timeout=300)
        with browser.opened(tmp_path / "profile") as tab:
            tab.open(view.url)
            tab.wait("document.querySelectorAll('.source').length === 2")
            tab.wait(
                "[...document.querySelectorAll('img')].every((i) => i.complete && i.naturalWidth === 160)"
            )
            yield tab
            assert tab.errors == []


def test_lines_zones_trails_and_events_are_shown_under_names_that_tell_clips_apart(counted):
    names = "return [...document.querySelectorAll('h2 span:first-child')].map((e) => [e.textContent, e.title])"
    assert counted.run(names) == [
        ["a/video.avi", "/films/a/video.avi"],
        ["b/video.avi", "/films/b/video.avi"],
    ]
    events = counted.run(
        f"return [...{tile('a/video.avi')}.querySelectorAll('.events li')].map((e) => e.textContent)"
    )
    # Frame N is at N / 25 s; its center is at 20 N + 10, and its bottom inside of the zone from frame 4 on.
    assert events == ["0.2 s: yard enter, #7 walker", "0.1 s: door in, #7 walker"]
    pixels = counted.run(
        f"const image = {tile('a/video.avi')}.querySelector('img'), canvas = document.createElement('canvas');"
        "canvas.width = 160; canvas.height = 90; const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);"
        "return [[65, 20], [100, 5], [30, 40], [30, 70], [50, 10]].map(([x, y]) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3))"
    )
    line, zone, trail, *nothing = (max(one) for one in pixels)
    assert min(line, zone) > 180
    assert trail > 80
    assert max(nothing) < 40


def test_a_click_enlarges_a_source_and_escape_or_a_click_ends_it(counted):
    picture = f"{tile('b/video.avi')}.querySelector('.picture')"
    small = counted.run(f"return {picture}.getBoundingClientRect().width")

    def wide():
        return counted.run(f"return [{picture}.getBoundingClientRect().width, innerWidth]")

    escape = "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))"
    for end in (escape, f"{picture}.click()"):
        counted.run(f"{picture}.click()")
        width, window = wide()
        assert width == window > small
        # The others lie below it, and it goes on to be updated.
        top = "document.elementFromPoint(20, 20).closest('.source').querySelector('h2 span').title"
        assert counted.run(f"return {top}") == "/films/b/video.avi"
        updates = counted.run("return Number(document.body.dataset.updates)")
        counted.wait(f"Number(document.body.dataset.updates) > {updates}")
        assert wide() == [window, window]
        counted.run(end)
        assert wide()[0] == small


def test_a_view_that_is_closed_is_said(tmp_path):
    view = headrace_vision.View()
    with browser.opened(tmp_path / "profile") as tab:
        tab.open(view.url)
        tab.wait("document.getElementById('note').textContent === '0 sources'")
        view.close()
        tab.wait("document.getElementById('note').textContent === 'the server cannot be reached'")
