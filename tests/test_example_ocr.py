"""The example that reads lines of text, from its own files, as a user would run it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from following import Needs, follow
from pages import Page, copy_examples, run

import headrace

PAGE = Page("examples/ocr/README.md")
EXAMPLE = PAGE.path.parent


@pytest.fixture(scope="module")
def example(ocr_made, tmp_path_factory) -> Path:
    """A copy of the example, prepared: its configuration is used as it is."""
    folder = copy_examples(tmp_path_factory.mktemp("ocr"), "ocr") / "examples" / "ocr"
    shutil.copytree(ocr_made, folder / "made")
    return folder


@pytest.fixture(scope="module")
def pipe(example):
    with headrace.pipe(str(example / "line.toml")) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def lines(example) -> list[tuple[bytes, str]]:
    """Every picture, and what it says."""
    table = (example / "made" / "expected.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines()]
    return [((example / "made" / "lines" / name).read_bytes(), text) for name, text in rows]


@pytest.fixture(scope="module")
def one_by_one(pipe, lines) -> list[dict]:
    return [pipe({"data": picture})["result"] for picture, _ in lines]


def edits(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


@pytest.mark.parametrize(
    ("a", "b", "count"), [("", "ab", 2), ("abc", "abc", 0), ("kitten", "sitting", 3)]
)
def test_edits_counts_what_differs(a, b, count):
    assert edits(a, b) == count == edits(b, a)


@pytest.mark.slow
def test_at_least_97_of_100_characters_are_right(lines, one_by_one):
    characters = sum(len(text) for _, text in lines)
    wrong = sum(edits(r["text"], text) for r, (_, text) in zip(one_by_one, lines, strict=True))
    assert characters > 500
    assert wrong / characters <= 0.03


@pytest.mark.first(
    "the main job: real pictures are read, in a batch as alone, and a bad one fails alone"
)
def test_the_confidence_is_high_where_the_text_is_right(lines, one_by_one):
    for result, (_, text) in zip(one_by_one, lines, strict=True):
        assert 0.0 <= result["confidence"] <= 1.0
        if result["text"] == text:
            assert result["confidence"] > 0.7, text


@pytest.mark.first(
    "the main job: real pictures are read, in a batch as alone, and a bad one fails alone"
)
def test_a_batch_reads_what_single_calls_read(pipe, lines, one_by_one):
    answers = pipe([{"data": picture} for picture, _ in lines[::4]])
    assert [a["result"]["text"] for a in answers] == [r["text"] for r in one_by_one[::4]]
    for answer, alone in zip(answers, one_by_one[::4], strict=True):
        # The network sees the grey at the end of a narrow line, so the numbers move a little.
        assert answer["result"]["confidence"] == pytest.approx(alone["confidence"], abs=0.1)


@pytest.mark.first(
    "the main job: real pictures are read, in a batch as alone, and a bad one fails alone"
)
def test_a_cut_off_picture_fails_alone(pipe, example):
    paths = sorted((example / "made" / "broken").iterdir())
    requests = [{"data": path.read_bytes()} for path in paths]
    with pytest.raises(headrace.errors.RequestsFailed) as failed:
        pipe(requests)
    assert [path.name for path in paths] == ["1-good.jpg", "2-cut-off.jpg", "3-good.jpg"]
    before, cut_off, after = failed.value.errors
    assert before is None
    assert after is None
    assert isinstance(cut_off, headrace.errors.InputError)
    assert requests[0]["result"]["text"] == "The quick brown fox jumps over the lazy dog"
    assert requests[2]["result"]["text"] == "A headrace brings water to the turbine"
    assert "result" not in requests[1]


def test_preparing_twice_gives_the_same_files(example, tmp_path):
    first, again = example / "made", tmp_path / "made"
    shutil.copytree(first, again)
    for path in again.rglob("*.*"):
        path.write_bytes(b"of another version")
    command = [sys.executable, str(EXAMPLE / "prepare.py"), "--into", str(again)]
    subprocess.run(command, check=True, capture_output=True)
    made = {p.relative_to(again): p.read_bytes() for p in again.rglob("*.*")}
    assert made == {p.relative_to(first): p.read_bytes() for p in first.rglob("*.*")}


def test_the_schema_for_editors_accepts_the_configurations():
    jsonschema = pytest.importorskip("jsonschema")
    tomllib = pytest.importorskip("tomllib")
    schema = json.loads(run("headrace schema", EXAMPLE))
    for name in ("line.toml", "page.toml"):
        source = tomllib.loads((EXAMPLE / name).read_text(encoding="utf-8"))
        jsonschema.Draft202012Validator(schema).validate(source)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")
def test_the_readme_is_followed_with_the_smallest_of_its_pages(after_demo):
    pages = after_demo / "examples" / "ocr" / "made" / "pages"
    for page in pages.iterdir():
        if page.name != "label.png":
            page.unlink()
    no_race = {"--rounds 1": "--rounds 0", "form.png": "label.png"}
    prints = {
        "compare.py": r"read the same in (\d+) of \1 pictures",
        "draw.py": "label.png",
        "compare_pages": "rapidocr",
    }
    needs = Needs(changes=no_race, fails="broken", prints=prints, programs=True)
    follow(PAGE, after_demo, needs)
    assert (pages.parent / "drawn" / "label.png").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a pipe of POSIX")
def test_whoever_reads_what_prepare_prints_may_go(tmp_path):
    command = [sys.executable, "-u", EXAMPLE / "prepare.py", "--into", tmp_path / "made"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
