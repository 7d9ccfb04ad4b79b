"""The commands of the README and of the page about models are run. Their programs run in tests/test_documents.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_models import Exchange

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "libs" / "models" / "README.md", ROOT / "docs" / "models.md"]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
ELSEWHERE = {
    "pip install headrace-models": "the wheels are built and installed by the tests of packaging",
    "headrace models served --watch": "test_models_command, which ends it",
}


def test_every_command_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "detect.toml").write_text('backend = "Identity"\n')
    lines = [
        line.removeprefix("$ ")
        for page in PAGES
        for language, body in BLOCK.findall(page.read_text(encoding="utf-8"))
        if language == "console"
        for line in body.splitlines()
    ]
    assert set(ELSEWHERE) < set(lines)
    for line in {*lines} - {*ELSEWHERE}:
        command, *arguments = line.split()
        assert command == "headrace"
        assert CliRunner().invoke(app, arguments).exit_code == 0


def test_the_table_of_who_came_and_went_is_what_its_program_prints(capsys):
    section = PAGES[1].read_text(encoding="utf-8").split("## Models that do not all fit")[1]
    program = BLOCK.search(section)[2]
    rows = re.search(r"^\|---.*\n((?:\|.*\n)+)", section, re.MULTILINE)[1]
    exec(compile(program, "models.md", "exec"), {})
    assert capsys.readouterr().out == rows


def test_the_table_of_an_exchange_has_the_defaults():
    section = PAGES[1].read_text(encoding="utf-8").split("## An exchange with a verdict")[1]
    (table,) = [body for language, body in BLOCK.findall(section) if language == "toml"][:1]
    written = tomllib.loads(table)["models"]["shout"]["exchange"]
    said = {**Exchange().model_dump(), "verdict": None, "keep_inputs": False}
    assert {**written, "verdict": None, "keep_inputs": False} == said


def test_every_state_of_the_table_is_one_and_every_one_is_there():
    from typing import get_args

    from headrace_models.changes import State

    table = PAGES[0].read_text(encoding="utf-8").partition("| state | requests |")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(get_args(State))
