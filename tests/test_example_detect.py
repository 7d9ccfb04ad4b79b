"""The example that finds lines of text with an engine, from its own files and commands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import tomllib
from pages import ROOT, Page, copy_examples, run, shell

pytestmark = pytest.mark.slow

README = Page("examples/detect/README.md")
DETECT, OCR = ROOT / "examples" / "detect", ROOT / "examples" / "ocr"


def load(path: Path):
    """Import a script of the examples, which lie in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """A copy of both examples with the models, but no pages."""
    if importlib.util.find_spec("rapidocr") is None:
        pytest.skip("rapidocr, which brings the models, is not installed")
    folder = copy_examples(tmp_path_factory.mktemp("repository"), "detect", "ocr")
    made = folder / "examples" / "ocr" / "made"
    load(OCR / "prepare.py").copy_models(made / "models")
    (folder / "examples" / "detect" / "made").mkdir()
    (folder / "examples" / "detect" / "made" / "models").symlink_to(made / "models")
    return folder


@pytest.fixture(scope="module")
def built(example) -> dict:
    """What the command of the README says of the engine that it built."""
    pytest.importorskip("tensorrt_rtx")
    quickly = "--set optimization_level=0 --set library=tensorrt_rtx --json"
    return json.loads(run(f"{README.command('headrace trt build')} {quickly}", example))


def test_the_detector_is_built_with_dynamic_height_and_width(built, example):
    assert built["profiles"][0]["x"]["min"] == [1, 32, 32, 3]
    assert built["profiles"][0]["x"]["max"] == [1, 2944, 2944, 3]
    assert set(built["layers_by_type"]) == {"fp32"}
    plan = example / "examples" / "detect" / "made" / "det.plan"
    assert plan.stat().st_size == built["bytes"]


@pytest.mark.parametrize(
    ("look", "says"),
    [("check", "ok: 3 nodes"), ("explain", "LoadTensorrtEngine  headrace-trt")],
)
def test_the_pipeline_is_looked_at_without_a_device(built, example, look, says):
    assert says in run(README.command(f"headrace {look} examples/detect/"), example)


def with_first_kernels(config: Path) -> str:
    """Return a configuration whose engines are built of the first kernels that work."""
    before, found, after = config.read_text(encoding="utf-8").partition("global = {")
    assert found
    return f"{before}{found} optimization_level = 0,{after}"


def test_five_lines_move_the_pages_to_tensorrt(example):
    file = OCR / "page_trt.toml"
    found = tomllib.loads(file.read_text(encoding="utf-8"))
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5
    base = tomllib.loads((OCR / "page.toml").read_text(encoding="utf-8"))
    assert found["extends"] == "page.toml"
    for node in ("detect", "upright", "read"):
        plain = re.sub(r"\(.*?\)", "", found[node]["backend"])
        assert plain == base[node]["backend"].replace("OnnxTensor", "TensorrtTensor")
    (example / "examples" / "ocr" / "quick.toml").write_text(with_first_kernels(file))
    for name in (file.name, "quick.toml"):
        assert run(f"headrace check examples/ocr/{name}", example)


@pytest.mark.parametrize(("node", "model"), [("upright", "cls"), ("read", "rec")])
def test_the_other_networks_of_a_page_are_built(example, node, model):
    pytest.importorskip("tensorrt_rtx")
    from headrace_trt import BuildSettings, build_plan

    config = tomllib.loads((OCR / "page_trt.toml").read_text(encoding="utf-8"))
    settings = BuildSettings(
        model=example / "examples" / "ocr" / "made" / "models" / f"{model}.onnx",
        library="tensorrt_rtx",
        precision=config["global"].get("precision", "model"),
        profiles=tuple(config[node]["profiles"]),
        optimization_level=0,
    )
    built = build_plan(settings)
    assert built.profiles[0].ranges["x"].text().startswith(config[node]["profiles"][0]["min"][2:])
    assert settings.precision == "model" or settings.precision in built.describe()["layers_by_type"]


