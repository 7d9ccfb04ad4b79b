"""What headrace-process and headrace-remote say of themselves: READMEs, their pages, sections of docstrings."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import headrace_process
import headrace_remote
from headrace import PipelineConfig

ROOT = Path(__file__).parent.parent
PAGES = {
    "process": ROOT / "libs" / "process" / "README.md",
    "remote": ROOT / "plugins" / "remote" / "README.md",
    "machines": ROOT / "docs" / "machines.md",
}


def blocks(language):
    """Return the blocks of code in a language, with the page and the place on it as their names.

    What needs a cluster of Ray is run by the tests of headrace-ray.
    """
    block_of = re.compile(rf"```{language}\n(.*?)```", re.DOTALL)
    return [
        pytest.param(block, id=f"{name}-{place}")
        for name, page in PAGES.items()
        for place, block in enumerate(
            block_of.findall(page.read_text("utf-8").partition("\n## On a Ray cluster\n")[0])
        )
    ]


@pytest.mark.parametrize("file", blocks("toml"))
def test_the_configurations_are_valid(file, tmp_path, monkeypatch):
    monkeypatch.setenv("DECODE_KEY", "a key")
    for name in ("ca.pem", "model.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "page.toml").write_text(file)
    assert PipelineConfig.load(tmp_path / "page.toml").to_dict()


@pytest.mark.parametrize("package", [headrace_process, headrace_remote])
def test_all_names_resolve_and_are_listed(package):
    assert sorted(package.__all__) == package.__all__ == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert not hasattr(package, "nonsense")


@pytest.mark.parametrize("word", [headrace_process.Process, headrace_remote.Remote])
def test_the_docstring_has_all_sections(word):
    for section in ("Reads", "Writes", "Batch", "Raises", "Source"):
        assert f"\n{section}:\n" in inspect.cleandoc(word.__doc__)
