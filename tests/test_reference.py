"""The reference of words: it is what the code says, and its examples give what it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import headrace
from headrace._registry.discovery import CORE_BACKENDS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]


def load_script():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = load_script()


def test_the_page_is_what_the_code_says():
    assert REFERENCE.PAGE.read_text(encoding="utf-8") == REFERENCE.page(), (
        "run: python scripts/reference.py"
    )


def test_every_word_has_an_example():
    named = {example.word for example in REFERENCE.examples()}
    assert {CORE_BACKENDS[name] for name in named} == set(CORE_BACKENDS.values())


@pytest.mark.parametrize("example", REFERENCE.examples(), ids=lambda example: example.word)
def test_an_example_gives_what_it_says(example):
    config = tomllib.loads(example.config)
    if "backend" not in config and not any(isinstance(part, dict) for part in config.values()):
        config = {"main": config}
    config["import"] = [str(REFERENCE.DOCS / "words_backends.py")]
    with headrace.pipe(config) as pipe:
        assert pipe(dict(example.request))["result"] == example.result
