"""Write the table of core's words from the modules in which they stand, so that core reads none of its own text.

`python scripts/words_of_core.py` writes the table, and the entry points that say the same.

The table is what the metadata of a plugin are for the plugin: names and import paths, known without importing a word.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "core"
TABLE = CORE / "src" / "headrace" / "_language" / "registry" / "words_of_core.json"
PROJECT = CORE / "pyproject.toml"

SECTION = '[project.entry-points."headrace.backends"]\n'


def words() -> dict[str, str]:
    """Find the words: each module of `headrace._language.words` lists its own.

    A name that stands for another one there (``S = Sequential``) has the path of that word.
    """
    found: dict[str, str] = {}
    package = CORE / "src" / "headrace"
    for path in sorted(package.glob("_language/words/[!_]*.py")):
        set_to = {
            one.targets[0].id: one.value
            for one in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }
        for name in ast.literal_eval(set_to["__all__"]):
            same = set_to.get(name)
            word = same.id if isinstance(same, ast.Name) else name
            found[name] = f"headrace._language.words.{path.stem}:{word}"
    return found


def table() -> str:
    """Return the text that core reads: the import path of each word, by name."""
    return json.dumps(words(), indent=1) + "\n"


def project() -> str:
    """Return the text of core's ``pyproject.toml`` with the entry points."""
    points = "".join(f'{name} = "{path}"\n' for name, path in words().items())
    text = PROJECT.read_text(encoding="utf-8")
    return re.sub(re.escape(SECTION) + r"(\w+ = .*\n)*", lambda _: SECTION + points, text)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    PROJECT.write_text(project(), encoding="utf-8")
