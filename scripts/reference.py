"""The pages docs/words.md and docs/words, the reference of the words of core, from their classes."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from headrace._language.registry.discovery import CORE_BACKENDS
from headrace._language.registry.registry import registry

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "words.md"
FOLDER = PAGE.with_suffix("")

GROUPS = {
    "composing": ("Words that compose", ("call", "choice", "composing", "gathering")),
    "names": ("Words that name others", ("ioc", "naming")),
}
"""The pages: the title of each, and the modules whose words it has."""

HEAD = """# The words of core

Made from the code; every example is run by a test. Backends stand in
`[ ]`, everything else in `( )`. The backends `Upper`, `Reverse`, ... of the examples are in
[words_backends.py](words_backends.py); what a batch range means is said in
[the core README](../core/README.md).
"""

_GIVES = re.compile(r"``(.+)`` gives ``(.+)``::")


def words() -> list[str]:
    """Return the words of core, by module; where one has several names, the shortest."""
    names: dict[str, list[str]] = {}
    for name, path in CORE_BACKENDS.items():
        names.setdefault(path, []).append(name)
    return [min(same, key=len) for same in names.values()]


def sections(cls: type) -> tuple[str, dict[str, str]]:
    """Cut a docstring into its text and its sections."""
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    text: list[str] = []
    found: dict[str, list[str]] = {}
    into = text
    for line in lines:
        heading = re.fullmatch(r"([A-Z][a-z]+):", line)
        if heading:
            into = found.setdefault(heading[1], [])
        else:
            into.append(line)
    return "\n".join(text).strip(), {
        name: inspect.cleandoc("\n".join(body)).strip() for name, body in found.items()
    }


class Example(NamedTuple):
    """One example of a docstring: a configuration (TOML text), a request and its result."""

    word: str
    config: str
    request: dict[str, Any]
    result: Any


def examples() -> list[Example]:
    """Return the examples of all words."""
    return [one for name in words() for one in examples_of(name)]


def examples_of(name: str) -> list[Example]:
    """Give the examples in the docstring of one word."""
    _, found = sections(registry.find(name)[0].load())
    _, *pieces = _GIVES.split(found.get("Example", ""))
    return [
        Example(name, inspect.cleandoc(config).strip(), json.loads(request), json.loads(result))
        for request, result, config in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    ]


def word(name: str) -> str:
    """Write the part of the page about one word."""
    (spec,) = registry.find(name)
    cls = spec.load()
    aliases = [n for n, path in CORE_BACKENDS.items() if path == spec.path and n != name]
    text, found = sections(cls)
    lines = [f"## {name}", ""]
    if aliases:
        lines += [f"Also written {', '.join(f'`{alias}`' for alias in aliases)}.", ""]
    lines += [text, ""]
    rows = [
        (key, field.default, field.description or "", field.is_required())
        for key, field in cls.Options.model_fields.items()
    ]
    if rows:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for key, default, meaning, required in rows:
            shown = "required" if required else f"`{default!r}`".replace("None", "none")
            lines.append(f"| `{key}` | {shown} | {meaning} |")
        lines.append("")
    for title in ("Reads", "Writes", "Batch", "Raises"):
        lines.append(f"- **{title}**: {' '.join(found.get(title, '').split())}")
    if cls.bracket.prefixes:
        lines.append(f"- **Prefixes**: {', '.join(f'`({p})`' for p in cls.bracket.prefixes)}")
    lines.append("")
    for example in examples_of(name):
        lines += ["```toml", *example.config.splitlines(), "```", ""]
        request, result = json.dumps(example.request), json.dumps(example.result)
        lines += [f"`{request}` gives `{result}`.", ""]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Return the text of all pages: the index, and one per group of words."""
    index, written = [HEAD], {}
    for group, (title, modules) in GROUPS.items():
        of_group = [name for name in words() if module_of(name) in modules]
        head = f"# {title}\n\nMade from the code; [all words](../words.md).\n"
        written[FOLDER / f"{group}.md"] = "\n".join([head, *map(word, of_group)])
        index += [f"## {title}\n", "| word | |", "|---|---|"]
        for name in of_group:
            text, _ = sections(registry.find(name)[0].load())
            sentence = re.split(r"(?<=[.])\s(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
            index.append(
                f"| [`{name}`](words/{group}.md#{name.lower()}) | {sentence.replace('|', chr(92) + '|')} |"
            )
        index.append("")
    return {PAGE: "\n".join(index), **written}


def module_of(name: str) -> str:
    """Return the name of the module of core that has a word."""
    return CORE_BACKENDS[name].partition(":")[0].rpartition(".")[2]
