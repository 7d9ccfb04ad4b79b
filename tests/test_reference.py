"""The reference of words: its examples give what it says, and nothing is left out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import api
import names_elsewhere
import pytest
import reference
import words_of_core
from distributions import tomllib
from pages import Page

import headrace
from headrace._language.registry.discovery import CORE_BACKENDS
from headrace.keys import RESERVED

ROOT = Path(__file__).resolve().parents[1]


def test_the_table_of_words_is_what_their_modules_say():
    what = "run: python scripts/words_of_core.py"
    assert words_of_core.TABLE.read_text(encoding="utf-8") == words_of_core.table(), what
    assert words_of_core.PROJECT.read_text(encoding="utf-8") == words_of_core.project(), what
    for name, path in CORE_BACKENDS.items():
        module, _, word = path.partition(":")
        assert name in importlib.import_module(module).__all__
        assert issubclass(getattr(importlib.import_module(module), word), headrace.Backend)
    entries = tomllib.loads(words_of_core.PROJECT.read_text(encoding="utf-8"))["project"]
    assert entries["entry-points"]["headrace.backends"] == CORE_BACKENDS


def test_the_table_of_names_that_plugins_bring_is_what_the_plugins_say():
    written = names_elsewhere.TABLE.read_text(encoding="utf-8")
    assert written == names_elsewhere.table(), "run: python scripts/names_elsewhere.py"
    for plugin in headrace.plugins.installed():
        if plugin.distribution in names_elsewhere.names()["backends"]:
            brought = {*plugin.backends}
            known = headrace.plugins.KNOWN_BACKENDS
            assert {name for name in brought if known[name] == plugin.distribution} == brought


def test_every_public_name_says_what_it_is():
    page = "\n".join(api.pages().values())
    parts = dict(re.findall(r"^## (.+?)(?:\(.*)?\n\n(.*)$", page, re.MULTILINE))
    for module in map(importlib.import_module, api.MODULES):
        for name in api.names(module):
            assert parts[f"{module.__name__}.{name}"].strip(), name


def test_every_word_stands_on_one_page_that_the_index_leads_to():
    pages = reference.pages()
    index = pages[reference.PAGE]
    for name in reference.words():
        (page,) = re.findall(rf"^\| \[`{name}`\]\((words/\w+\.md)#", index, re.MULTILINE)
        assert f"\n## {name}\n" in pages[reference.DOCS / page]


def test_the_table_of_reserved_keys_names_all_of_them():
    rows = Page("core/README.md", "What a request holds").rows()
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row[0])} == set(RESERVED)


def test_a_setting_of_another_tool_is_told_ours():
    rows = Page("docs/other_tools.md", "What their settings are called here").rows()
    assert len(rows) == 7
    for theirs, ours, *_ in rows:
        for name in re.findall(r"`(\w+)`", theirs):
            with pytest.raises(headrace.errors.ConfigError) as caught:
                headrace.PipelineConfig.load({"backend": "Identity", name: 1})
            assert caught.value.problems[0].suggestion == ours.strip("`")


def test_every_word_has_an_example():
    named = {example.word for example in reference.examples()}
    assert {CORE_BACKENDS[name] for name in named} == set(CORE_BACKENDS.values())


@pytest.mark.parametrize("example", reference.examples(), ids=lambda example: example.word)
def test_an_example_gives_what_it_says(example):
    config = tomllib.loads(example.config)
    if "backend" not in config and not any(isinstance(part, dict) for part in config.values()):
        config = {"main": config}
    config["import"] = [str(reference.DOCS / "words_backends.py")]
    with headrace.pipe(config) as pipe:
        assert pipe(dict(example.request))["result"] == example.result
