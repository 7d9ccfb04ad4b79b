"""The program of docs/why.md finds the five causes that it plants; its commands are followed at a server."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_serve import Server

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "why.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_what_stands_beside_it(program):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(program, "docs/why.md", "exec"), {"__name__": "__main__"})
    wanted = re.findall(r"^(?:print\(.*\)  |)# (.*)$", program, re.MULTILINE)
    assert said.getvalue().splitlines() == wanted
    assert wanted


def test_the_command_is_followed_at_a_server(tmp_path, monkeypatch):
    class WhyModel(headrace.Backend):
        max = 8

        def forward(self, batch):
            time.sleep(0.002)
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Detect", WhyModel, replace=True)
    (config,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "line.toml").write_text(config)
    command, *others = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
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
        found = CliRunner().invoke(app, shlex.split(other)[1:])
        assert found.exit_code == 0, found.output
    assert len(others) == 2
