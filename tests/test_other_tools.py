"""The page beside other tools: our program runs, theirs where it can be installed, with equal answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from pages import Page, asked

from headrace_serve import Server

PAGE = Page("docs/other_tools.md")
INPUTS = [[1, 2, 3, 4], [0, 0, 0, 1], [-1.5, 2, 0.25, 8]]
SCORES = [[40.0, 50.0], [6.0, 7.0], [53.0, 61.75]]
"""Worked out by hand: the products with the columns (0, 2, 4, 6) and (1, 3, 5, 7)."""

VERSIONS = dict(re.findall(r"(LitServe|BentoML|Ray) (\d[\d.]*\d)", PAGE.text))


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


PEERS = {
    "LitServe": (
        ("litserve", "{python} with_litserve.py {port}"),
        ("predict", lambda one: {"input": one}, lambda answer: answer["output"]),
    ),
    "BentoML": (
        ("bentoml", "{bin}/bentoml serve with_bentoml:Score --port {port} --host 127.0.0.1"),
        ("predict", lambda one: {"input": [one]}, lambda answer: answer[0]),
    ),
    "Ray": (
        ("ray[serve]", "{python} -c RAY {port}"),
        ("", lambda one: {"input": one}, lambda answer: answer["output"]),
    ),
}
RAY = (
    "import sys, threading; from ray import serve; import with_ray_serve as made\n"
    "serve.start(http_options={'port': int(sys.argv[1])}); serve.run(made.app)\n"
    "threading.Event().wait()"
)
"""What ``serve run`` does, on a port of our choice."""


@pytest.mark.peers
@pytest.mark.parametrize("peer", PEERS)
def test_their_program_gives_the_same(peer, folder, peer_environment):
    (requirement, command), (path, body, score) = PEERS[peer]
    programs = peer_environment(peer, f"{requirement}=={VERSIONS[peer]}", "numpy")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command.format(python=programs / "python", bin=programs, port=port).split()
    words = [RAY if word == "RAY" else word for word in words]
    log = folder / "log.txt"
    with log.open("w") as written:
        process = subprocess.Popen(
            words, cwd=folder, stdout=written, stderr=written, start_new_session=True
        )
    try:
        url = f"http://127.0.0.1:{port}/{path}"
        for _ in range(3000):  # until it listens; the limit only ends what hangs
            with contextlib.suppress(OSError, HTTPException):
                post(url, body(INPUTS[0]))
                break
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)  # it goes on at once where the server ends
        assert [score(post(url, body(one))) for one in INPUTS] == SCORES
    finally:
        process.terminate()
        process.wait(120)
        if hasattr(os, "killpg"):  # its workers do not end with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
