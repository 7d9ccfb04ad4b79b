"""What headrace-process and headrace-remote say of themselves: READMEs, their pages, sections of docstrings."""

from __future__ import annotations

import inspect

import pytest
from pages import Page

import headrace_process
import headrace_remote
from headrace import PipelineConfig

# What needs a cluster of Ray is run by the tests of headrace-ray.
CONFIGURATIONS = [
    block
    for path in ("libs/process/README.md", "plugins/remote/README.md", "docs/machines.md")
    for text in [Page(path).text.partition("\n## On a Ray cluster\n")[0]]
    for block in Page(path, text=text).blocks("toml")
]


@pytest.mark.parametrize("file", CONFIGURATIONS)
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
