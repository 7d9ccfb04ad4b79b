"""The part of docs/operating.md about measuring is followed, each command for as short as it can be."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import metadata
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from headrace_cli.app import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
PART = re.search(r"## Measure.*?(?=## Watch)", PAGE, re.DOTALL)[0]
SHORT = {
    "bench": ["--seconds", "0.05", "--warm-up", "0"],
    "observe inspect": ["--sizes", "1,2"],
    "simulate": ["--requests", "200"],
    "tune": ["--seconds", "0.3", "--warm-up", "0", "--trials", "2", "--clients", "2"],
}


def test_the_part_about_measuring_is_followed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (configuration,) = re.findall(r"```toml\n(.*?)```", PART, re.DOTALL)
    (tmp_path / "resize.toml").write_text(configuration)
    (tmp_path / "photos").mkdir()
    for k in range(3):
        picture = np.full((90, 120, 3), 40 * k, np.uint8)
        cv2.imwrite(str(tmp_path / "photos" / f"{k}.jpg"), picture)
    lines = "".join(re.findall(r"```console\n(.*?)```", PART, re.DOTALL)).splitlines()
    followed = []
    for line in lines:
        # On a machine ten times slower the goal is reached, too.
        words = shlex.split(line.removeprefix("$ ").replace("50ms", "1000s"))
        into = words[words.index(">") + 1] if ">" in words else None
        args = words[1 : words.index(">")] if into else words[1:]
        command = " ".join(args[: 2 if args[0] == "observe" else 1])
        done = CliRunner().invoke(app, [*args, *SHORT[command]])
        assert done.exit_code == 0, f"{line}\n{done.output}"
        if into:
            (tmp_path / into).write_text(done.stdout)
        followed.append(command)
    measured = ["bench", "bench", "observe inspect", "simulate", "tune", "bench"]
    assert followed == measured
    assert '"resize"' in (tmp_path / "times.jsonl").read_text()
    assert "extends = " in (tmp_path / "tuned.toml").read_text()
    assert (tmp_path / "frontier.html").exists()


def test_the_extras_that_it_names_are_there_and_enough():
    head = PAGE.partition("\n## ")[0]
    installed = set(re.search(r"headrace-observe\[([\w,]+)\]", head)[1].split(","))
    others = re.search(r"`(\w+)` and `(\w+)` are two more extras", head).groups()
    assert installed.union(others) == {*metadata("headrace-observe").get_all("Provides-Extra")}
    assert {"plot", "simulate"} <= installed  # of --plot and of simulate, which follow
