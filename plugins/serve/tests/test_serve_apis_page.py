"""The page about APIs of other servers: its files are served by its command, and its programs ask."""

from __future__ import annotations

import json
import os
import subprocess

import api_models
import httpx
import pytest
from environments import environment_with
from pages import Page
from pages import serving as page_serving

import headrace

PAGE = Page("docs/other_apis.md")
FILES = PAGE.files
ADDRESS = "http://localhost:8000"
SAID = [{"role": "user", "content": "hello you"}]


@pytest.fixture
def folder(tmp_path):
    """The files of the page."""
    return PAGE.write(tmp_path)


def test_the_files_are_served_by_the_command(folder):
    with page_serving(PAGE.command("headrace serve"), folder) as url:
        body = {"model": "shout", "messages": SAID, "temperature": 0.5}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "HELLO YOU "


def test_what_open_web_ui_sends_is_answered(folder, serving):
    server = serving([str(folder / "shout.toml")], apis=["openai"])
    assert [one["id"] for one in httpx.get(f"{server.url}/v1/models").json()["data"]] == ["shout"]
    more = {"stream": True, "stream_options": {"include_usage": True}, "metadata": {"chat_id": "1"}}
    body = {"model": "shout", "messages": SAID, **more}
    lines = httpx.post(f"{server.url}/v1/chat/completions", json=body).text.split("data: ")[1:-1]
    parts = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    assert "".join(one.get("content") or "" for one in parts) == "HELLO YOU "


@pytest.mark.peers
@pytest.mark.parametrize(
    ("name", "libraries", "says"),
    [
        ("with_langchain.py", ["langchain-openai>=1,<2"], ["HELLO YOU ", str(api_models.WIDTH)]),
        ("with_llamaindex.py", ["llama-index-llms-openai-like>=0.5"], ["HELLO YOU "]),
    ],
)
def test_the_programs_run_with_the_libraries(folder, serving, name, libraries, says):
    config = headrace.PipelineConfig.load(folder / "shout.toml")
    models = {"shout": config, "encoder": api_models.MODELS["vectors"]}
    server = serving(models, apis=["openai"])
    program = FILES[name].replace(ADDRESS, server.url)
    assert program != FILES[name]
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [environment_with(*libraries) / "python", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=bare)
    assert done.stdout.splitlines() == says, done.stderr
