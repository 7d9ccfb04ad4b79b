"""What is wrong with installed plugins, as far as that is seen without importing a backend."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace._problem import nearest
from headrace._registry.discovery import (
    CORE_BACKENDS,
    CORE_POLICIES,
    KNOWN_ELSEWHERE,
    PluginRecord,
    is_core,
    normalised_plugin,
    requirement_here,
    unknown_plugins,
)
from headrace._registry.hooks import HOOK_KINDS, call_hook, given
from headrace._registry.registry import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from importlib.metadata import Distribution

    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with installed plugins.

    Attributes:
        kind: ``"disabled"``, ``"incompatible"``, ``"broken"``, ``"missing_dependency"``,
            ``"duplicate"`` or ``"unknown_plugin"`` (a name in ``HEADRACE_PLUGINS``).
        reason: What is wrong, in a sentence.
        remedy: What to do about it, or None.
        plugin: The qualifier of the plugin.
        distribution, version: As installed; None where no plugin has that name.
        backend: The backend that it is about, or None.
        others: Other distributions that it is about.
    """

    kind: str
    reason: str
    remedy: str | None
    plugin: str
    distribution: str | None = None
    version: str | None = None
    backend: str | None = None
    others: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain data for JSON, as ``headrace plugins doctor --json`` prints it."""
        return asdict(self)


def findings() -> list[Finding]:
    """Report what is wrong with installed plugins, as far as that is seen without importing a backend."""
    global _found
    records = registry.plugins()
    if _found[0] is not records:  # other metadata were read since
        _found = records, _find(records)
    return list(_found[1])


_found: tuple[list[PluginRecord], list[Finding]] = ([], [])


def _find(records: list[PluginRecord]) -> list[Finding]:
    for hook in HOOK_KINDS:
        call_hook(hook)  # a plugin whose hooks fail becomes broken
    return [
        *(finding for record in records for finding in _about(record)),
        *_clashes([record for record in records if record.state == "ok"]),
        *_unknown_plugins(records),
    ]


def _finding(
    record: PluginRecord,
    kind: str,
    reason: str | None,
    remedy: str | None,
    backend: str | None = None,
    others: Sequence[PluginRecord] = (),
) -> Finding:
    names = tuple(other.distribution for other in others)
    whose = (record.plugin, record.distribution, record.version)
    return Finding(kind, reason or "", remedy, *whose, backend, names)


def _about(record: PluginRecord) -> Iterator[Finding]:
    """Report what is wrong with one plugin by itself."""
    if record.state != "ok":
        yield _finding(record, record.state, record.reason, record.remedy)
    if record.state in ("disabled", "incompatible"):
        return
    for reason, remedy in missing_requirements(record.dependencies):
        yield _finding(record, "missing_dependency", reason, remedy)


def _clashes(records: Sequence[PluginRecord]) -> Iterator[Finding]:
    """Report names that several plugins offer, or that core has."""
    yield from _names_taken("backend", {r.plugin: (r, r.backends) for r in records}, CORE_BACKENDS)
    hooks = {record.plugin: (record, given(record)) for record in records}
    for hook, what in HOOK_KINDS.items():
        short = hook.removeprefix("headrace_")
        if short == "node_entrypoint":
            continue
        taken = CORE_BACKENDS if short == "definitions" else CORE_POLICIES
        tables = {plugin: (record, gave[short]) for plugin, (record, gave) in hooks.items()}
        yield from _names_taken(what, tables, taken if "command" not in short else {})
    for record, gave in hooks.values():
        yield from _named_like_backends(record, gave["definitions"], records)
    fronts = [record for record, gave in hooks.values() if gave["node_entrypoint"] is not None]
    if len(fronts) > 1:
        names = " and ".join(record.distribution for record in fronts)
        reason = f"{names} both set the expression of a node, which fails every configuration"
        remedy = "Disable one of them with HEADRACE_PLUGINS."
        yield _finding(fronts[0], "duplicate", reason, remedy, others=fronts[1:])


def _names_taken(
    what: str,
    tables: Mapping[str, tuple[PluginRecord, Mapping[str, str]]],
    core: Mapping[str, str],
) -> Iterator[Finding]:
    offered: dict[str, list[PluginRecord]] = {}
    for record, table in tables.values():
        for name in table:
            offered.setdefault(name, []).append(record)
    for name, owners in sorted(offered.items()):
        backend = name if what == "backend" else None
        if name in core:
            reason = f"the {what} {name!r} is never used: headrace itself has one of that name"
            for owner in owners:
                remedy = "Ask its author for another name."
                yield _finding(owner, "duplicate", reason, remedy, backend)
        elif len(owners) > 1:
            names = " and ".join(owner.distribution for owner in owners)
            ways = " or ".join(f"{owner.plugin}:{name}" for owner in owners)
            reason = f"the {what} {name!r} is offered by {names}"
            remedy = f"Write {ways}, or disable one with HEADRACE_PLUGINS."
            yield _finding(owners[0], "duplicate", reason, remedy, backend, owners[1:])


def _named_like_backends(
    record: PluginRecord, definitions: Mapping[str, str], records: Sequence[PluginRecord]
) -> Iterator[Finding]:
    """Report definitions that have the name of a backend: the bare name is refused then."""
    for name in definitions:
        for owner in (one for one in records if name in one.backends):
            ways = f"{record.plugin}:{name} or {owner.plugin}:{name}"
            reason = f"the definition {name!r} is named like a backend of {owner.distribution}"
            remedy = f"Write {ways}, or disable one with HEADRACE_PLUGINS."
            if owner is record:
                remedy = "Ask its author for another name."
            yield _finding(record, "duplicate", reason, remedy, others=[owner])


def _unknown_plugins(records: Sequence[PluginRecord]) -> Iterator[Finding]:
    """Report names in ``HEADRACE_PLUGINS`` that mean no installed plugin, so that a slip is seen."""
    known = [record.plugin for record in records]
    elsewhere = {normalised_plugin(name): name for name in KNOWN_ELSEWHERE.values()}
    for name in unknown_plugins(records):
        remedy = f"Installed are: {', '.join(known)}." if known else "No plugin is installed."
        if name in elsewhere:
            remedy = f"Install it: pip install {elsewhere[name]}"
        elif near := nearest(name, [*known, *elsewhere]):
            remedy = f"Did you mean {near!r}?"
        yield Finding("unknown_plugin", f"no installed plugin is called {name!r}", remedy, name)


_FOLDER = re.compile(r"[^-]+-([^-]+)\.dist-info")


def missing_requirements(requires: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Give reason and remedy for each requirement that is not met here; nothing is imported.

    The version of a library is read from the name of its ``.dist-info`` folder where that has one,
    so that its metadata need not be opened.

    Args:
        requires: Requirements as in ``Requires-Dist``; those of core itself are left out.
    """
    from importlib.metadata import distributions

    for wanted in filter(None, map(_library, requires)):
        found = next(iter(distributions(name=wanted.name)), None)
        if found is None and _can_be_imported(wanted.name):
            continue  # another build of that library, `lib-gpu` for `lib`, has taken its place
        wish = f"{wanted.name}{wanted.specifier}"
        remedy = f'Install it: pip install "{str(wanted).partition(";")[0].strip()}"'
        if found is None:
            yield f"it requires {wish}, which is not installed", remedy
        elif not _contains(wanted, version := _version(found)):
            yield f"it requires {wish}, installed is {version}", remedy


def _version(found: Distribution) -> str:
    folder = _FOLDER.fullmatch(getattr(getattr(found, "_path", None), "name", ""))
    return folder[1] if folder is not None else found.version


def _contains(wanted: Requirement, installed: str) -> bool:
    from packaging.version import InvalidVersion

    try:
        return wanted.specifier.contains(installed, prereleases=True)
    except InvalidVersion:
        return True  # a version from before there were rules for them cannot be compared


def _can_be_imported(distribution: str) -> bool:
    from packaging.utils import canonicalize_name

    try:
        found = importlib.util.find_spec(canonicalize_name(distribution).replace("-", "_"))
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None


def _library(text: str) -> Requirement | None:
    """Give what a plugin requires besides core, or None for what is not for here or now."""
    from packaging.requirements import InvalidRequirement

    try:
        wanted = requirement_here(text)
    except InvalidRequirement:
        return None  # what is no requirement asks for nothing that could be missing
    return None if wanted is None or is_core(wanted) else wanted
