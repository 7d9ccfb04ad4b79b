"""What the package says of itself: README, options, sections; and the page about hosts."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace_process
from headrace import PipelineConfig
from headrace_process import Host, Process

HERE = Path(__file__).parent.parent
README = (HERE / "README.md").read_text(encoding="utf-8")
PAGE = HERE.parents[1] / "docs" / "hosts.md"
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)
TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def texts():
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {"README": README, "hosts": page}


@pytest.mark.parametrize(
    "program", [one for text in texts().values() for one in PROGRAM.findall(text)]
)
def test_the_programs_run_and_print_what_they_say(program, tmp_path):
    done = run(program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)


@pytest.mark.parametrize("file", [one for text in texts().values() for one in TOML.findall(text)])
def test_the_configurations_are_valid(file, tmp_path):
    for name in ("secret", "ca.pem"):
        (tmp_path / name).touch()
    (tmp_path / "page.toml").write_text(file)
    assert PipelineConfig.load(tmp_path / "page.toml").to_dict()


def test_the_readme_lists_every_option_with_its_default():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", README, re.MULTILINE)
    fields = Host.Options.model_fields
    assert [name for name, _, _ in rows] == list(fields)
    for name, default, text in rows:
        field = fields[name]
        assert text == field.description.replace("|", "\\|")
        if field.is_required():
            assert default == "required"
        else:
            assert ast.literal_eval(default.strip("`")) == field.default


def test_all_names_resolve_and_are_listed():
    assert sorted(headrace_process.__all__) == headrace_process.__all__ == dir(headrace_process)
    for name in headrace_process.__all__:
        assert getattr(headrace_process, name) is not None
    assert not hasattr(headrace_process, "nonsense")


@pytest.mark.parametrize("cls", [Host, Process])
def test_the_docstring_has_all_sections(cls):
    for section in ("Reads", "Writes", "Batch", "Raises", "Source"):
        assert f"\n{section}:\n" in inspect.cleandoc(cls.__doc__)
