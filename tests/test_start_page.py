"""The start page, followed from an empty folder to an answer of a served model."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[1] / "docs" / "start.md"


@pytest.mark.skipif(
    sys.platform == "win32" or not shutil.which("bash") or not shutil.which("curl"),
    reason="needs bash and curl",
)
def test_the_blocks_of_the_start_page_lead_from_a_clone_to_an_answer_over_http(
    follow, checkout, tmp_path
):
    with socket.socket() as free:  # another test may serve at the port that the page shows
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"\b8000\b", text)) == 4
    page = tmp_path / "start.md"
    page.write_text(re.sub(r"\b8000\b", str(port), text), encoding="utf-8")
    printed = follow(page, checkout, Path(sys.executable).parent)
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
