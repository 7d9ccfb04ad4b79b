"""The pages docs/catalogue.md and one per distribution in docs/catalogue: every backend and batch policy, from their classes."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from distributions import tomllib
from typer.testing import CliRunner

from headrace.policies import Greedy
from headrace_cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "catalogue.md"
FOLDER = PAGE.with_suffix("")

HEAD = """# Catalogue

Every backend of the distributions in this repository, and every batch policy of the plugins, made from the code.
`headrace plugins info NAME` prints the same for whatever is installed.

The range is that of a batch, in weights (`request_size`, 1 for most requests), before the node's own
`min` and `max`; a backend may narrow it when it is built. `{name}` among the keys stands for the key
that the option `name` holds. Units are in the descriptions, and in names that end in `_ms` or
`_bytes`. The words of core are shown with examples in [words.md](words.md). Each distribution has a page.
"""

_HEADING = re.compile(r"([A-Z][a-z]+):(?:\s+(.*))?")
_ENTRY = re.compile(r"([\w{}]+): ")


def folders() -> list[Path]:
    """Return the folders of all distributions with a page, core first: the plugins, and the libraries with backends."""
    libraries = [
        path
        for path in ROOT.glob("libs/*/pyproject.toml")
        if "headrace.backends" in path.read_text(encoding="utf-8")
    ]
    found = [path.parent for path in [*libraries, *ROOT.glob("plugins/*/pyproject.toml")]]
    return [ROOT / "core", *sorted(found, key=lambda folder: folder.name)]


def project(folder: Path) -> dict[str, Any]:
    """Return the table ``[project]`` of a distribution."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def policies(distribution: str) -> dict[str, type[Any]]:
    """Return the batch policies that a distribution offers, by name."""
    found: dict[str, str] = {}
    for plugin in told(distribution)["plugins"]:
        found.update(plugin["offers"]["batch_policies"])
    return {name: import_object(path) for name, path in sorted(found.items())}


