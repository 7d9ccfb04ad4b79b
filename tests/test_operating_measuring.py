"""The part of docs/operating.md about measuring is followed, each command for as short as it can be."""

from __future__ import annotations

import json
import re
from importlib.metadata import metadata

import cv2
import numpy as np
import pytest
from pages import Page, run_here

pytestmark = pytest.mark.slow

MEASURING = Page("docs/operating.md", "Measure, find the limit, tune")
SHORT = {
    "bench": ["--seconds", "0.05", "--warm-up", "0"],
    "observe inspect": ["--sizes", "1,2"],
    "simulate": ["--requests", "200"],
    "tune": ["--seconds", "0.3", "--warm-up", "0", "--trials", "2", "--clients", "2"],
}


def test_the_part_about_measuring_is_followed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(MEASURING.write(tmp_path))
    (tmp_path / "photos").mkdir()
    for k in range(3):
        picture = np.full((90, 120, 3), 40 * k, np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / f"{k}.jpg"), picture)
    for command in MEASURING.commands:
        # On a machine ten times slower the goal is reached, too.
        run_here(command.replace("50ms", "1000s"), SHORT)
    assert '"resize"' in (tmp_path / "times.jsonl").read_text()
    assert json.loads((tmp_path / "bench.json").read_text())
    assert "extends = " in (tmp_path / "tuned.toml").read_text()
    assert (tmp_path / "frontier.html").exists()


def test_the_extras_that_it_names_are_there_and_enough():
    head = Page("docs/operating.md").text.partition("\n## ")[0]
    installed = set(re.search(r"headrace-observe\[([\w,]+)\]", head)[1].split(","))
    others = re.search(r"`(\w+)` and `(\w+)` are two more extras", head).groups()
    assert installed.union(others) == {*metadata("headrace-observe").get_all("Provides-Extra")}
    assert {"plot", "simulate"} <= installed  # of --plot and of simulate, which follow
