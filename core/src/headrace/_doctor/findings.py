"""What is wrong with installed plugins: findings, each with reason and remedy."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from headrace._doctor.importable import Lookup
from headrace._doctor.owners import Owners, is_there
from headrace._registry.hooks import given
from headrace.errors import MissingDependencyError, PluginError, PluginLoadError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement

    from headrace._registry import PluginRecord

__all__ = [
    "HARMLESS",
    "all_findings",
    "light_findings",
    "listed",
    "missing_libraries",
    "unknown_names",
]

HARMLESS = ("disabled", "unknown_plugin")
"""Kinds of findings that are as somebody wanted them, or may be: they are told, and not wrong."""

_FOLDER = re.compile(r"[^-]+-([^-]+)\.dist-info")


def light_findings(records: Sequence[PluginRecord]) -> list[dict[str, Any]]:
    """Report what is seen without importing a backend, or opening metadata of other distributions.

    The light modules with hooks are loaded.
    """
    return _all(records, records, load=False)


def all_findings(
    records: Sequence[PluginRecord], among: Sequence[PluginRecord] | None = None
) -> list[dict[str, Any]]:
    """Import the modules of some plugins, each guarded, and report everything that is wrong.

    Args:
        records: The plugins that are imported.
        among: All plugins, whose names are compared; default: the same.
    """
    return _all(records, records if among is None else among, load=True)


def _all(
    records: Sequence[PluginRecord], among: Sequence[PluginRecord], *, load: bool
) -> list[dict[str, Any]]:
    from headrace._doctor.offers import call_hooks, wrong_offers

    # A plugin whose hooks fail becomes broken, which is reported with the others.
    call_hooks([record for record in records if record.state == "ok"])
    usable = [record for record in records if record.state == "ok"]
    found = [*_findings(records, load=load), *_names_taken(among)]
    for wrong in wrong_offers(usable, load=load):
        others = [other.distribution for other in wrong.others]
        found.append(_finding(*wrong[:4], others=others))
    return found


def missing_libraries(asks_for: Sequence[dict[str, Any]]) -> Iterator[Problem]:
    """Report what the distributions that a configuration asks for require and is not installed.

    Their backends can be checked without it, and not be built.
    """
    from headrace._registry import registry

    asked = {one["distribution"] for one in asks_for}
    for record in registry.plugins():
        if record.distribution not in asked:
            continue
        for found in _missing(record, opened=True):
            message = f"{record.distribution} cannot be built here: {found['reason']}"
            yield Problem("missing_dependency", message, hint=found["remedy"])


def unknown_names(records: Sequence[PluginRecord]) -> list[dict[str, Any]]:
    """Report names in ``HEADRACE_PLUGINS`` that mean no installed plugin, so that a slip is seen."""
    from headrace._registry import normalised_plugin, unknown_plugins
    from headrace._registry.catalogue import KNOWN_ELSEWHERE
    from headrace._registry.registry import nearest

    known = [record.plugin for record in records]
    elsewhere = {normalised_plugin(name): name for name in KNOWN_ELSEWHERE.values()}
    found: list[dict[str, Any]] = []
    for name in unknown_plugins(records):
        near = nearest(name, [*known, *elsewhere]) if name not in elsewhere else None
        remedy = f"Installed are: {', '.join(known)}." if known else "No plugin is installed."
        if name in elsewhere:
            remedy = f"Install it: pip install {elsewhere[name]}"
        found.append(
            {
                "plugin": name,
                "distribution": None,
                "others": [],
                "version": None,
                "backend": None,
                "kind": "unknown_plugin",
                "reason": f"no installed plugin is called {name!r}",
                "remedy": remedy if near is None else f"Did you mean {near!r}?",
            }
        )
    return found


def listed(
    records: Sequence[PluginRecord], findings: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Give the records as plain data; the first finding about one that is ok is its state."""
    rows = []
    for record in records:
        row = {**record.to_dict(), "hooks": given(record)}
        about = [f for f in findings if record.distribution in (f["distribution"], *f["others"])]
        if record.state == "ok" and about:
            row.update(state=about[0]["kind"], reason=about[0]["reason"], remedy=about[0]["remedy"])
        rows.append(row)
    return rows


def _findings(records: Sequence[PluginRecord], *, load: bool) -> Iterator[dict[str, Any]]:
    lookup, owners = Lookup(), Owners()
    for record in records:
        if record.state != "ok":
            yield _finding(record, record.state, record.reason, record.remedy)
        if record.state in ("disabled", "incompatible"):
            continue
        yield from _missing(record, opened=load)
        yield from _overlaps(record, owners) if load else ()
        yield from _not_importable(record) if load else _lacking(record, lookup)


def _finding(
    record: PluginRecord,
    kind: str,
    reason: str | None,
    remedy: str | None,
    backend: str | None = None,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "plugin": record.plugin,
        "distribution": record.distribution,
        "others": list(others),
        "version": record.version,
        "backend": backend,
        "kind": kind,
        "reason": reason,
        "remedy": remedy,
    }


