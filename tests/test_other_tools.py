"""The page beside other tools: its program runs, with the answers that it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from headrace_serve import Server

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "other_tools.md").read_text(encoding="utf-8")
PROGRAMS = {
    re.match(r"# (\S+)\n", block)[1]: block
    for block in re.findall(r"```(?:python|toml)\n(.*?)```", TEXT, re.DOTALL)
}
INPUTS = [[1, 2, 3, 4], [0, 0, 0, 1], [-1.5, 2, 0.25, 8]]
SCORES = [[40.0, 50.0], [6.0, 7.0], [53.0, 61.75]]
"""Worked out by hand: the products with the columns (0, 2, 4, 6) and (1, 3, 5, 7)."""


def post(url: str, body: object) -> object:
    headers = {"content-type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=300) as answer:
        return json.load(answer)


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_our_program_gives_the_scores(folder):
    with Server({"score": folder / "score.toml"}, port=0) as server:
        url = f"{server.url}/run/score"
        assert [post(url, {"input": one})["result"] for one in INPUTS] == SCORES
        sent, shown = re.search(r"-d '(.*?)'\n(.*?)\n```", TEXT).groups()
        answer = urlopen(
            Request(url, sent.encode(), {"content-type": "application/json"}), timeout=300
        )
        with answer:
            assert answer.read().decode() == shown
