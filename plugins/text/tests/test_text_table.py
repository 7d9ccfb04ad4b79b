"""The table of folders, held to the names that sentence-transformers and transformers know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace_text import table

SAID = json.loads(Path(__file__).with_name("names.json").read_text())
"""Made by ``python list_names.py > names.json``, where both libraries are installed."""
NAMES = SAID["names"]
FILES = [name for name in NAMES if name in table.TABLE]


def test_the_list_has_its_versions_and_its_command():
    assert SAID["command"] == "python list_names.py > names.json"
    assert {"sentence_transformers", "transformers"} <= SAID["versions"].keys()
    for name in ("sentence_transformers", "transformers"):
        version = ".".join(SAID["versions"][name].split(".")[:2])
        assert f"{name.replace('_', '-')} {version}" in " ".join(table.__doc__.split())


@pytest.mark.parametrize("file", FILES)
def test_each_key_has_a_row(file):
    assert len(FILES) == 5
    assert [key for key in NAMES[file] if key not in table.TABLE[file]] == []


def test_each_module_file_and_way_of_pooling_has_a_row():
    assert set(NAMES["modules"]) == table.MODULES.keys()
    assert tuple(NAMES["sentence_files"]) == table.SENTENCE_FILES
    assert set(NAMES["pooling"]) == table.POOLING.keys()
    assert [*NAMES["flags"].items()] == [*table.FLAGS.items()]


def test_what_is_not_obeyed_says_why():
    rows = [*table.MODULES.values(), *table.FILES.values()]
    rows += [row for keys in table.TABLE.values() for row in keys.values()]
    assert [row for row in rows if row.mark != "obeyed" and not row.why] == []