def _missing(record: PluginRecord, *, opened: bool) -> Iterator[dict[str, Any]]:
    """Compare what the distribution requires with what is installed, importing nothing.

    Unless metadata may be ``opened``, the version is that in the name of their folder.
    """
    from importlib.metadata import distributions

    for text in record.dependencies:
        wanted = _parsed(text)
        if wanted is None:
            continue
        remedy = f'Install it: pip install "{_without_marker(wanted)}"'
        plain = f"{wanted.name}{wanted.specifier}"
        found = next(iter(distributions(name=wanted.name)), None)
        if found is None:
            if is_there(wanted.name):
                continue  # another build of that library has taken its place
            reason = f"it requires {plain}, which is not installed"
            yield _finding(record, "missing_dependency", reason, remedy)
            continue
        installed = found.version if opened else _version_of_folder(found)
        if installed and not _contains(wanted, installed):
            reason = f"it requires {plain}, installed is {installed}"
            yield _finding(record, "missing_dependency", reason, remedy)


def _without_marker(wanted: Requirement) -> str:
    """Give a requirement as pip takes it here and now."""
    return str(wanted).partition(";")[0].strip()


def _contains(wanted: Requirement, installed: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return wanted.specifier.contains(installed, prereleases=True)
    except InvalidVersion:
        return True  # a version from before there were rules for them cannot be compared


def _overlaps(record: PluginRecord, owners: Owners) -> Iterator[dict[str, Any]]:
    """Report libraries of which two builds are installed, one written over the other."""
    for wanted in filter(None, map(_parsed, record.dependencies)):
        for package, names in owners.rivals(wanted.name):
            reason = f"{' and '.join(names)} install {package!r} into one folder"
            remedy = f"Type `pip uninstall -y {' '.join(names)}`, then install one of them."
            yield _finding(record, "overlap", reason, remedy)


def _version_of_folder(found: Distribution) -> str | None:
    """Give the version in ``name-version.dist-info``, or None for metadata that lie elsewhere."""
    folder = _FOLDER.fullmatch(getattr(getattr(found, "_path", None), "name", ""))
    return folder[1] if folder is not None else None


@functools.cache
def _parsed(text: str) -> Requirement | None:
    """Give what a plugin requires besides core, or None for what is not for here or now."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    try:
        wanted = Requirement(text)
    except InvalidRequirement:
        return None  # what is no requirement asks for nothing that could be missing
    if canonicalize_name(wanted.name) == "headrace":
        return None
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        return None
    return wanted


def _not_importable(record: PluginRecord) -> Iterator[dict[str, Any]]:
    from headrace._registry import BackendSpec

    for name, path in sorted(record.backends.items()):
        spec = BackendSpec(name, record.plugin, record.distribution, record.version, path)
        try:
            spec.load()
        except MissingDependencyError as error:
            yield _finding(record, "missing_dependency", error.what, error.hint, name)
        except PluginError as error:
            remedy = f"Install it again: pip install --force-reinstall {record.distribution}"
            if not isinstance(error, PluginLoadError):
                remedy = f"Ask its author for a fix. {error.hint or ''}".rstrip()
            if isinstance(error.__cause__, SystemExit):
                remedy = "Ask its author for a fix: its module ends the program."
            yield _finding(record, "broken", error.what, remedy, name)


def _lacking(record: PluginRecord, lookup: Lookup) -> Iterator[dict[str, Any]]:
    """Report libraries that modules with backends import and that are not there."""
    for name, path in sorted(record.backends.items()):
        for library in lookup.lacking(path.partition(":")[0]):
            reason = (
                f"the backend {name!r} cannot be imported from {path!r}: there is no {library!r}"
            )
            remedy = f"Install {library!r}, or install {record.distribution} again."
            yield _finding(record, "missing_dependency", reason, remedy, name)


def _names_taken(records: Sequence[PluginRecord]) -> Iterator[dict[str, Any]]:
    """Report names that two plugins offer, or that belong to core."""
    from headrace._registry.catalogue import CORE_BACKENDS

    offered: dict[str, list[PluginRecord]] = {}
    for record in records:
        for name in record.backends if record.state == "ok" else ():
            offered.setdefault(name, []).append(record)
    for name, owners in sorted(offered.items()):
        if name in CORE_BACKENDS:
            reason = f"the name {name!r} belongs to headrace itself, so this one is never used"
            for record in owners:
                yield _finding(
                    record, "duplicate", reason, "Ask its author for another name.", name
                )
        elif len(owners) > 1:
            names = " and ".join(owner.distribution for owner in owners)
            written = " or ".join(f"{owner.plugin}:{name}" for owner in owners)
            reason = f"{name!r} is offered by {names}"
            remedy = f"Write {written}, or disable one with HEADRACE_PLUGINS."
            others = [owner.distribution for owner in owners[1:]]
            yield _finding(owners[0], "duplicate", reason, remedy, name, others)
