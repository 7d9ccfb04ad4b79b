"""Pages whose files are written and whose commands are run, in an environment of wheels."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from pathlib import Path

import pages
import pytest
from pages import Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"),
]


@pytest.fixture
def follow(environment, pip_environ, tmp_path):
    """A function that follows a page, in a folder with pictures in it."""
    import cv2
    import numpy as np

    (tmp_path / "photos").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg", "c.png"):
        cv2.imwrite(str(tmp_path / "photos" / name), np.full((400, 600, 3), 100, np.uint8))
    return lambda page: pages.follow(Page(page), tmp_path, environment / "bin", pip_environ)


def test_the_page_about_hooks(follow, tmp_path):
    _, info, listed, explained, printed, slowest = follow("docs/hooks.md")
    assert info.startswith("headrace-watch 0.1.0: ok")
    assert "ok: " in listed
    assert "headrace-watch" in explained
    names = ["photos/a.jpg", "photos/b.jpg", "photos/c.png"]
    assert [line.partition("\t")[0] for line in printed.splitlines()] == names
    rows = [json.loads(line) for line in (tmp_path / "slow.jsonl").read_text().splitlines()]
    assert sorted(row["path"] for row in rows) == names
    most = max(rows, key=lambda row: row["ms"])
    assert slowest == f"{most['path']} thumbnail\n"


def test_the_page_about_publishing(follow):
    *_, listed = follow("docs/policies.md")
    _, _, rest = listed.partition("\nheadrace-gauss-blur  0.1.0 ")
    row, certificate, *_ = rest.splitlines()
    assert row.split()[1:] == ["ok", "GaussBlur"]
    assert certificate.startswith("    certified by headrace-testing ")
    assert "ok: " in listed


def test_the_page_about_a_first_backend_leads_from_nothing_to_a_certificate(first_backend):
    saved = json.loads((first_backend / "printed.json").read_text(encoding="utf-8"))
    # Machine time: that of the processor, which other work on the machine does not change.
    assert saved["seconds"] < 180
    certificate = (first_backend / "headrace-gamma" / "certificate.json").read_text("utf-8")
    assert "Gamma" in json.dumps(json.loads(certificate))
    outputs = saved["printed"][-1].splitlines()
    assert [line.partition("\t")[0] for line in outputs] == ["photos/a.jpg", "photos/b.png"]
    brighter = "PATH=.venv/bin:$PATH headrace run --json brighter.toml photos/b.png"
    assert json.loads(pages.run(brighter, first_backend, here=""))["result"]


def test_the_page_about_a_first_backend_asks_for_few_lines_and_commands():
    page = Page("docs/first_backend.md")
    lines = [line for text in page.files.values() for line in text.splitlines()[1:] if line.strip()]
    assert 20 <= len(lines) <= 40
    assert 5 <= len(page.commands) <= 8


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_start_page_leads_from_a_clone_to_an_answer_over_http(checkout, pip_environ):
    text = Page("docs/start.md").text
    assert len(re.findall(r"\b8000\b", text)) == 4
    with socket.socket() as free:  # another test may serve at the port that the page shows
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    page = Page("docs/start.md", text=re.sub(r"\b8000\b", str(port), text))
    printed = pages.follow(page, checkout, Path(sys.executable).parent, pip_environ)
    *_, ran, called, _, ready, answer, _, _, longest, _, certified = printed
    name, _, numbers = ran.partition("\t")
    assert name == "orange.png"
    assert json.loads(numbers) == pytest.approx([1.0, 128 / 255, 0.0], abs=1e-6)
    assert f"`{numbers.strip()}`" in text
    assert called == "400 [1.0, 0.5, 0.0]\n"
    assert called.strip() in text
    assert "error" not in ready
    assert json.loads(answer)["color"] == pytest.approx([1.0, 128 / 255, 0.0], abs=1e-6)
    assert longest == "words.txt\tchannel\n"
    assert re.search(r"^\d\d passed", certified, re.MULTILINE)
