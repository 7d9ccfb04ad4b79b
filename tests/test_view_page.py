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


def test_a_view_that_is_closed_is_said(tmp_path):
    view = headrace_vision.View()
    with browser.opened(tmp_path / "profile") as tab:
        tab.open(view.url)
        tab.wait("document.getElementById('note').textContent === '0 sources'")
        view.close()
        tab.wait("document.getElementById('note').textContent === 'the server cannot be reached'")
