"""Pages whose files are written and whose commands are run, in an environment of wheels."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"),
]


@pytest.fixture
def work(tmp_path) -> Path:
    """A folder with pictures in it."""
    import cv2
    import numpy as np

    folder = tmp_path / "work"
    (folder / "photos").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg", "c.png"):
        cv2.imwrite(str(folder / "photos" / name), np.full((400, 600, 3), 100, np.uint8))
    return folder


def test_the_page_about_hooks(follow, environment, work):
    _, info, listed, explained, printed, slowest = follow(
        DOCS / "hooks.md", work, environment / "bin"
    )
    assert info.startswith("headrace-watch 0.1.0: ok")
    assert "ok: " in listed
    assert "headrace-watch" in explained
    names = ["photos/a.jpg", "photos/b.jpg", "photos/c.png"]
    assert [line.partition("\t")[0] for line in printed.splitlines()] == names
    rows = [json.loads(line) for line in (work / "slow.jsonl").read_text().splitlines()]
    assert sorted(row["path"] for row in rows) == names
    most = max(rows, key=lambda row: row["ms"])
    assert slowest == f"{most['path']} thumbnail\n"


def test_the_page_about_publishing(follow, environment, work):
    *_, listed = follow(DOCS / "policies.md", work, environment / "bin")
    _, _, rest = listed.partition("\nheadrace-gauss-blur  0.1.0 ")
    row, certificate, *_ = rest.splitlines()
    assert row.split()[1:] == ["ok", "GaussBlur"]
    assert certificate.startswith("    certified by headrace-testing ")
    assert "ok: " in listed
