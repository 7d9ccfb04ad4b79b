"""The live page of a server, in a browser: ``./dev test browser`` runs this."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import browser
import cv2
import numpy as np
import pytest

import headrace
from headrace_serve import Server

pytestmark = pytest.mark.browser


@headrace.register("PageSquares")
class PageSquares(headrace.Backend):
    """Find the white squares of a picture: their boxes, and a text that counts them."""

    rerun = True

    def forward(self, batch):
        outcomes = []
        for request in batch:
            image = cv2.imdecode(np.frombuffer(request["data"], np.uint8), cv2.IMREAD_GRAYSCALE)
            if image is None:
                outcomes.append(headrace.errors.InputError("this is no picture"))
                continue
            found, _ = cv2.findContours(image, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
            boxes = sorted(cv2.boundingRect(one) for one in found)
            lines = [{"box": [x, y, x + w, y + h], "label": "square"} for x, y, w, h in boxes]
            request["result"] = {"text": f"{len(boxes)} squares", "found": lines}
            outcomes.append(None)
        return outcomes


@headrace.register("PageSum")
class PageSum(headrace.Backend):
    """Add the numbers of a tensor."""

    rerun = True

    def forward(self, batch):
        for request in batch:
            request["result"] = np.array([request["data"].sum()], np.float32)


MODELS = {
    "squares": {"backend": "PageSquares", "instance_num": 2},
    "sum": {
        "config": {"backend": "PageSum"},
        "inputs": {"x": {"datatype": "FP32", "shape": [2, 3], "key": "data"}},
        "outputs": {"result": {"datatype": "FP32", "shape": [1]}},
    },
}


@pytest.fixture
def served():
    with Server(MODELS, port=0, ui=True, debug_errors=True) as server:
        yield server


@pytest.fixture
def page(served, tmp_path):
    """The live page, in a browser; at the end, that no script failed and that nothing left this machine."""
    with browser.opened(tmp_path / "profile") as tab:
        tab.open(f"{served.url}/ui")
        tab.wait("document.body.dataset.updates >= 1")
        yield tab
        assert {
            urlsplit(url).netloc for url in tab.asked if not url.startswith(("data:", "blob:"))
        } == {urlsplit(served.url).netloc}


@pytest.fixture
def picture(tmp_path) -> Path:
    image = np.zeros((120, 200), np.uint8)
    image[10:30, 10:30] = image[60:100, 90:130] = image[20:40, 150:180] = 255
    path = tmp_path / "squares.png"
    cv2.imwrite(str(path), image)
    return path


SQUARES = "document.querySelector('[data-model=\"squares:1\"]')"
SUM = "document.querySelector('[data-model=\"sum:1\"]')"


def test_it_shows_each_model_with_its_graph(page):
    assert page.run(
        "return [...document.querySelectorAll('.model .name')].map((e) => e.textContent)"
    ) == ["squares", "sum"]
    assert page.wait(f"{SQUARES}.querySelector('.figures-of-node').textContent").startswith(
        "0.0/s · 0 waiting"
    )
    assert page.errors == []


def test_a_picture_gives_its_boxes_and_its_text(page, picture):
    page.choose_file("[data-model='squares:1'] input[type=file]", picture)
    assert page.wait(f"{SQUARES}.querySelector('canvas.boxes')?.dataset.boxes") == "3"
    assert "3 squares" in page.run(f"return {SQUARES}.querySelector('.answer').innerText")
    # Along a box the picture has the colour of the box, and inside what it had before.
    colour = "return [...{0}.querySelector('canvas.boxes').getContext('2d').getImageData({1}, {2}, 1, 1).data]"
    red, green, blue, _ = page.run(colour.format(SQUARES, 90, 80))
    assert red > 150 > max(green, blue)
    assert page.run(colour.format(SQUARES, 110, 80)) == [255, 255, 255, 255]
    assert page.errors == []


def test_a_picture_that_is_dropped_is_sent_too(page, picture):
    page.run(
        "const data = new DataTransfer();"
        f"const bytes = Uint8Array.from({list(picture.read_bytes())});"
        "data.items.add(new File([bytes], 'dropped.png', { type: 'image/png' }));"
        f"{SQUARES}.querySelector('.drop').dispatchEvent(new DragEvent('drop', {{ dataTransfer: data, bubbles: true, cancelable: true }}));"
    )
    assert page.wait(f"{SQUARES}.querySelector('canvas.boxes')?.dataset.boxes") == "3"


def test_a_tensor_is_written_as_lists(page):
    page.run(
        f"{SUM}.querySelector('textarea').value = '[[1, 2, 3], [4, 5, 6]]'; {SUM}.querySelector('button').click()"
    )
    assert "21" in page.wait(f"{SUM}.querySelector('.answer pre')?.textContent")
    page.run(
        f"{SUM}.querySelector('textarea').value = '[[1, 2'; {SUM}.querySelector('button').click()"
    )
    assert page.wait(f"{SUM}.querySelector('.answer .error')?.textContent")


def test_the_figures_move_under_load_and_the_slider_ends_it(page, picture):
    page.choose_file("[data-model='squares:1'] input[type=file]", picture)
    page.wait(f"!{SQUARES}.querySelector('.clients').disabled")
    slide = "const slider = {0}.querySelector('.clients'); slider.value = {1}; slider.dispatchEvent(new Event('input'))"
    page.run(slide.format(SQUARES, 4))
    page.wait(f"parseFloat({SQUARES}.querySelector('.figures-of-node').textContent) > 0")
    assert page.wait(f"{SQUARES}.querySelector('.count').textContent") == "4 clients"
    # The bars of busy instances have a width, and both charts are painted.
    page.wait(
        f"[...{SQUARES}.querySelectorAll('rect.busy')].some((bar) => bar.width.baseVal.value > 1)"
    )
    blue = "[...{0}.querySelector('{1}').getContext('2d').getImageData(0, 0, 2000, 300).data].some((value, at, all) => at % 4 === 0 && value < 60 && all[at + 2] > 90 && all[at + 3] > 0)"
    page.wait(blue.format(SQUARES, "canvas.latency"))
    page.wait(blue.format(SQUARES, "canvas.timeline"))
    page.run(slide.format(SQUARES, 0))
    page.wait(f"{SQUARES}.querySelector('.figures-of-node').textContent.startsWith('0.0/s')")
    assert page.errors == []


def test_an_error_is_listed_with_the_id_of_its_request(page, tmp_path):
    wrong = tmp_path / "wrong.png"
    wrong.write_bytes(b"no picture")
    page.choose_file("[data-model='squares:1'] input[type=file]", wrong)
    said = page.wait(f"{SQUARES}.querySelector('.answer .error')?.textContent")
    assert "this is no picture" in said
    row = page.wait("document.querySelector('#failures tbody tr')?.innerText")
    identifier = re.search(
        r"request id (\S+)", page.run(f"return {SQUARES}.querySelector('.answer').innerText")
    )[1]
    assert "this is no picture" in row
    assert identifier in row
    assert page.wait(f"{SQUARES}.querySelector('.errors').textContent") == "1 failed"


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_lies_beside_the_screen_and_the_graph_can_be_read(page, dark):
    page.look(390, 844, dark=dark)
    update = page.run("return document.body.dataset.updates")
    page.wait(f"document.body.dataset.updates > {update}")
    assert page.run("return document.documentElement.scrollWidth") == 390
    # A node is drawn at no less than three quarters of its size, so that its text of 12 px has 9.
    page.wait(f"{SQUARES}.querySelector('rect.box').getBoundingClientRect().width > 180")
    ink, back = page.run(
        "const light = (text) => { const [r, g, b] = text.match(/\\d+/g).map(Number); return (r + g + b) / 3 };"
        "const style = getComputedStyle(document.body); return [light(style.color), light(style.backgroundColor)]"
    )
    assert (ink > 200 and back < 50) if dark else (ink < 60 and back > 200)
    assert page.errors == []


def test_a_wide_graph_is_scrolled_and_not_shrunk(tmp_path):
    graph = {
        "first": {"backend": "Identity", "next": "left,middle,right"},
        **{name: {"backend": "Identity"} for name in ("left", "middle", "right")},
    }
    with (
        Server({"fan": graph}, port=0, ui=True) as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.look(390, 844)
        tab.open(f"{server.url}/ui")
        tab.wait("document.body.dataset.updates >= 1")
        wide = (
            "[...document.querySelectorAll('rect.box')].map((e) => e.getBoundingClientRect().width)"
        )
        assert len(found := tab.wait(wide)) == 4
        assert min(found) > 175
        assert tab.run("return document.documentElement.scrollWidth") == 390
        assert tab.run(
            "const e = document.querySelector('.graph'); return e.scrollWidth > e.clientWidth"
        )


def test_a_server_that_is_gone_is_said_and_its_figures_are_drawn_as_old(served, tmp_path):
    with browser.opened(tmp_path / "profile") as tab:
        tab.open(f"{served.url}/ui")
        tab.wait("document.body.dataset.updates >= 1")
        served.close()
        tab.wait("document.getElementById('note').textContent === 'the server cannot be reached'")
        assert tab.run("return document.body.classList.contains('old')")


def test_with_keys_it_asks_for_one(tmp_path):
    (tmp_path / "keys.toml").write_text(
        '[a]\nsha256 = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683"\n'
        'rights = ["describe", "infer"]\n'
    )
    with (
        Server(MODELS, port=0, ui=True, keys=tmp_path / "keys.toml") as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.open(f"{server.url}/ui")
        tab.wait("document.getElementById('key')")
        assert tab.run("return document.querySelectorAll('.model').length") == 0
        tab.run(
            "const form = document.getElementById('key'); form.querySelector('input').value = 'key'; form.requestSubmit()"
        )
        tab.wait("document.querySelectorAll('.model').length === 2")
        assert not tab.run("return document.getElementById('key')")


def test_a_hidden_tab_asks_nothing(page):
    page.run(
        "Object.defineProperty(document, 'hidden', { get: () => window.away ?? false });"
        "window.away = true; document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.run("for (let n = 0; n < 2; n++) await new Promise((done) => setTimeout(done, 1100))")
    asked = len(page.asked)
    page.run("for (let n = 0; n < 2; n++) await new Promise((done) => setTimeout(done, 1100))")
    assert len(page.asked) == asked
    page.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    before = page.run("return document.body.dataset.updates")
    page.wait(f"document.body.dataset.updates > {before}")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_command_serves_a_page_for_one_configuration(tmp_path):
    (tmp_path / "upper.toml").write_text('backend = "Identity"\n')
    command = [sys.executable, "-m", "headrace", "ui", "upper.toml", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()
        found = re.fullmatch(r"live page at (\S+)\n", process.stderr.readline())
        with browser.opened(tmp_path / "profile") as tab:
            tab.open(found[1])
            assert tab.wait("document.querySelector('.model .name')?.textContent") == "upper"
        process.terminate()
        assert process.wait(300) == 0
