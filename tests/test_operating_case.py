"""The worked case of docs/operating.md is followed, each command for as short as it can be, on two pages."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
CASE = PAGE[PAGE.index("## A case: reading whole pages") :]
SHORT = {
    "bench": [["--seconds", "0.05", "--warm-up", "0"]],
    "trace": [[]],
    # At least one page has to be answered: longer where a slow machine answered none.
    "tune": [["--seconds", seconds, "--warm-up", "0"] for seconds in ("1", "6", "48")],
}


@pytest.fixture
def pages(ocr_made, tmp_path, monkeypatch):
    """The example with two of its pages, below the working directory."""
    pytest.importorskip("matplotlib")
    example = tmp_path / "examples" / "ocr"
    example.mkdir(parents=True)
    for file in ("page.toml", "ctc.py", "detector.py", "page.py"):
        shutil.copyfile(ROOT / "examples" / "ocr" / file, example / file)
    (example / "made").mkdir()
    (example / "made" / "models").symlink_to(ocr_made / "models")
    (example / "made" / "pages").mkdir()
    for name in ("1.png", "2.png"):  # a page with two lines, which takes least
        page = ocr_made / "pages" / "scan-motorcycle_left.png"
        shutil.copyfile(page, example / "made" / "pages" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_case_is_followed(pages):
    (configuration,) = re.findall(r"```toml\n(.*?)```", CASE, re.DOTALL)
    (pages / "first.toml").write_text(configuration)
    lines = "".join(re.findall(r"```console\n(.*?)```", CASE, re.DOTALL)).splitlines()
    followed = []
    for line in lines:
        # One client and one combination; a slow machine answers nothing in so short a time.
        line = line.replace("; failed < 1%", "").replace("--trials 13", "--trials 1")
        line = line.replace("--seconds 12", "").replace("--clients 1,4", "--clients 1")
        line = line.replace("--clients 4", "--clients 1")
        words = shlex.split(line.removeprefix("$ "))
        args = words[1:]
        for short in SHORT[args[0]]:
            done = CliRunner().invoke(app, [*args, *short])
            if "measure longer" not in done.output:
                break
        assert done.exit_code == 0, f"{line}\n{done.output}"
        followed.append(args[0])
    assert followed == ["bench", "trace", "tune", "bench"]
    traced = json.loads((pages / "pages.json").read_text())["traceEvents"]
    assert sum(one.get("name") == "batch of detect" for one in traced) == 2
    assert 'extends = "first.toml"' in (pages / "tuned.toml").read_text()
    assert {"first.toml", "tuned.toml"} <= set(done.output.split()), done.output


def test_its_pictures_are_there_and_small():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", CASE)
    assert len(pictures) == 2
    for one in pictures:
        assert 1000 < (ROOT / "docs" / one).stat().st_size < 200_000
