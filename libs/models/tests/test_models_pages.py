"""The tables of the README and of the page about models are true."""

from __future__ import annotations

import re

import pytest
from distributions import tomllib
from pages import Page

from headrace_models import Exchange

pytestmark = pytest.mark.first(
    "serve over HTTP and gRPC, with models by name: as the pages show it"
)

README = Page("libs/models/README.md")


def test_the_table_of_who_came_and_went_is_what_its_program_prints(capsys):
    section = Page("docs/models.md", "Models that do not all fit")
    rows = re.search(r"^\|---.*\n((?:\|.*\n)+)", section.text, re.MULTILINE)[1]
    exec(compile(section.blocks("python")[0], "models.md", "exec"), {})
    assert capsys.readouterr().out == rows


def test_the_table_of_an_exchange_has_the_defaults():
    table = Page("docs/models.md", "An exchange with a verdict").blocks("toml")[0]
    written = tomllib.loads(table)["models"]["shout"]["exchange"]
    said = {**Exchange().model_dump(), "verdict": None, "keep_inputs": False}
    assert {**written, "verdict": None, "keep_inputs": False} == said


def test_every_state_of_the_table_is_one_and_every_one_is_there():
    from typing import get_args

    from headrace_models.changes import State

    table = README.text.partition("| state | requests |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(get_args(State))
