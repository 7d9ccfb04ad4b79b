"""Lists what nobody uses: words and their options, keys of configurations, hooks, commands and their options, with the files that use each.

A use is in an example, a document, a benchmark or another distribution. The tests of its own distribution are none.

    python scripts/unused.py          what has no use
    python scripts/unused.py --all    everything, with the number of its uses
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import headrace

ROOT = Path(__file__).resolve().parent.parent
SURFACE = ROOT / "scripts" / "public_names.json"
_READ = (".md", ".toml", ".py", ".json", ".yaml", ".yml", ".sh", ".ipynb", ".js", ".txt", ".cpp")
_TABLES = {
    "plugins/serve": (
        "headrace_serve.models.entries",
        ("ModelEntry", "InputEntry", "OutputEntry", "FieldEntry"),
    ),
    "plugins/vision": (
        "headrace_vision.file.tables",
        ("VisionConfig", "SourceTable", "ModelTable"),
    ),
}
"""The classes whose fields are keys of the tables that a distribution reads, by its folder."""

_NOT = ("scripts/", ".github/", "CHANGELOG", "tests/mistakes.toml")


@functools.cache
def _texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [one for one in listed.stdout.split() if one.endswith(_READ) or one == "dev"]
    return {
        one: (ROOT / one).read_text(encoding="utf-8")
        for one in names
        if not any(part in one for part in _NOT) and (ROOT / one).is_file()
    }


def _own(path: str) -> str:
    """Return the folder of the distribution of a file, empty for what belongs to all."""
    found = re.match(r"(core|cli|testing|(?:libs|plugins)/[a-z]+)/", path)
    return found[1] if found else ""


@functools.cache
def _home_of_words() -> dict[str, str]:
    found: dict[str, str] = {}
    for path, text in _texts().items():
        if path.endswith("pyproject.toml"):
            for name in re.findall(r'^"?(\w+)"? = "headrace_', text, re.MULTILINE):
                found.setdefault(name, _own(path))
    return found


class Names(NamedTuple):
    """What a file names.

    Attributes:
        words: Each word in it.
        given: The words that are given a value, called, or stand alone in backticks.
        flags: The options of commands.
        commands: The commands, as ``headrace trt build``.
    """

    words: frozenset[str]
    given: frozenset[str]
    flags: frozenset[str]
    commands: frozenset[str]


@functools.cache
def _names() -> dict[str, Names]:
    found = {}
    for path, text in _texts().items():
        given = re.findall(r"(\w+)[\"'`]? ?[=:(]", text) + re.findall(r"`(\w+)`", text)
        flags = re.findall(r"--[a-z][\w-]*", text)
        commands = re.findall(r"headrace(?: [a-z]+){1,2}", text)
        commands += [one.rpartition(" ")[0] for one in commands]
        words = re.findall(r"\w+", text)
        found[path] = Names(*map(frozenset, (words, given, flags, commands)))
    return found


def uses(name: str, kind: str, own: str) -> list[str]:
    """Return the files that use a name, but for the sources and tests of a distribution itself.

    Args:
        name: The name.
        kind: A field of `Names`.
        own: The folder of the distribution.
    """
    return [
        path
        for path, names in _names().items()
        if not (own and path.startswith(f"{own}/") and not path.endswith(".md"))
        and not (path.startswith("core/src") and path.endswith(".json"))
        and name in getattr(names, kind)
    ]


def _keys_and_hooks(hooks: Iterable[str]) -> dict[str, list[str]]:
    """Return the uses of each key of the tables of a configuration, and of each hook of plugins and probes."""
    found = {}
    for kind, schema in headrace.PipelineConfig.key_schemas().items():
        found |= {f"key {kind}.{key}": uses(key, "given", "core") for key in schema}
    for own, (module, tables) in _TABLES.items():
        for table in tables:
            fields = getattr(importlib.import_module(module), table).model_fields
            keys = [one.alias or name for name, one in fields.items()]
            found |= {f"key {table}.{key}": uses(key, "given", own) for key in keys}
    for hook in (*hooks, *headrace.plugins.PROBE_METHODS):
        found[f"hook {hook}"] = uses(hook, "words", "core")

    return found


def all_uses() -> dict[str, list[str]]:
    """Return the uses of each public thing of the surface that a configuration or a command line names."""
    surface: dict[str, Any] = json.loads(SURFACE.read_text(encoding="utf-8"))
    homes = _home_of_words()
    found: dict[str, list[str]] = {}
    for word, options in surface["backends"].items():
        own = homes.get(word, "core")
        found[f"word {word}"] = uses(word, "words", own)
        for option in options:
            found[f"option {word}({option})"] = uses(option, "given", own)
    hooks = [one for one in surface["modules"]["headrace.hookspecs"] if one.startswith("headrace_")]
    found |= _keys_and_hooks(hooks)

    def add_commands(commands: dict[str, Any], before: str) -> None:
        for name, what in commands.items():
            if isinstance(what, dict):
                found[f"command {before} {name}"] = uses(f"{before} {name}", "commands", "")
                add_commands(what, f"{before} {name}")
            elif name.startswith("--"):
                found[f"flag {before} {name}"] = uses(name, "flags", "cli")

    add_commands(surface["commands"], "headrace")
    return found


def main() -> None:
    """Print what has no use."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="what is used as well")
    chosen = parser.parse_args()
    for what, where in all_uses().items():
        if chosen.all or not where:
            print(f"{len(where):4d}  {what}")


if __name__ == "__main__":
    main()
