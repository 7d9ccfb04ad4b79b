"""The page beside other tools: its program runs, with the answers that it shows."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pages import Page, asked

from headrace_serve import Server

PAGE = Page("docs/other_tools.md")
INPUTS = [[1, 2, 3, 4], [0, 0, 0, 1], [-1.5, 2, 0.25, 8]]
SCORES = [[40.0, 50.0], [6.0, 7.0], [53.0, 61.75]]
"""Worked out by hand: the products with the columns (0, 2, 4, 6) and (1, 3, 5, 7)."""


def post(url: str, body: object) -> object:
    headers = {"content-type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=300) as answer:
        return json.load(answer)


@pytest.fixture
def folder(tmp_path) -> Path:
    return PAGE.write(tmp_path)


def test_our_program_gives_the_scores(folder):
    with Server({"score": folder / "score.toml"}, port=0) as server:
        url = f"{server.url}/run/score"
        assert [post(url, {"input": one})["result"] for one in INPUTS] == SCORES
        shown = dict(pair for block in PAGE.all_blocks for pair in block.commands)
        asking = PAGE.command("curl")
        assert asked(asking, server.url, folder) == shown[asking].strip()
