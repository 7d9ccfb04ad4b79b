"""Wheels of this repository's distributions, and an index of them that pip reads.

python scripts/wheels.py FOLDER            build a wheel of each distribution into FOLDER, and the index FOLDER/simple
python scripts/wheels.py FOLDER --stale    print the wheels in FOLDER that are installed here with other contents

It needs hatchling. The index is of plain files, as the simple repository API (PEP 503) has them:
``pip install --extra-index-url file:///.../FOLDER/simple headrace`` takes wheels from it.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import html
import json
import os
import re
import shutil
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

from distributions import folders

PAGE = "<!DOCTYPE html>\n<html>\n<head><title>{title}</title></head>\n<body>\n{links}</body>\n</html>\n"


def build(out: Path) -> list[Path]:
    """Build a wheel of each distribution into a folder, and give their paths."""
    from hatchling.build import build_wheel

    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    built, before = [], Path.cwd()
    # A wheel moves into the folder as a whole: who interrupts this leaves no half of one.
    with tempfile.TemporaryDirectory(dir=out) as aside:
        for folder in folders():
            remove_outdated_certificate(folder)
            os.chdir(folder)
            try:
                name = build_wheel(aside)
            finally:
                os.chdir(before)
            for old in out.glob(f"{name.partition('-')[0]}-*.whl"):
                old.unlink()
            built.append((Path(aside) / name).replace(out / name))
    return built


def remove_outdated_certificate(folder: Path) -> None:
    """Remove a certificate of other modules than a folder has, so that no wheel carries it."""
    file, source = folder / "certificate.json", folder / "src"
    if not file.exists():
        return
    modules = {
        path.relative_to(source).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in source.rglob("*.py")
    }
    try:
        (told,) = json.loads(file.read_text(encoding="utf-8"))["distributions"].values()
        holds = told["modules"] == modules
    except ValueError:  # whoever wrote it was interrupted
        holds = False
    if not holds:
        file.unlink()


def page(title: str, links: list[tuple[str, str, str]]) -> str:
    """Return a page of the index with links: address, attributes, text."""
    rows = "".join(
        f'<a href="{html.escape(address)}"{more}>{html.escape(text)}</a><br>\n'
        for address, more, text in links
    )
    return PAGE.format(title=html.escape(title), links=rows)


def write_index(out: Path, wheels: list[Path]) -> None:
    """Write the folder ``simple``: a page of all distributions, and for each one of its wheel."""
    simple = out / "simple"
    shutil.rmtree(simple, ignore_errors=True)
    names = []
    for wheel in sorted(wheels):
        metadata = inside(wheel).metadata
        name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        needed = f' data-requires-python="{html.escape(metadata["Requires-Python"])}"'
        (simple / name).mkdir(parents=True)
        link = (f"../../{wheel.name}#sha256={digest}", needed, wheel.name)
        (simple / name / "index.html").write_text(page(name, [link]), encoding="utf-8")
        names.append((f"{name}/", "", name))
    (simple / "index.html").write_text(page("Headrace", names), encoding="utf-8")


def inside(wheel: Path) -> PathDistribution:
    """Return the metadata of a wheel as if it were installed."""
    name, version, *_ = wheel.name.split("-")
    return PathDistribution(zipfile.Path(wheel, f"{name}-{version}.dist-info/"))


def is_stale(wheel: Path, installed: Distribution) -> bool:
    """Return whether what is installed is another than the wheel, though of the same version.

    An editable installation follows the sources by itself, but not what ``pyproject.toml`` says.
    """
    new = inside(wheel)
    if (
        json.loads(installed.read_text("direct_url.json") or "{}")
        .get("dir_info", {})
        .get("editable")
    ):
        return _asked(new) != _asked(installed)
    return not _rows(new) <= _rows(installed)


def _asked(one: Distribution) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    entries = sorted((entry.group, entry.name) for entry in one.entry_points)
    return sorted(one.requires or ()), one.metadata.get_all("Provides-Extra") or [], entries


def _rows(one: Distribution) -> set[tuple[str, ...]]:
    rows = csv.reader((one.read_text("RECORD") or "").splitlines())
    return {tuple(row) for row in rows if row and not row[0].endswith(".dist-info/RECORD")}


def stale(out: Path) -> list[Path]:
    """Return the wheels in a folder that are installed here with other contents."""
    found = []
    for wheel in sorted(out.glob("headrace*.whl")):
        try:
            installed = distribution(inside(wheel).metadata["Name"])
        except PackageNotFoundError:
            continue
        if is_stale(wheel, installed):
            found.append(wheel)
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Build wheels and an index of them.")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--stale", action="store_true", help="only say which are installed, but with other contents"
    )
    args = parser.parse_args()
    if args.stale:
        print(*stale(args.folder), sep="\n")
    else:
        write_index(args.folder, build(args.folder))


if __name__ == "__main__":
    main()
