"""What breaks users against a release: names, parameters, options, words, codes, keys of stats(), commands, exit statuses.

python scripts/compatibility.py [REF]    exit 1 when something that REF had was taken away or means something else

REF is a commit or tag; without it each distribution is compared with its last release, the tag NAME-vVERSION, and what has no
release with the surface that `scripts/public_names.json` holds in the last commit. Two things are compared: the packages of
all distributions, read from their sources by griffe, and the surface as data (`scripts/public_names.py`), which knows what
stands in no signature.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import api
import griffe
import public_names
from distributions import ROOT, folders, project
from packaging.version import Version

SURFACE = public_names.FILE.relative_to(ROOT).as_posix()


def git(*arguments: str) -> bytes:
    """Return what a git command in the repository writes."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def last_release(name: str) -> str | None:
    """Return the tag of a distribution's last release, or None."""
    tags = git("tag", "--list", f"{name}-v*").decode().split()
    return max(tags, key=lambda tag: Version(tag.removeprefix(f"{name}-v")), default=None)


def removed_or_changed(folder: Path, ref: str) -> list[str]:
    """Return what griffe finds that breaks users of a distribution's package since a commit."""
    package = project(folder)["name"].replace("-", "_")
    sources = (folder / "src").relative_to(ROOT).as_posix()
    try:
        packed = git("archive", ref, "--", sources)
    except subprocess.CalledProcessError:
        return []  # it was not there yet
    with tempfile.TemporaryDirectory() as out, tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(out, filter="data")
        before = _loaded(package, Path(out) / sources)
    now = _loaded(package, ROOT / sources)
    found = []
    for path in (package, *(one for one in api.MODULES if one.startswith(f"{package}."))):
        inside = path.partition(".")[2]
        if inside and inside not in before.members:
            continue  # it was not there yet
        module = before[inside] if inside else before
        if inside and inside not in now.members:
            found.append(f"{path} is gone")
            continue
        same = now[inside] if inside else now
        exported = {str(one) for one in same.exports or ()}
        for name in sorted(str(one) for one in module.exports or ()):
            if name not in exported:
                found.append(f"{path}.{name} is gone")
                continue
            if name not in module.members or name not in same.members:
                continue  # it is imported when it is asked for: no signature stands here
            try:
                if module[name].is_module:
                    continue
                found += _explained(f"{module.path}.{name}", module[name], same[name])
            except griffe.AliasResolutionError:
                continue  # it is another distribution's
    return found


def _loaded(package: str, sources: Path) -> griffe.Object | griffe.Alias:
    return griffe.load(
        package, search_paths=[sources], allow_inspection=False, resolve_aliases=True
    )


def _explained(
    path: str, before: griffe.Object | griffe.Alias, now: griffe.Object | griffe.Alias
) -> list[str]:
    """Return what differs between a public name and the same one today, one sentence each."""
    old, new = before, now
    if old.is_alias:
        old = old.final_target
    if new.is_alias:
        new = new.final_target
    # Griffe compares what two parents have in common.
    said = []
    for one in griffe.find_breaking_changes(_alone(path, old), _alone(path, new)):
        where = path + one.obj.path.removeprefix(old.path).removeprefix(new.path)
        values = [getattr(value, "name", value) for value in (one.old_value, one.new_value)]
        shown = " to ".join(dict.fromkeys(str(value) for value in values if value is not None))
        said.append(f"{where}: {one.kind.value.lower()}{f' ({shown})' if shown else ''}")
    return said


def _alone(path: str, one: griffe.Object) -> griffe.Module:
    """Return a module that has one name alone."""
    parent = griffe.Module(path.rpartition(".")[0])
    parent.members[path.rpartition(".")[2]] = one
    return parent


def surface_changes(ref: str, *, with_modules: bool) -> list[str]:
    """Return what was taken away from the surface as data since a commit, perhaps without what griffe compares."""
    if not git("ls-tree", ref, "--", SURFACE):
        print(f"{ref} has no {SURFACE}: the sources alone are compared")
        return []
    before = json.loads(git("show", f"{ref}:{SURFACE}"))
    if not with_modules:
        del before["modules"]
    return public_names.breaking(before, json.loads(json.dumps(public_names.surface())))


def main(arguments: list[str]) -> int:
    """Print what breaks users; return 1 if anything does."""
    chosen = arguments[0] if arguments else None
    refs = {folder: chosen or last_release(project(folder)["name"]) for folder in folders()}
    core = refs[ROOT / "core"]
    found = [
        f"{project(folder)['name']}: {one}"
        for folder, ref in refs.items()
        if ref is not None
        for one in removed_or_changed(folder, ref)
    ]
    found += surface_changes(core or "HEAD", with_modules=core is None)
    for one in dict.fromkeys(found):
        print(f"breaking: {one}")
    without = [project(folder)["name"] for folder, ref in refs.items() if ref is None]
    if without:
        print(f"no release of {', '.join(without)}: compared with {SURFACE} of the last commit")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
