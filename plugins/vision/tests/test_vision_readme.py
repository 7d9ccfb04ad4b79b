"""Every program in the README runs, and every file in it is right."""

from __future__ import annotations

import re

import pytest
from pages import Page, programs, run_program

from headrace_vision.file.vision import load

pytestmark = pytest.mark.first("read videos and cameras: the programs of the README")


@pytest.mark.parametrize("program", programs("plugins/vision/README.md"))
def test_the_programs_in_the_readme_run(program, tmp_path):
    assert run_program(program, tmp_path)


@pytest.mark.parametrize("table", Page("plugins/vision/README.md").blocks("toml"))
def test_the_files_in_the_readme_are_right(table, tmp_path):
    for name in re.findall(r"\w+\.(?:onnx|mp4)", table):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "photos").mkdir()
    for name in re.findall(r"\w+\.toml", table):
        (tmp_path / name).write_text('backend = "Identity"\n', encoding="utf-8")
    (tmp_path / "vision.toml").write_text(table, encoding="utf-8")
    config = load(tmp_path / "vision.toml")
    assert config.all_models
    assert config.sources
