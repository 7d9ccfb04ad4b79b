"""Folders of models that are no TOML files, beside those that are."""

from __future__ import annotations

import sys

import pytest

import headrace
from headrace.errors import ConfigError
from headrace_models import Models, folder_models

READER = """
def tables_of(path):
    if path.is_file():
        return {"backend": f"Says({path.read_text()})"}
    if (path / "many.txt").exists():
        names = (path / "many.txt").read_text().split()
        entries = {name: {"config": {"backend": f"Says({name})"}} for name in names}
        return {"models": {**entries, "live": {"one": 1.0}}}
    return {"backend": "Says(folder)"}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of models; a plugin reads files ``.says`` and some folders."""
    site = tmp_path / "site"
    about = site / "headrace_says-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-says\nVersion: 1.0\n")
    names = [f"{name} = hrt_says:tables_of" for name in (".says", "said.txt", "many.txt")]
    (about / "entry_points.txt").write_text("\n".join(["[headrace.readers]", *names]))
    (site / "hrt_says.py").write_text(READER)
    monkeypatch.syspath_prepend(str(site))
    headrace.plugins.refresh()
    yield tmp_path / "models"
    headrace.plugins.refresh()
    sys.modules.pop("hrt_says", None)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def answers(models):
    return {name: models(name, {"data": 0})["result"] for name in models.versions()}


def test_a_file_that_a_plugin_reads_is_a_model_unless_a_toml_file_has_or_names_it(folder):
    write(folder / "a.says", "one")
    write(folder / "b.toml", 'backend = "Says(two)"  # in place of b.says and of other.says')
    write(folder / "b.says", "not this")
    write(folder / "other.says", "nor this")
    write(folder / "_hidden.says", "nor this one")
    write(folder / "c" / "3.says", "three")
    write(folder / "c" / "12.toml", 'backend = "Says(twelve)"')
    write(folder / "d" / "said.txt", "")
    with Models(folder) as models:
        assert answers(models) == {"a": "one", "b": "two", "c": "twelve", "d": "folder"}
        assert sorted(models.versions()["c"]) == ["12", "3"]
    found = {name: path[len(str(folder)) + 1 :] for name, path in folder_models(folder).items()}
    assert found == {"a": "a.says", "b": "b.toml", "c:3": "c/3.says", "c:12": "c/12.toml", "d": "d"}


def test_two_files_for_one_name_are_an_error(folder):
    write(folder / "a.says", "one")
    write(folder / "a" / "said.txt", "")
    with pytest.raises(ConfigError, match=r"model 'a' is there twice: a and a\.says"):
        folder_models(folder)


def test_a_folder_that_a_plugin_reads_as_a_whole_comes_first(folder):
    write(folder / "many.txt", "one two")
    write(folder / "ignored.toml", 'backend = "Says(no)"')
    with Models(folder) as models:
        assert {n: models(n, {"data": 0})["result"] for n in ("one", "two", "live")} == {
            "one": "one",
            "two": "two",
            "live": "one",
        }
    assert folder_models(folder)["two"] == {"config": {"backend": "Says(two)"}}


def test_a_folder_that_stands_for_one_pipeline_is_one_model(folder):
    write(folder / "said.txt", "")
    assert folder_models(folder) == {"models": str(folder)}
