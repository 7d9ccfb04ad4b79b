"""The program of docs/why.md finds the five causes that it plants; its commands are followed at a server."""

from __future__ import annotations

import re
import shlex
import time

import httpx
import pytest
from pages import Page, programs, run_here, run_program
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_serve import Server

PAGE = Page("docs/why.md")


@pytest.mark.parametrize("program", programs("docs/why.md"))
def test_a_program_prints_what_stands_beside_it(program, tmp_path):
    assert run_program(program, tmp_path)


def test_the_command_is_followed_at_a_server(tmp_path, monkeypatch):
    class WhyModel(headrace.Backend):
        max = 8

        def forward(self, batch):
            time.sleep(0.002)
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Detect", WhyModel, replace=True)
    (tmp_path / "line.toml").write_text(PAGE.block("toml"))
    command, *others = PAGE.commands
    with Server({"line": tmp_path / "line.toml"}, port=0) as server:
        for name in ("7f3a", "other", "other"):
            said = {"X-Request-Id": name}
            httpx.post(f"{server.url}/run/line", content=b"x", headers=said).raise_for_status()
        args = shlex.split(command.replace("http://127.0.0.1:8000", server.url))[1:]
        file = tmp_path / "monday.jsonl"
        done = CliRunner().invoke(app, [*args, "--save", str(file)])
        assert done.exit_code == 0, done.output
        slowest = CliRunner().invoke(app, [*args[:-1]])
        unknown = CliRunner().invoke(app, [*args[:-1], "nobody"])
    shape = r"\d+\.\d ms: .*\d+\.\d ran \(1 in the batch, instance \d, formed by idle\)"
    lines = done.stdout.splitlines()
    assert re.match(shape, lines[0])
    assert {line.partition(":")[0] for line in lines[1:-1]} == {
        "with main.instance_num=3",
        "with main.max=16",
    }
    assert lines[-1].startswith("Simulated with the 1 requests since")
    assert sorted(line.partition(":")[0] for line in slowest.stdout.splitlines()) == [
        *("7f3a", "other", "other"),
    ]
    assert unknown.exit_code != 0
    assert "no request 'nobody' is remembered" in unknown.output
    again = CliRunner().invoke(app, ["observe", "why", str(file), "7f3a"])
    assert again.stdout.splitlines()[0] == lines[0]
    monkeypatch.chdir(tmp_path)
    for other in others:
        run_here(other)
    assert len(others) == 2
