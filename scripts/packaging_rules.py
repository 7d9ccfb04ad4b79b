"""The rules of packaging: what a sdist and a wheel of a distribution must be before it may be released.

python scripts/packaging_rules.py [FOLDER ...]    build each, all without arguments, and say which rule it breaks; exit 1 if any does

Each rule is a function from what was built to its problems; `tests/test_packaging_rules.py` has a broken distribution for each.
"""

from __future__ import annotations

import email
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from email.message import Message

ROOT = Path(__file__).resolve().parents[1]

_BUILD = """
import os, sys, tarfile
from hatchling.build import build_sdist, build_wheel
source, out = sys.argv[1:]
os.environ["SOURCE_DATE_EPOCH"] = "1577836800"
os.chdir(source)
for name in ("first", "second"):
    os.makedirs(f"{out}/{name}")
    build_wheel(f"{out}/{name}")
    sdist = build_sdist(f"{out}/{name}")
with tarfile.open(f"{out}/first/{sdist}") as archive:
    archive.extractall(f"{out}/unpacked")
os.makedirs(f"{out}/of_sdist")
os.chdir(f"{out}/unpacked/{sdist.removesuffix('.tar.gz')}")
build_wheel(f"{out}/of_sdist")
"""


@dataclass(frozen=True)
class Built:
    """What was built of one distribution.

    Attributes:
        first: The folder with its wheel and its sdist.
        second: The same, built a second time.
        of_sdist: The folder with a wheel that was made of the sdist.
    """

    first: Path
    second: Path
    of_sdist: Path

    @property
    def wheel(self) -> Path:
        """The wheel."""
        (found,) = self.first.glob("*.whl")
        return found

    @property
    def sdist(self) -> Path:
        """The sdist."""
        (found,) = self.first.glob("*.tar.gz")
        return found

    def names(self) -> list[str]:
        """Return the names of the files in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def metadata(self) -> Message:
        """Return the metadata in the wheel."""
        (name,) = [one for one in self.names() if one.endswith(".dist-info/METADATA")]
        with zipfile.ZipFile(self.wheel) as archive:
            return email.message_from_bytes(archive.read(name))


def build(source: Path, out: Path) -> Built:
    """Build a distribution twice, and a wheel of its sdist, with nothing of the repository around it."""
    alone = out / "source"
    copytree(source, alone, ignore=ignore_patterns(".venv", "dist", "__pycache__"))
    subprocess.run([sys.executable, "-W", "ignore", "-c", _BUILD, str(alone), str(out)], check=True)
    return Built(out / "first", out / "second", out / "of_sdist")


def has_license(built: Built) -> list[str]:
    """Wheel and sdist hold the licence of the repository, and name it."""
    text = (ROOT / "LICENSE").read_bytes()
    found = []
    with zipfile.ZipFile(built.wheel) as archive:
        inside = [one for one in archive.namelist() if one.endswith("/licenses/LICENSE")]
        if [archive.read(one) for one in inside] != [text]:
            found.append("the wheel has not the LICENSE of the repository")
    with tarfile.open(built.sdist) as archive:
        inside = [one for one in archive.getnames() if re.fullmatch(r"[^/]+/LICENSE", one)]
        files = [archive.extractfile(one) for one in inside]
        if [one.read() for one in files if one is not None] != [text]:
            found.append("the sdist has not the LICENSE of the repository")
    if built.metadata()["License-Expression"] != "Apache-2.0":
        found.append("License-Expression is not Apache-2.0")
    return found


def has_metadata(built: Built) -> list[str]:
    """It says where its source is, and which versions of Python it is for, which agree."""
    metadata = built.metadata()
    python = "Programming Language :: Python :: "
    classifiers = metadata.get_all("Classifier") or []
    minors = {one.removeprefix(python) for one in classifiers if one.startswith(python)}
    found = [] if metadata.get_all("Project-URL") else ["there is no Project-URL"]
    if metadata["Requires-Python"] != ">=3.10":
        found.append(f"Requires-Python is {metadata['Requires-Python']}, not >=3.10")
    missing = {"3.10", "3.11", "3.12", "3.13", "3.14"} - minors
    return [*found, *(f"no classifier of Python {one}" for one in sorted(missing))]


def holds_its_package_alone(built: Built) -> list[str]:
    """The wheel holds one package with `py.typed`, and neither tests nor names that cannot be imported."""
    package = built.wheel.name.split("-")[0]
    names = built.names()
    others = {one.split("/")[0] for one in names} - {package}
    found = [f"the wheel has {one}" for one in sorted(others) if not one.endswith(".dist-info")]
    if f"{package}/py.typed" not in names:
        found.append("there is no py.typed")
    modules = [one for one in names if one.endswith(".py")]
    found += [f"the wheel has the test {one}" for one in modules if "/test_" in one]
    parts = [(one, one.removesuffix(".py").split("/")) for one in modules]
    return [
        *found,
        *(
            f"{one} cannot be imported"
            for one, names in parts
            if not all(map(str.isidentifier, names))
        ),
    ]


def links_outside(built: Built) -> list[str]:
    """Its README links to nothing by a path, which leads nowhere on a package index."""
    text = str(built.metadata().get_payload())
    links = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [f"the README links to {one}" for one in links if not re.match(r"https?://|#", one)]


def is_rendered(built: Built) -> list[str]:
    """An index can show its README: `twine check --strict`."""
    command = [
        sys.executable,
        "-m",
        "twine",
        "check",
        "--strict",
        str(built.wheel),
        str(built.sdist),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"twine check: {(done.stdout + done.stderr).strip()}"]


def is_the_same_twice(built: Built) -> list[str]:
    """Built again, it has the same bytes."""
    return [
        f"{one.name} has other bytes when it is built again"
        for one in (built.wheel, built.sdist)
        if _digest(one) != _digest(built.second / one.name)
    ]


def is_whole_in_its_sdist(built: Built) -> list[str]:
    """The wheel of its sdist holds what the wheel of its source holds."""
    (other,) = built.of_sdist.glob("*.whl")

    def content(wheel: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(wheel) as archive:
            return {
                one: archive.read(one) for one in archive.namelist() if not one.endswith("/RECORD")
            }

    ours, theirs = content(built.wheel), content(other)
    differ = sorted(one for one in ours.keys() | theirs.keys() if ours.get(one) != theirs.get(one))
    return [f"{one} is another in the wheel of the sdist" for one in differ]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


RULES: tuple[Callable[[Built], list[str]], ...] = (
    has_license,
    has_metadata,
    holds_its_package_alone,
    links_outside,
    is_rendered,
    is_the_same_twice,
    is_whole_in_its_sdist,
)
"""Every rule; each returns what is wrong."""


def folders() -> list[Path]:
    """Return the folders of all distributions."""
    patterns = ("*/pyproject.toml", "libs/*/pyproject.toml", "plugins/*/pyproject.toml")
    return sorted(path.parent for pattern in patterns for path in ROOT.glob(pattern))


def main(names: list[str]) -> int:
    """Build distributions, and print what is wrong with them."""
    broken = 0
    for folder in [Path(name) for name in names] or folders():
        with tempfile.TemporaryDirectory() as out:
            built = build(folder, Path(out))
            problems = [one for rule in RULES for one in rule(built)]
        for problem in problems:
            print(f"{folder.name}: {problem}")
        broken += bool(problems)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
