"""The live page of a server, in a browser: ``./dev test browser`` runs this."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import browser
import cv2
import httpx
import numpy as np
import pytest

import headrace
from headrace_serve import Server

ROOT = Path(__file__).resolve().parents[1]

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
                why = (
                    "this is no picture: "
                    + "it begins with bytes of no format that is known here, " * 5
                )
                outcomes.append(headrace.errors.InputError(why))
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


@headrace.register("PageScores")
class PageScores(headrace.Backend):
    """Read the scores in a text."""

    rerun = True

    def forward(self, batch):
        for request in batch:
            request["result"] = np.array(request["data"].split(), np.float32)


class Held:
    """Keeps its requests until the test says otherwise."""

    begin = threading.Event()
    end = threading.Event()

    def forward(self, batch):
        self.begin.set()
        assert self.end.wait(300)
        for request in batch:
            request["result"] = request["data"]


headrace.register("PageHeld", Held)

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


def drop(tab, name, content, kind, form=SQUARES):
    tab.run(
        "const data = new DataTransfer();"
        f"const bytes = Uint8Array.from({list(content)});"
        f"data.items.add(new File([bytes], {name!r}, {{ type: {kind!r} }}));"
        f"{form}.querySelector('.drop').dispatchEvent(new DragEvent('drop', {{ dataTransfer: data, bubbles: true, cancelable: true }}));"
    )


@headrace.register("PageLabels")
class PageLabels(headrace.Backend):
    """Give a tilted line at the upper border, and one that goes over the right border: both with a text."""

    rerun = True

    def forward(self, batch):
        quads = [
            [[20, 40], [120, 4], [130, 30], [30, 66]],
            [[150, 90], [199, 80], [199, 110], [150, 118]],
        ]
        for request in batch:
            lines = [{"quad": quad, "label": "a tilted line"} for quad in quads]
            request["result"] = {"lines": lines}


def test_a_label_lies_on_a_ground_at_the_highest_corner_and_no_box_goes_through_it(
    tmp_path, picture
):
    with (
        Server({"squares": {"backend": "PageLabels"}}, port=0, ui=True) as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.open(f"{server.url}/ui")
        tab.wait(SQUARES)
        tab.choose_file("[data-model='squares:1'] input[type=file]", picture)
        tab.wait(f"{SQUARES}.querySelector('canvas.boxes')")
        pixels = (
            f"const at = (x, y, w, h) => [...{SQUARES}.querySelector('canvas.boxes').getContext('2d').getImageData(x, y, w, h).data];"
            "const rows = (list, w) => list.reduce((all, value, n) => { if (n % 4 === 0) all.push([value, list[n + 1], list[n + 2]]); return all; }, []);"
        )
        ground = [216, 27, 96]
        # The first label begins above or at its highest corner (120, 4), and is cut off by no border.
        found = tab.run(pixels + "return rows(at(121, 1, 60, 16))")
        assert found.count(ground) > 0.5 * len(found)
        assert any(min(one) > 200 for one in found)
        # Where no label is, the box that was drawn there is a line: its first corner has no ground above it.
        assert tab.run(pixels + "return rows(at(14, 18, 8, 8))").count(ground) == 0
        # The second would leave the picture on the right: it is moved to the left, and ends at the border.
        found = tab.run(pixels + "return rows(at(140, 62, 60, 14))")
        assert found.count(ground) > 0.5 * len(found)
        assert tab.errors == []


@pytest.mark.parametrize("form", ["file", "tensors"])
def test_the_classes_of_a_classifier_are_bars_with_names_and_scores(form, tmp_path):
    names = {"labels": ["cat", "dog", "cow"], "backend": "S[Softmax,TopK(2)]"}
    ports = {"inputs": {"x": {"datatype": "FP32", "shape": [3], "key": "data"}}}
    models = {
        "tensors": {"sum": {"config": names, **ports}},
        "file": {"sum": {"scores": {"backend": "PageScores", "next": "names"}, "names": names}},
    }[form]
    with (
        Server(models, port=0, ui=True) as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.open(f"{server.url}/ui")
        tab.wait(SUM)
        if form == "file":
            drop(tab, "scores.txt", b"0 1.0986122886681098 0", "text/plain", SUM)
        else:
            tab.run(
                f"{SUM}.querySelector('textarea').value = '[0, 1.0986122886681098, 0]'; {SUM}.querySelector('button').click()"
            )
        tab.wait(f"{SUM}.querySelector('.ranked')")
        assert tab.run(f"return [...{SUM}.querySelectorAll('.ranked dt, .ranked .score')].map((e) => e.textContent)") == [
            "dog", "60.0 %", "cat", "20.0 %",
        ]  # fmt: skip
        first, second = tab.run(
            f"return [...{SUM}.querySelectorAll('.ranked i')].map((e) => e.getBoundingClientRect().width)"
        )
        assert first == pytest.approx(3 * second, rel=0.02)
        assert not tab.run(f"return {SUM}.querySelector('.values pre')")
        assert tab.errors == []


def test_a_picture_that_is_dropped_is_sent_too(page, picture):
    drop(page, "dropped.png", picture.read_bytes(), "image/png")
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
    # Every word of a cell stands on one line.
    broken = page.run(
        "const range = document.createRange(), lines = (node, from, to) => {"
        "  range.setStart(node, from); range.setEnd(node, to);"
        "  return new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size };"
        "return [...document.querySelectorAll('#failures th, #failures td')].flatMap((cell) => cell.firstChild"
        "  ? [...cell.textContent.matchAll(/[\\w:.]+/g)].filter((word) =>"
        "      lines(cell.firstChild, word.index, word.index + word[0].length) > 1).map((word) => word[0]) : [])"
    )
    assert broken == []


def test_a_request_that_its_client_gave_up_is_no_failure(tmp_path):
    with (
        Server({"held": {"backend": "PageHeld"}}, port=0, ui=True) as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.open(f"{server.url}/ui")
        tab.wait("document.body.dataset.updates >= 2")
        # A load test that ends gives up what is on its way.
        load = "return (await fetch(`ui/load/held?to=/run/held&clients={}`, {{ method: 'POST', body: 'x' }})).status"
        try:
            assert tab.run(load.format(5)) == 200
            assert Held.begin.wait(300)
            # The batch that runs is seen while it runs: in the bar of its instance, and as a bar of the last seconds.
            tab.wait("document.querySelector('rect.busy').width.baseVal.value > 20")
            inside = "[...document.querySelector('.timeline').getContext('2d').getImageData({}, 8, 1, 1).data].join()"
            tab.wait(
                "(() => { const wide = document.querySelector('.timeline').width, at = (x) =>"
                f" {inside.format('Math.round(x * wide)')}; return at(0.985) !== at(0.01) && at(0.97) === at(0.985) }})()"
            )
            limit = tab.wait(
                "document.querySelector('rect.limiting') && document.querySelector('.limit').textContent"
            )
            assert limit.startswith("main is the limit: its instance is busy for 100 % of the time")
            assert tab.run(load.format(0)) == 200
        finally:
            Held.end.set()
        tab.wait("document.querySelector('.ended').textContent.endsWith('5 cancelled')")
        updates = tab.run("return document.body.dataset.updates")
        tab.wait(f"document.body.dataset.updates > {updates}")
        assert tab.run("return document.querySelector('.errors').textContent") == ""
        assert not tab.run("return document.querySelector('rect.failing')")
        assert tab.run("return document.getElementById('failures').hidden")


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


def test_without_prometheus_client_there_is_no_link_to_metrics(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        Server({"m": {"backend": "Identity"}}, port=0, ui=True) as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.open(f"{server.url}/ui")
        tab.wait("document.body.dataset.updates >= 1")
        shown = "return [...document.querySelectorAll('nav a')].filter((e) => e.checkVisibility()).map((e) => e.href)"
        links = tab.run(shown)
        assert len(links) == 2
        assert [httpx.get(one).status_code for one in links] == [200, 200]
        assert httpx.get(f"{server.url}/metrics").status_code >= 400


def test_an_example_is_clicked_and_its_boxes_lie_beside_the_values(picture, tmp_path):
    folder = tmp_path / "examples"
    folder.mkdir()
    picture.rename(folder / "three squares.png")
    (folder / "note.txt").write_text("no picture")
    with (
        Server(MODELS, port=0, ui=True, examples=folder) as server,
        browser.opened(tmp_path / "profile") as tab,
    ):
        tab.look(1280)
        tab.open(f"{server.url}/ui")
        tab.wait(SQUARES)
        assert tab.wait(f"{SQUARES}.querySelector('.examples img')?.alt") == "three squares.png"
        # Its name stands below it, and it is sent without a click: the page has an answer to look at.
        seen = f"return [...{SQUARES}.querySelectorAll('.examples span')].map((e) => e.checkVisibility() && e.textContent)"
        assert tab.run(seen) == ["note.txt", "three squares.png"]
        assert tab.wait(f"{SQUARES}.querySelector('canvas.boxes')?.dataset.boxes") == "3"
        tab.run(f"{SQUARES}.querySelector('.answer').replaceChildren()")
        # A tensor of numbers is no picture: this model is offered nothing.
        assert not tab.run(f"return {SUM}.querySelector('.examples')")
        tab.run(f"{SQUARES}.querySelector('.examples img').closest('button').click()")
        assert tab.wait(f"{SQUARES}.querySelector('canvas.boxes')?.dataset.boxes") == "3"
        place = f"return {SQUARES}.querySelector('{{}}').getBoundingClientRect().{{}}"
        assert tab.run(place.format("canvas.boxes", "right")) < tab.run(
            place.format(".values", "left")
        )
        assert tab.run(place.format("canvas.boxes", "bottom")) > tab.run(
            place.format(".values", "top")
        )
        tab.look(390, 844)
        assert tab.run(place.format("canvas.boxes", "bottom")) <= tab.run(
            place.format(".values", "top")
        )
        assert tab.run("return document.documentElement.scrollWidth") == 390
        assert tab.errors == []
        tab.run(f"{SQUARES}.querySelector('.examples button:not(:has(img))').click()")
        assert "this is no picture" in tab.wait(
            f"{SQUARES}.querySelector('.answer .error')?.textContent"
        )


def contrast(tab, selector):
    """The contrast of each text of the page to what is behind it, as WCAG counts it."""
    return tab.run(
        "const parts = (text) => text.match(/[\\d.]+/g).map(Number);"
        "const light = (colour) => parts(colour).slice(0, 3).map((one) => one / 255)"
        "  .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)"
        "  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);"
        "const behind = (e) => { while ((parts(getComputedStyle(e).backgroundColor)[3] ?? 1) === 0) e = e.parentElement;"
        "  return getComputedStyle(e).backgroundColor };"
        f"return [...document.querySelectorAll({selector!r})].map((e) => {{"
        "  const two = [getComputedStyle(e).color, behind(e)].map(light).sort((a, b) => b - a);"
        "  return [e.className || e.tagName, (two[0] + 0.05) / (two[1] + 0.05)] })"
    )


@pytest.mark.parametrize("dark", [False, True])
def test_texts_can_be_read_and_fields_have_names(page, dark):
    page.look(1280, dark=dark)
    found = contrast(
        page, "h1, h2, h3, small, .badge, .limit, .summary, .drop, button, nav a, .count"
    )
    assert len(found) > 15
    assert [one for one in found if one[1] < 4.5] == []
    named = "(e.ariaLabel || e.labels?.[0]?.textContent || e.textContent).trim()"
    assert (
        page.run(
            f"return [...document.querySelectorAll('input, textarea, button, canvas')].filter((e) => !{named}).length"
        )
        == 0
    )


PAGES = ROOT / "examples" / "ocr"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_example_of_the_pages_that_are_read_is_clicked_and_has_boxes(tmp_path):
    pytest.importorskip("rapidocr")
    made = tmp_path / "made"
    subprocess.run(
        [sys.executable, PAGES / "prepare.py", "--into", made], check=True, capture_output=True
    )
    configuration = (PAGES / "page.toml").read_text(encoding="utf-8")
    for name in ("ctc.py", "detector.py", "page.py"):
        shutil.copyfile(PAGES / name, tmp_path / name)
    (tmp_path / "page.toml").write_text(configuration, encoding="utf-8")
    command = ["ui", "page.toml", "--examples", "made/pages", "--port", "0"]
    with (
        subprocess.Popen(
            [sys.executable, "-m", "headrace", *command],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        browser.opened(tmp_path / "profile") as tab,
    ):
        lines = iter(process.stderr.readline, "")
        url = next(found[1] for one in lines if (found := re.search(r"live page at (\S+)/ui", one)))
        tab.send("Page.navigate", url=url)
        example = "document.querySelector('.examples img[alt=\"form.png\"]')"
        tab.wait(f"{example} && location.pathname === '/ui'")
        tab.run(f"{example}.closest('button').click()")
        # The form has nine rows of two or three columns.
        assert 18 <= int(tab.wait("document.querySelector('canvas.boxes')?.dataset.boxes")) <= 30
        assert "Invoice No." in tab.run("return document.querySelector('.values').innerText")
        # A page that is dropped, too.
        path = made / "pages" / "label.png"
        tab.run(
            "const data = new DataTransfer();"
            f"const bytes = Uint8Array.from({list(path.read_bytes())});"
            "data.items.add(new File([bytes], 'label.png', { type: 'image/png' }));"
            "document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));"
        )
        tab.wait("document.querySelector('.values')?.innerText.includes('FRAGILE')")
        assert tab.run("return document.querySelector('canvas.boxes').dataset.boxes") == "1"
        assert tab.errors == []
        process.terminate()
        assert process.wait(300) == 0


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