def import_object(path: str) -> Any:
    """Return what a path like ``package.module:name`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def policy_options(cls: Any) -> list[dict[str, Any]]:
    """Return the options of a policy, its own ones first."""
    base = Greedy.Options.model_fields
    fields = sorted(cls.Options.model_fields.items(), key=lambda field: field[0] in base)
    schema = cls.Options.model_json_schema()["properties"]
    return [
        {
            "name": name,
            "type": type_of(schema[name]),
            "required": field.is_required(),
            "default": field.default,
            "description": field.description or "",
        }
        for name, field in fields
    ]


def type_of(schema: dict[str, Any]) -> str:
    """Return the type of an option in words."""
    if "enum" in schema:
        return " | ".join(json.dumps(one) for one in schema["enum"])
    if "anyOf" in schema:
        kinds = [type_of(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " | ".join(kinds)
    known = {"string": "text", "boolean": "true or false", "array": "numbers"}
    return known.get(schema["type"], str(schema["type"]))


def described(distribution: str) -> list[dict[str, Any]]:
    """Return what ``headrace plugins info`` says of each backend of a distribution."""
    found: list[dict[str, Any]] = told(distribution)["backends"]
    return [backend for backend in found if backend["distribution"] == distribution]


@functools.cache
def told(distribution: str) -> dict[str, Any]:
    """Return what ``headrace plugins info`` says of a distribution."""
    metadata.packages_distributions = _packages_once
    try:
        done = CliRunner().invoke(app, ["plugins", "info", distribution, "--json"])
    finally:
        metadata.packages_distributions = _packages
    found: dict[str, Any] = json.loads(done.stdout)
    return found


_packages = metadata.packages_distributions
_packages_once = functools.cache(_packages)
"""What is installed stays so while pages are made: its files, some 100,000, are listed once."""


def sections(doc: str) -> tuple[str, dict[str, str]]:
    """Cut a docstring into its text and its sections."""
    text: list[str] = []
    found: dict[str, list[str]] = {}
    into = text
    for line in inspect.cleandoc(doc).splitlines():
        heading = _HEADING.fullmatch(line)
        if heading:
            into = found.setdefault(heading[1], [])
            line = heading[2] or ""
        into.append(line)
    return "\n".join(text).strip(), {
        name: inspect.cleandoc("\n".join(["", *body])).strip() for name, body in found.items()
    }


def listed(title: str, text: str) -> list[str]:
    """Write a section as an item; its own entries (``data: ...``) as items below it."""
    entries: list[str] = []
    for line in text.splitlines():
        found = _ENTRY.match(line)
        if found:
            entries.append(f"`{found[1]}`: {line[found.end() :]}")
        elif entries and (line.startswith(" ") or not line):
            entries[-1] += f" {line.strip()}"
        else:
            return [f"- **{title}**: {' '.join(text.split())}"]
    return [f"- **{title}**", *(f"  - {entry.strip()}" for entry in entries)]


def cell(text: str) -> str:
    """Make a text fit for a table."""
    return " ".join(text.split()).replace("|", "\\|")


def option_rows(options: list[dict[str, Any]]) -> list[str]:
    """Write the table of options."""
    if not options:
        return []
    rows = ["", "| option | type | default | meaning |", "|---|---|---|---|"]
    for option in options:
        default = "required" if option["required"] else f"`{json.dumps(option['default'])}`"
        default = default.replace("`null`", "none")
        kind = cell(option["type"])
        meaning = cell(option["description"])
        rows.append(f"| `{option['name']}` | {kind} | {default} | {meaning} |")
    return rows


def entry(backend: dict[str, Any], aliases: list[str]) -> str:
    """Write what the page says about one backend."""
    text, found = sections(backend["doc"])
    lines = [f"## {backend['name']}", ""]
    if aliases:
        lines += [f"Also written {', '.join(f'`{alias}`' for alias in aliases)}.", ""]
    lines += [text, ""]
    for which in ("Reads", "Writes"):
        keys = ", ".join(f"`{key}`" for key in backend[which.lower()])
        lines += listed(which, found.get(which) or keys or "nothing")
    least, most = backend["range"]
    span = f"{least} or more" if most is None else f"{least} to {most}"
    batch = " ".join(found.get("Batch", "").split())
    lines.append(f"- **Range**: {batch if batch.startswith(span) else f'{span}. {batch}'}")
    if backend["owns_thread"]:
        lines.append("- **Thread**: its own")
    lines += listed("Raises", found.get("Raises", "Nothing."))
    lines += listed("Source", found.get("Source", "own"))
    lines += option_rows(backend["options"])
    return "\n".join(line.rstrip() for line in lines) + "\n"


def part(folder: Path) -> str:
    """Write the part of the page about one distribution."""
    about = project(folder)
    name = about["name"]
    needs = ", ".join(f"`{text}`" for text in about["dependencies"])
    readme = f"../../{folder.relative_to(ROOT).as_posix()}/README.md"
    lines = [f"# {name} {about['version']}", "", about["description"], ""]
    lines += [
        f"Needs {needs}. More in [its README]({readme}). [All distributions](../catalogue.md).",
        "",
    ]
    by_path: dict[str, list[dict[str, Any]]] = {}
    for backend in described(name):
        by_path.setdefault(backend["path"], []).append(backend)
    groups = [sorted(same, key=lambda b: len(b["name"])) for same in by_path.values()]
    entries = [
        entry(same[0], [other["name"] for other in same[1:]])
        for same in sorted(groups, key=lambda same: same[0]["name"].lower())
    ]
    entries += [policy_entry(*one) for one in policies(name).items()]
    return "\n".join([*lines, *entries])


def policy_entry(name: str, cls: type[Any]) -> str:
    """Write what the page says about one batch policy."""
    text, found = sections(cls.__doc__ or "")
    lines = [f"## {name} (batch policy)", "", text, ""]
    if "Example" in found:
        lines += listed("Example", found["Example"])
    lines += option_rows(policy_options(cls))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def index(folder: Path, text: str) -> str:
    """Write the part of the index about one distribution, from its page."""
    about = project(folder)
    name = about["name"]
    lines = [f"## {name}", "", f"{about['description']} [Its page](catalogue/{name}.md)."]
    found = re.findall(
        r"^## (\w+(?: \(batch policy\))?)\n(?:\nAlso written .*\n)?\n((?:.+\n)+)",
        text,
        re.MULTILINE,
    )
    if found:
        lines += ["", "| backend | |", "|---|---|"]
    for backend, paragraph in found:
        sentence = re.split(r"(?<=[.])\s(?=[A-Z`])", " ".join(paragraph.split()))[0]
        anchor = re.sub(r"[()]", "", backend).replace(" ", "-").lower()
        lines.append(f"| [{backend}](catalogue/{name}.md#{anchor}) | {cell(sentence)} |")
    return "\n".join([*lines, ""])


def pages() -> dict[Path, str]:
    """Return the text of all pages: the index, and one per distribution."""
    parts = {folder: part(folder) for folder in folders()}
    whole = "\n".join([HEAD, *(index(folder, text) for folder, text in parts.items())])
    return {
        PAGE: whole,
        **{FOLDER / f"{project(folder)['name']}.md": text for folder, text in parts.items()},
    }
