"""What headrace-process and headrace-remote say of themselves: READMEs, their pages, options, sections of docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace_process
import headrace_remote
from headrace import PipelineConfig

ROOT = Path(__file__).parent.parent
PAGES = {
    "process": ROOT / "plugins" / "process" / "README.md",
    "hosts": ROOT / "docs" / "hosts.md",
    "remote": ROOT / "plugins" / "remote" / "README.md",
    "machines": ROOT / "docs" / "machines.md",
}


def blocks(language):
    """Return the blocks of code in a language, with the page and the place on it as their names."""
    return [
        pytest.param(block, id=f"{name}-{place}")
        for name, page in PAGES.items()
        for place, block in enumerate(
            re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        )
    ]


@pytest.mark.parametrize("program", blocks("python"))
def test_the_programs_run_and_print_what_they_say(program, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)


@pytest.mark.parametrize("file", blocks("toml"))
def test_the_configurations_are_valid(file, tmp_path):
    for name in ("secret", "ca.pem", "model.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "page.toml").write_text(file)
    assert PipelineConfig.load(tmp_path / "page.toml").to_dict()


@pytest.mark.parametrize(
    ("name", "word"), [("process", headrace_process.Host), ("remote", headrace_remote.Remote)]
)
def test_the_readme_lists_every_option_with_its_default(name, word):
    text = PAGES[name].read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    fields = word.Options.model_fields
    assert [option for option, _, _ in rows] == list(fields)
    for option, default, description in rows:
        field = fields[option]
        assert description == field.description.replace("|", "\\|")
        if field.is_required():
            assert default == "required"
        else:
            assert ast.literal_eval(default.strip("`")) == field.default


@pytest.mark.parametrize("package", [headrace_process, headrace_remote])
def test_all_names_resolve_and_are_listed(package):
    assert sorted(package.__all__) == package.__all__ == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert not hasattr(package, "nonsense")


@pytest.mark.parametrize(
    "word", [headrace_process.Host, headrace_process.Process, headrace_remote.Remote]
)
def test_the_docstring_has_all_sections(word):
    for section in ("Reads", "Writes", "Batch", "Raises", "Source"):
        assert f"\n{section}:\n" in inspect.cleandoc(word.__doc__)