SQUARE = [[0, 0], [10, 0], [10, 10], [0, 10]]
HALF = [[5, 0], [15, 0], [15, 10], [5, 10]]
FAR = [[100, 100], [110, 100], [110, 110], [100, 110]]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([SQUARE], [SQUARE], [1.0]),
        ([SQUARE], [HALF], [50 / 150]),
        ([SQUARE], [FAR], [0.0, 0.0]),  # two boxes without a partner
        ([HALF, SQUARE], [SQUARE], [1.0, 0.0]),  # the better pair is taken
        ([], [SQUARE], [0.0]),
        ([], [], []),
    ],
)
def test_boxes_are_paired_by_their_overlap(ours, theirs, expected):
    overlaps = load(DETECT / "compare_boxes.py").overlaps
    assert overlaps(ours, theirs) == pytest.approx(expected)


def test_boxes_around_lines_are_found_compared_and_drawn(example, tmp_path):
    """With ONNX Runtime: what is around the engine is the same."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (700, 300), "white")
    for top in (40, 180):
        ImageDraw.Draw(page).text((60, top), "Gathered", "black", ImageFont.load_default(60))
    pages = tmp_path / "pages"
    pages.mkdir()
    page.save(pages / "page.png")
    folder = example / "examples" / "detect"
    line = f"headrace run --json {folder}/detect_onnx.toml {pages} | tee {tmp_path}/boxes.jsonl"
    done = shell(line, tmp_path)
    upper, lower = json.loads(done.stdout)["result"]["boxes"]
    for box, top in ((upper, 40), (lower, 180)):
        assert 30 < min(x for x, _ in box) < 65
        assert top - 15 < min(y for _, y in box) < max(y for _, y in box) < top + 100
    drawn = shell(f"python {folder}/draw.py {tmp_path}/boxes.jsonl --into {tmp_path}/out", tmp_path)
    assert drawn.stdout == f"{tmp_path}/out/page.png: 2 boxes\n"
    with Image.open(tmp_path / "out" / "page.png") as picture:
        x, y = upper[0]
        assert picture.getpixel((round(x) + 5, round(y))) == (220, 50, 47)
    same = f"--pages {pages} --config {folder}/detect_onnx.toml"
    done = shell(f"python {folder}/compare_boxes.py {same}", tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "mean IoU 1.0000 (wanted 0.99) on 1 pages",
    )


KEPT = {
    "form.png",
    "label.png",
    "letter-grain.jpg",
    "letter-tilted.png",
    "letter.png",
    "scan-page.png",
    "slide.png",
    "strip.png",
    "without-text.png",
}
"""Pages that a device is tried with: every size and kind, and not the thirty of the whole set."""


def quick(command: str) -> str:
    """Return the command with which a builder takes the first kernel that works, not the fastest."""
    return f"{command} --set optimization_level=0" if "headrace trt build" in command else command


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_every_command_of_the_readme_on_a_device(example, tmp_path):
    """Boxes within 0.99 of ONNX Runtime's, text within 0.5 % of its characters."""
    for needed in ("skimage", "typer", "rich"):
        pytest.importorskip(needed)
    from headrace_trt.libraries.cuda import load_cuda

    if not load_cuda().device_count():
        pytest.skip("no CUDA device")
    config = example / "examples" / "ocr" / "page_trt.toml"
    config.write_text(with_first_kernels(config))
    for command in README.commands:
        if command.startswith("pip install"):
            continue
        run(quick(command), example, limit_s=250, HEADRACE_TRT_CACHE=str(tmp_path))
        if "prepare.py" in command:
            pages = list(example.glob("examples/*/made/pages/*"))
            assert {page.name for page in pages} >= KEPT
            for page in pages:
                if page.name not in KEPT:
                    page.unlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="waits for a command by a named pipe")
def test_a_command_that_takes_too_long_ends_with_what_it_printed(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "waits")
    communicate = subprocess.Popen.communicate

    def too_long(process, *_, **__):
        """Let the time be over as soon as the command waits."""
        (tmp_path / "waits").read_bytes()
        monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
        raise subprocess.TimeoutExpired("", 2)

    monkeypatch.setattr(subprocess.Popen, "communicate", too_long)
    program = (
        "def wait_forever(): print('now', flush=True); open('waits', 'w').close(); "
        "import threading; threading.Event().wait()"
    )
    with pytest.raises(AssertionError, match=r"(?s)more than 2 s.*now.*in wait_forever"):
        shell(f'python -c "{program}\nwait_forever()" ; true', tmp_path, limit_s=2)
