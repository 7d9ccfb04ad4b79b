"""The example that reads whole pages, from its own files, as a user would run it."""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gallery
import pytest
from pages import copy_examples
from processes import run_process
from test_example_ocr import edits
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app

pytestmark = pytest.mark.slow

PAGES = ("letter.png", "form-tilted.webp", "strip.png", "label.png")
MORE_PAGES = ("german.png", "scan-page.png")


@pytest.fixture(scope="module")
def example(ocr_made, tmp_path_factory) -> Path:
    """A copy of the example, prepared: its configuration is used as it is."""
    folder = copy_examples(tmp_path_factory.mktemp("ocr"), "ocr") / "examples" / "ocr"
    shutil.copytree(ocr_made, folder / "made")
    return folder


@pytest.fixture(scope="module")
def pipe(example):
    with headrace.pipe(str(example / "page.toml")) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def pages(example, pytestconfig) -> dict[str, bytes]:
    names = PAGES + (MORE_PAGES if pytestconfig.getoption("--stress") else ())
    return {name: (example / "made" / "pages" / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def results(pipe, pages) -> dict[str, dict]:
    return {name: pipe({"data": page})["result"] for name, page in pages.items()}


def test_the_pages_written_as_a_script_are_the_same(example, pages, results):
    with headrace.pipe(str(example / "page_script.toml")) as pipe:
        futures = pipe.submit([{"data": page} for page in pages.values()])
        found = [future.result(600)["result"] for future in futures]
    assert json.dumps(found) == json.dumps(list(results.values()))
    page = example / "made" / "pages" / "label.png"
    done = CliRunner().invoke(app, ["run", str(example / "page_script.toml"), str(page)])
    assert done.exit_code == 0, done.output
    assert "FRAGILE" in done.output


@pytest.fixture
def backend(example):
    """A function that runs one of the example's backends on one request."""

    def run(expression: str, request: dict) -> dict:
        imports = [str(example / name) for name in ("detector.py", "page.py")]
        with headrace.pipe({"import": imports, "backend": expression}) as pipeline:
            return pipeline(request)

    return run


def test_the_gallery_shows_the_graph_as_the_command_draws_it(example):
    done = CliRunner().invoke(app, ["explain", str(example / "page.toml"), "--graph", "mermaid"])
    assert done.stdout in gallery.page()
    assert gallery.graphs()["page.mmd"] == done.stdout


def test_the_text_and_the_boxes_are_those_of_rapidocr(pages, results):
    from rapidocr import RapidOCR

    # One thread: several that wait for each other in a loop stand still on a busy machine.
    one_thread = {"EngineConfig.onnxruntime.intra_op_num_threads": 1}
    engine = RapidOCR(params={"Global.log_level": "error", **one_thread})
    wrong = characters = 0
    for name, page in pages.items():
        theirs, ours = engine(page), results[name]
        text = "\n".join(theirs.txts)
        wrong, characters = wrong + edits(ours["text"], text), characters + len(text)
        quads = [line["quad"] for line in ours["lines"]]
        assert quads == pytest.approx(theirs.boxes.round(1), abs=0.2), name
    assert characters > 700
    assert wrong / characters <= 0.01


def test_what_was_drawn_is_read(results):
    letter = results["letter.png"]
    assert letter["text"] == "\n".join(line["text"] for line in letter["lines"])
    assert letter["text"].startswith("The headrace is the channel that brings water, gathered and")
    assert results["label.png"]["text"] == "FRAGILE"
    texts = [line["text"] for line in results["form-tilted.webp"]["lines"]]
    assert texts[:2] == ["Invoice No.", "2024-00173"]
    assert "$1,904.77" in texts
    assert all(0.5 <= line["confidence"] <= 1 for r in results.values() for line in r["lines"])


def test_a_result_is_json(results):
    assert json.loads(json.dumps(results)) == results


def test_an_empty_page_has_no_text(pipe, example):
    page = (example / "made" / "pages" / "without-text.png").read_bytes()
    assert pipe({"data": page})["result"] == {"text": "", "lines": []}


def test_pages_that_were_turned_are_read_as_well(pipe, example):
    for name in ("letter-on-its-head.png", "letter-on-its-side.png"):
        page = (example / "made" / "pages" / name).read_bytes()
        assert "A mill needs less: one wheel, two stones" in pipe({"data": page})["result"]["text"]


def test_threads_agree_with_one_by_one(pipe, pages, results):
    names = ("form-tilted.webp", "label.png", "strip.png", "label.png")
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda name: pipe({"data": pages[name]}), names))
    texts = [answer["result"]["text"] for answer in answers]
    assert texts == [results[name]["text"] for name in names]


