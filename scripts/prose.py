"""Measure the prose of the documents and of public docstrings.

python scripts/prose.py [FILE ...]

A table has one row per file: its words, and of its sentences how many relatives ("that", "which", "what", "whose") and how
many "you" come to 1,000 words, how many semicolons to 100 sentences, and how many words the longest sentences have (the 90th
percentile). Code, tables, headings and addresses of links are no sentences. The figures point at pages to read again. They do
not say that a page is good.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from distributions import ROOT, folders

__all__ = ["Prose", "docstrings", "documents", "guides"]

RELATIVES_AT_MOST, SEMICOLONS_AT_MOST, LENGTH_AT_MOST, YOU_AT_LEAST = 22, 3, 28, 8

_FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
_NO_SENTENCE = re.compile(r"^\s*(\||#|<|\[[^\]]+\]:|Example::|[A-Za-z_]+:$).*$", re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")
_EXAMPLE = re.compile(r"::\n\n(?: +.*\n|\n)+")
_ADDRESS = re.compile(r"\]\([^)]*\)")
_CODE = re.compile(r"`+[^`]+`+")
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[A-Z\"'(*_`])|\n\s*\n")
_WORD = re.compile(r"[A-Za-z0-9'_.-]*[A-Za-z0-9]")
_RELATIVE = re.compile(r"\b(?:that|which|what|whose)\b", re.IGNORECASE)
_YOU = re.compile(r"\byou(?:r|rs|rself)?\b", re.IGNORECASE)


@dataclass
class Prose:
    """What was counted in texts; texts are added one after another."""

    relatives: int = 0
    you: int = 0
    semicolons: int = 0
    lengths: list[int] = field(default_factory=list)

    def add(self, text: str) -> Prose:
        """Count one more text in Markdown; return itself."""
        text = _INDENTED.sub("", _NO_SENTENCE.sub("", _FENCE.sub("", text)))
        text = _ITEM.sub("\n\n", _CODE.sub("Code", _ADDRESS.sub("]", text)))
        for sentence in _END.split(text):
            words = len(_WORD.findall(sentence))
            if words > 1:
                self.lengths.append(words)
                self.relatives += len(_RELATIVE.findall(sentence))
                self.you += len(_YOU.findall(sentence))
                self.semicolons += sentence.count(";")
        return self

    @property
    def words(self) -> int:
        """How many words stand in sentences."""
        return sum(self.lengths)

    def figures(self) -> tuple[float, float, float, int]:
        """Return relatives and "you" per 1,000 words, semicolons per 100 sentences, and the 90th percentile of lengths."""
        words, lengths = max(1, self.words), sorted(self.lengths) or [0]
        per = 1000 / words
        semicolons = 100 * self.semicolons / len(lengths)
        return (
            self.relatives * per,
            self.you * per,
            semicolons,
            lengths[int(0.9 * (len(lengths) - 1))],
        )


def documents() -> list[Path]:
    """Return all documents that are kept in git."""
    command = ["git", "-C", str(ROOT), "ls-files", "*.md"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return [ROOT / one for one in found if (ROOT / one).exists()]


def guides() -> list[Path]:
    """Return the README and the guides: what a user reads from its beginning to its end."""
    top = ("README.md", *(f"docs/{name}.md" for name in ("start", "batching", "production")))
    return [ROOT / one for one in top]


def docstrings() -> list[str]:
    """Return the docstrings of all public classes and functions, without their examples.

    The descriptions of options are left out as well: they are cells of tables, in the catalogue and in `headrace plugins info`.
    """
    public = json.loads((ROOT / "scripts" / "public_names.json").read_text(encoding="utf-8"))
    names = {name for module in public["modules"].values() for name in module} | {
        *public["backends"]
    }
    found: list[str] = []
    for folder in folders():
        for path in sorted((ROOT / folder / "src").rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [
                _EXAMPLE.sub("", _without_options(node)).replace("\n    ", "\n")
                for node in ast.walk(tree)
                if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in names
            ]
    return found


def _without_options(node: ast.ClassDef | ast.FunctionDef) -> str:
    text = ast.get_docstring(node) or ""
    return text.partition("\nAttributes:\n")[0] if node.name == "Options" else text


def _show(name: str, prose: Prose, words: int) -> None:
    relatives, you, semicolons, length = prose.figures()
    print(f"{words:7} {relatives:9.0f} {you:5.0f} {semicolons:10.0f} {length:6}  {name}")


def main(names: list[str]) -> None:
    """Print the table."""
    print("  words relatives   you semicolons length")
    every, words = Prose(), 0
    for path in [Path(one).resolve() for one in names] or documents():
        text = path.read_text(encoding="utf-8")
        words += len(text.split())
        every.add(text)
        _show(str(path.relative_to(ROOT)), Prose().add(text), len(text.split()))
    _show("all documents", every, words)
    if not names:
        public = Prose()
        for text in docstrings():
            public.add(text)
        _show("public docstrings", public, public.words)
    print(
        f"wanted: {RELATIVES_AT_MOST:8} {YOU_AT_LEAST:6} {SEMICOLONS_AT_MOST:9} {LENGTH_AT_MOST:7}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
