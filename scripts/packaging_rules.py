"""The rules of packaging: what a sdist and a wheel of a distribution must be before it may be released.

python scripts/packaging_rules.py [FOLDER ...]    build each, all without arguments, and say which rule it breaks; exit 1 if any does

Each rule is a function from what was built to its problems; `tests/test_packaging_rules.py` has a broken distribution for each.
"""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

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


def runs_alone(built: Built) -> list[str]:
    """It is imported, and the programs in its README run, where nothing is installed but what its README says, and what that requires.

    What is not installed here cannot be judged: the programs of a distribution that needs it are left out, and it is said.
    """
    metadata = built.metadata()
    text = str(metadata.get_payload())
    programs = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    asked = re.findall(r"^\$ pip install (.+)$", text, re.MULTILINE)
    asked = asked or re.findall(r"^pip install (.+)$", text, re.MULTILINE)[:1]
    name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
    wanted = [*(word for line in asked for word in shlex.split(line)), name]
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "site"
        with zipfile.ZipFile(built.wheel) as archive:
            archive.extractall(folder)
        own = metadata.get_all("Requires-Dist") or []
        try:
            _link(_required(wanted, name, own), folder)
        except PackageNotFoundError as missing:
            print(f"{name}: its README was not run alone, for {missing.name} is not installed here")
            return []
        programs = [f"import {built.wheel.name.split('-')[0]}", *programs]
        return [one for program in programs for one in _ran(program, folder, Path(top))]


def _required(wanted: list[str], name: str, own: list[str]) -> list[Distribution]:
    """Return what is installed here of what the requirements ask for, directly and through others, but for one distribution."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "", True) for text in wanted]
    while waiting:
        requirement, extra, ours = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        one = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for chosen in {"", *requirement.extras}:
            if (one, chosen) in seen:
                continue
            seen.add((one, chosen))
            if one != name and one not in found:
                try:
                    found[one] = distribution(one)
                except PackageNotFoundError:
                    if ours:
                        raise
                    break  # a library of others works here without it
            needs = own if one == name else found[one].requires or ()
            ours_too = one.partition("-")[0] == "headrace"
            waiting += [(Requirement(text), chosen, ours_too) for text in needs]
    return list(found.values())


def _link(installed: list[Distribution], folder: Path) -> None:
    """Link what distributions have installed here into a folder, which is a site of them alone."""
    for one in installed:
        for file in one.files or ():
            source = Path(str(file.locate()))
            if ".." in file.parts or not source.is_file():
                continue
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                try:
                    target.hardlink_to(
                        source
                    )  # OpenCV looks where its file really is, and gets lost behind a symbolic one
                except OSError:  # another file system
                    copy2(source, target)
        direct = json.loads(one.read_text("direct_url.json") or "{}")
        if direct.get("dir_info", {}).get("editable"):
            checkout = Path(unquote(urlsplit(direct["url"]).path))
            for package in (checkout / "src").iterdir():
                if (
                    package.is_dir()
                    and package.suffix != ".egg-info"
                    and not (folder / package.name).exists()
                ):
                    (folder / package.name).symlink_to(package)


def _ran(program: str, folder: Path, work: Path) -> list[str]:
    """Run a program where only a folder of packages is installed; return what went wrong."""
    start = f"import sys; sys.path[:0] = [{str(work)!r}, {str(folder)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + program],
        cwd=work,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return [f"alone, this does not run: {program.strip().splitlines()[0]} ...: {last}"]


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
    runs_alone,
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
