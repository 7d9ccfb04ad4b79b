"""Every program in the README runs, and every file in it is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace_vision.configured import load

README = Path(__file__).parents[1] / "README.md"
TABLES = re.findall(r"```toml\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS, ids=[str(n) for n in range(len(PROGRAMS))])
def test_the_programs_in_the_readme_run(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("table", TABLES, ids=[str(n) for n in range(len(TABLES))])
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