def test_a_cut_off_page_fails_alone(pipe, pages, results):
    requests = [{"data": pages["label.png"]}, {"data": pages["letter.png"][:900]}]
    with pytest.raises(headrace.errors.RequestsFailed) as failed:
        pipe(requests)
    assert failed.value.errors[0] is None
    assert isinstance(failed.value.errors[1], headrace.errors.InputError)
    assert requests[0]["result"] == results["label.png"]


def test_boxes_of_a_map_are_grown_and_in_reading_order(backend):
    import numpy as np

    text = np.zeros((1, 320, 640), np.float32)
    cores = [(340, 40, 600, 60), (20, 42, 300, 62), (20, 200, 300, 220)]  # left, top, right, bottom
    for left, top, right, bottom in cores:
        text[0, top:bottom, left:right] = 0.9
    text[0, 280:300, 20:300] = 0.4  # above the threshold of pixels, below that of boxes
    text[0, 100:102, 400:402] = 0.9  # a speck
    quads = backend("DbBoxes", {"data": text, "page_size": (640, 1280)})["result"]
    assert [quad.dtype for quad in quads] == [np.float32] * 3
    for quad, core in zip(quads, [cores[1], cores[0], cores[2]], strict=True):
        left, top, right, bottom = (2 * side for side in core)
        grown = 1.6 * (right - left) * (bottom - top) / (2 * (right - left + bottom - top))
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        sides = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * grown
        assert quad == pytest.approx(np.clip(corners + sides, 0, [1279, 639]), abs=5)


@pytest.mark.parametrize(
    ("size", "fitted", "top"),
    [
        ((400, 600), (400, 600), 0),
        ((3000, 1500), (1984, 992), 0),  # at most 2000, multiples of 32
        ((20, 100), (32, 160), 0),
        ((60, 1400), (350, 1400), 145),  # space above and below
        ((20, 10000), (496, 1984), 232),
        ((1, 500), (496, 1984), 232),  # enlarged, but at most 2000
        ((500, 1), (1984, 32), 0),
    ],
)
def test_pages_are_fitted_and_boxes_find_back(backend, size, fitted, top):
    import numpy as np

    answer = backend("FitPage", {"data": np.full((*size, 3), 255, np.uint8)})
    page, fit = answer["result"], answer["fit"]
    assert page.shape == (*fitted, 3)
    assert fit.top == top
    height, width = fitted
    corners = np.float32([[0, top], [width, top], [width, height - top], [0, height - top]])
    h, w = size
    assert fit.to_picture(corners) == [[0, 0], [w, 0], [w, h], [0, h]]


@pytest.mark.parametrize(
    ("size", "enlarged"),
    [((400, 800), (736, 1472)), ((800, 900), (800, 896)), ((1984, 32), (8000, 128))],
)
def test_the_detector_gets_no_side_too_short_and_none_endless(backend, size, enlarged):
    import numpy as np

    answer = backend("DetectorMat", {"data": np.full((*size, 3), 255, np.uint8)})
    assert answer["result"].shape == (*enlarged, 3)
    assert answer["page_size"] == size


@pytest.mark.parametrize(("wrong", "turned"), [(0.95, True), (0.89, False), (0.1, False)])
def test_a_line_on_its_head_is_turned_where_that_is_sure(backend, wrong, turned):
    import numpy as np

    line = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    request = {"data": np.float32([1 - wrong, wrong]), "line": line}
    result = backend("UprightLine", request)["result"]
    assert (result == (line[::-1, ::-1] if turned else line)).all()


@pytest.mark.parametrize("expression", ["FitPage", "DetectorMat"])
def test_what_is_no_picture_is_an_input_error(backend, expression):
    with pytest.raises(headrace.errors.InputError, match=r"\[H, W, 3\]"):
        backend(expression, {"data": b"text"})


def test_answers_are_drawn(example, results, tmp_path):
    from PIL import Image

    page = example / "made" / "pages" / "label.png"
    answer = json.dumps({"path": str(page), "result": results["label.png"]})
    command = [sys.executable, str(example / "draw.py"), "--into", str(tmp_path)]
    run_process(command, input=answer, check=True)
    with Image.open(page) as picture, Image.open(tmp_path / "label.png") as drawn:
        assert drawn.size == (2 * picture.width, picture.height)
        assert (220, 50, 47) in {colour for _, colour in drawn.getcolors(2**24)}
