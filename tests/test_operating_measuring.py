"""What docs/operating.md measures, and its worked case on two pages, is followed, each command for as short as it can be."""

from __future__ import annotations

import json
import re
import shutil
from importlib.metadata import metadata

import cv2
import numpy as np
import pytest
from pages import ROOT, Page, run_here

pytestmark = pytest.mark.slow

MEASURING = Page("docs/operating.md", "Measure, find the limit, tune")
CASE = Page("docs/operating.md", "A case: reading whole pages")
SHORT = {
    "bench": ["--seconds", "0.05", "--warm-up", "0"],
    "observe inspect": ["--sizes", "1,2"],
    "simulate": ["--requests", "200"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory."""
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_part_about_measuring_is_followed(folder):
    MEASURING.write(folder)
    (folder / "photos").mkdir()
    for k in range(3):
        picture = np.full((90, 120, 3), 40 * k, np.uint8)
        cv2.imwrite(str(folder / "photos" / f"{k}.jpg"), picture)
    quick = ["--seconds", "0.3", "--warm-up", "0", "--trials", "2", "--clients", "2"]
    for command in MEASURING.commands:
        # On a machine ten times slower the goal is reached, too.
        run_here(command.replace("50ms", "1000s"), {**SHORT, "tune": quick})
    assert '"resize"' in (folder / "times.jsonl").read_text()
    assert json.loads((folder / "bench.json").read_text())
    assert "extends = " in (folder / "tuned.toml").read_text()
    assert (folder / "frontier.html").exists()


def test_the_case_is_followed(ocr_made, folder):
    example = folder / "examples" / "ocr"
    example.mkdir(parents=True)
    for file in ("page.toml", "ctc.py", "detector.py", "page.py"):
        shutil.copyfile(ROOT / "examples" / "ocr" / file, example / file)
    (example / "made" / "pages").mkdir(parents=True)
    (example / "made" / "models").symlink_to(ocr_made / "models")
    for name in ("1.png", "2.png"):  # a page with two lines, which takes least
        page = ocr_made / "pages" / "scan-motorcycle_left.png"
        shutil.copyfile(page, example / "made" / "pages" / name)
    CASE.write(folder)
    for line in CASE.commands:
        # One client and one combination; a slow machine answers nothing in so short a time.
        command = line.replace("; failed < 1%", "").replace("--trials 13", "--trials 1")
        command = re.sub(r"--clients [\d,]+", "--clients 1", command.replace("--seconds 12", ""))
        for seconds in ("1", "6", "48"):  # longer where a slow machine answered none
            try:
                said = run_here(
                    command, {**SHORT, "tune": ["--seconds", seconds, "--warm-up", "0"]}
                )
            except AssertionError as error:
                if "measure longer" not in str(error) or seconds == "48":
                    raise
            else:
                break
    traced = json.loads((folder / "pages.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "batch of detect" for event in traced) == 2
    assert 'extends = "first.toml"' in (folder / "tuned.toml").read_text()
    assert {"first.toml", "tuned.toml"} <= set(said.split()), said


def test_its_pictures_are_there_and_small():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", CASE.text)
    assert len(pictures) == 2
    for picture in pictures:
        assert 1000 < (ROOT / "docs" / picture).stat().st_size < 200_000


def test_the_extras_that_it_names_are_there_and_enough():
    head = Page("docs/operating.md").text.partition("\n## ")[0]
    installed = set(re.search(r"headrace-observe\[([\w,]+)\]", head)[1].split(","))
    others = re.search(r"`(\w+)` and `(\w+)` are two more extras", head).groups()
    assert installed.union(others) == {*metadata("headrace-observe").get_all("Provides-Extra")}
    assert {"plot", "simulate"} <= installed  # of --plot and of simulate, which follow
