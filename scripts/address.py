"""Where Headrace is to be had: the address of the repository, and whether a package index has it. Both stand here alone.

`python scripts/address.py` writes `[project.urls]` of each pyproject.toml and what the README clones. Once `ON_INDEX` is true, it takes out of
all documents and templates what they say about wheels of a clone.
"""

from __future__ import annotations

import re
from pathlib import Path

from distributions import ROOT, folders
from made_pages import is_made

ADDRESS = "https://headrace.example"
"""The repository has no public address yet; the domain .example belongs to nobody."""

CLONE = f"{ADDRESS}/headrace.git"
"""What `git clone` takes."""

ON_INDEX = False
"""Whether the distributions are on a package index."""

_URLS = re.compile(r"(?<=^\[project\.urls\]\n)(?:\w+ = .*\n)+", re.MULTILINE)

_CLONES = re.compile(r"(?<=^\$ git clone )\S+$", re.MULTILINE)

# A sentence of its own says it: a paragraph, a line of comment, or one that follows another sentence. It ends where a line or
# another sentence begins, for there are points in names of files, too.
_TOLD = (
    r"(?:[^.\n]* not on a package index yet: |In a clone(?: of Headrace)?, (?:run )?`\./dev install(?: \w+)?` )"
    r".*?\."
)
_FOLLOWS = re.compile(rf"(?<=[.)]) {_TOLD}(?=\s)", re.DOTALL)
_ALONE = re.compile(rf"^{_TOLD}(?:\n+|$| )", re.DOTALL | re.MULTILINE)
_LINES = re.compile(
    r"^(?:\$ \./dev wheels|\$ export PIP_FIND_LINKS=.*|COPY wheels /wheels)\n", re.MULTILINE
)
# An environment of a clone, which anybody makes once there is an index.
_INSTALL = re.compile(
    r"^\$ \./dev install((?: \w+)*)\n(?:\$ \. \.venv/bin/activate\n)?", re.MULTILINE
)
_SAYS = re.compile(
    r"package index yet|PIP_FIND_LINKS|--find-links /?wheels|^\$ \./dev install", re.MULTILINE
)


def project(folder: Path) -> str:
    """Return the text of a distribution's ``pyproject.toml`` with the address."""
    changelog = (folder / "CHANGELOG.md").relative_to(ROOT).as_posix()
    places = {"Documentation": "docs", "Changelog": changelog, "Source": "source"}
    urls = "".join(f'{name} = "{ADDRESS}/{place}"\n' for name, place in places.items())
    text, count = _URLS.subn(urls, (folder / "pyproject.toml").read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{folder}/pyproject.toml has no [project.urls], or two")
    return text


def cloned(text: str) -> str:
    """Return the text of a document that clones the repository from where it is."""
    return _CLONES.sub(CLONE, text)


def documents() -> list[Path]:
    """Return the written documents, and the files that `headrace new` makes, which may say how pip finds Headrace."""
    patterns = (
        "*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "*/README.md",
        "libs/*/*.md",
        "plugins/*/*.md",
    )
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    templates = (ROOT / "cli" / "src" / "headrace_cli" / "_templates").rglob("*")
    found += [path for path in templates if path.suffix == ".md" or path.name == "Dockerfile"]
    return sorted({path for path in found if "made" not in path.parts and not is_made(path)})


def _installs(command: re.Match[str]) -> str:
    extras = ",".join(command[1].split())
    wanted = f'"headrace[{extras}]"' if extras else '"headrace[cli]" headrace-cv headrace-ort'
    return f"$ python3 -m venv .venv\n$ . .venv/bin/activate\n$ pip install {wanted}\n"


def on_index(text: str) -> str:
    """Return the text of a document as it reads once a package index has the distributions.

    Raises:
        ValueError: It would still say how pip finds wheels of a clone.
    """
    found = _LINES.sub("", _ALONE.sub("", _FOLLOWS.sub("", text)))
    found = re.sub(r" --find-links /?wheels\b", "", found)
    found = _INSTALL.sub(_installs, found)
    left = _SAYS.search(found)
    if left is not None:
        line = found.count("\n", 0, left.start())
        raise ValueError(f"not a sentence of its own: {found.splitlines()[line]}")
    return found


if __name__ == "__main__":
    for one in folders():
        (one / "pyproject.toml").write_text(project(one), encoding="utf-8")
    readme = ROOT / "README.md"
    readme.write_text(cloned(readme.read_text(encoding="utf-8")), encoding="utf-8")
    if ON_INDEX:
        for page in documents():
            page.write_text(on_index(page.read_text(encoding="utf-8")), encoding="utf-8")
