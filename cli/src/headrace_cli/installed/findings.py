"""Findings about installed plugins that can be made without importing a backend."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from headrace.errors import among
from headrace.plugins import KNOWN_BACKENDS, core, installed, qualifier
from headrace_cli.names import how_to_install

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from importlib.metadata import Distribution

    from headrace.plugins import Plugin

NOUNS = {
    "batch_policies": "batch policy",
    "dispatch_policies": "dispatch policy",
    "probes": "probe",
    "commands": "command",
    "node_keys": "node key",
    "rewriters": "translated name",
    "apis": "API",
    "readers": "kind of file",
    "fetchers": "scheme",
    "records": "file of records",
}
"""What plugins offer besides backends, and the word for an entry of each kind."""

HARMLESS = ("disabled", "outdated_certificate", "unknown_plugin")
"""Kinds of findings that the user may have wanted, or can live with: they are printed, and the exit status stays 0."""


@dataclass(frozen=True)
class Finding:
    """One problem with installed plugins.

    Attributes:
        kind: ``"disabled"``, ``"incompatible"``, ``"broken"``, ``"missing_dependency"``,
            ``"overlap"``, ``"duplicate"``, ``"modified"``, ``"outdated_certificate"`` or ``"unknown_plugin"`` (a
            name in ``HEADRACE_PLUGINS``).
        reason: The problem, in a sentence.
        remedy: What to do about it, or None.
        plugin: The qualifier of the plugin.
        distribution, version: The distribution as it is installed. None where no plugin has that name.
        backend: The backend concerned, or None.
        others: Other distributions concerned.
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
        """Return the finding as plain data for JSON, as ``headrace plugins list --json`` prints it."""
        return asdict(self)


def findings() -> list[Finding]:
    """Return all findings about installed plugins that can be made without importing a backend."""
    plugins = installed()
    return [
        *(finding for plugin in plugins for finding in _about(plugin)),
        *_clashes([plugin for plugin in plugins if plugin.usable]),
        *_unknown_plugins(plugins),
    ]


def with_states(plugins: Iterable[Plugin], findings: Sequence[Finding]) -> list[Plugin]:
    """Return plugins with new states: the first finding about a plugin that is ok is its state."""
    return [_with_state(plugin, findings) for plugin in plugins]


def _with_state(plugin: Plugin, findings: Sequence[Finding]) -> Plugin:
    for finding in findings if plugin.state == "ok" else ():
        if plugin.distribution in (finding.distribution, *finding.others):
            return replace(plugin, state=finding.kind, reason=finding.reason, remedy=finding.remedy)
    return plugin


def finding_about(
    plugin: Plugin,
    kind: str,
    reason: str | None,
    remedy: str | None,
    backend: str | None = None,
    others: Sequence[Plugin] = (),
) -> Finding:
    """Make a finding about a plugin, perhaps together with others."""
    names = tuple(other.distribution for other in others)
    whose = (plugin.plugin, plugin.distribution, plugin.version)
    return Finding(kind, reason or "", remedy, *whose, backend, names)


def _about(plugin: Plugin) -> Iterator[Finding]:
    """Give the findings about one plugin for itself."""
    if plugin.state != "ok":
        yield finding_about(plugin, plugin.state, plugin.reason, plugin.remedy)
    if plugin.state in ("disabled", "incompatible"):
        return
    for reason, remedy in missing_requirements(plugin.requires):
        yield finding_about(plugin, "missing_dependency", reason, remedy)
    remedy = "Ask its author for another: a letter, then letters and digits."
    for name in plugin.backends:
        if _NAME.fullmatch(name) is None:
            reason = f"the backend {name!r} is never used: no expression can hold that name"
            yield finding_about(plugin, "broken", reason, remedy, name)
    for name in plugin.offers["commands"]:
        if _COMMAND.fullmatch(name) is None:
            reason = f"the command {name!r} is no word on a command line"
            yield finding_about(plugin, "broken", reason, remedy)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-/]*")
"""A name in an expression, without its qualifier."""

_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def _clashes(plugins: Sequence[Plugin]) -> Iterator[Finding]:
    """Report names that several plugins offer, or that core has."""
    own = core()
    yield from _names_taken("backend", [(p, p.backends) for p in plugins], own.backends)
    for kind, noun in NOUNS.items():
        tables = [(plugin, plugin.offers[kind]) for plugin in plugins]
        yield from _names_taken(noun, tables, own.offers[kind])


def _names_taken(
    noun: str, tables: Iterable[tuple[Plugin, Iterable[str]]], taken: Container[str]
) -> Iterator[Finding]:
    offered: dict[str, list[Plugin]] = {}
    for plugin, names in tables:
        for name in names:
            offered.setdefault(name, []).append(plugin)
    for name, owners in sorted(offered.items()):
        backend = name if noun == "backend" else None
        if name in taken:
            for owner in owners:
                remedy = f"Write {owner.plugin}:{name}, or ask its author for another name."
                reason = f"the {noun} {name!r} is hidden: headrace itself has one of that name"
                yield finding_about(owner, "duplicate", reason, remedy, backend)
        elif len(owners) > 1:
            both = " and ".join(owner.distribution for owner in owners)
            ways = " or ".join(f"{owner.plugin}:{name}" for owner in owners)
            reason = f"the {noun} {name!r} is offered by {both}"
            remedy = f"Write {ways}, or disable one with HEADRACE_PLUGINS."
            yield finding_about(owners[0], "duplicate", reason, remedy, backend, owners[1:])


def _unknown_plugins(plugins: Sequence[Plugin]) -> Iterator[Finding]:
    """Report names in ``HEADRACE_PLUGINS`` that match no installed plugin; they may be misspelt."""
    known = [plugin.plugin for plugin in plugins]
    elsewhere = {qualifier(name): name for name in KNOWN_BACKENDS.values()}
    words = filter(None, map(str.strip, os.environ.get("HEADRACE_PLUGINS", "").split(",")))
    named = [qualifier(word.removeprefix("-").strip()) or word for word in words]
    for name in dict.fromkeys(word for word in named if word not in known):
        remedy = f"Installed are: {', '.join(known)}." if known else "No plugin is installed."
        if name in elsewhere:
            remedy = how_to_install(elsewhere[name])
        else:
            remedy = among(name, [*known, *elsewhere], remedy)
        yield Finding("unknown_plugin", f"no installed plugin is called {name!r}", remedy, name)


_FOLDER = re.compile(r"[^-]+-([^-]+)\.dist-info")


def missing_requirements(
    requires: Iterable[str], extras: Iterable[str] = (), library: str | None = None
) -> Iterator[tuple[str, str]]:
    """Return reason and remedy for each requirement that is not met here, without importing anything.

    The version of a library is read from the name of its ``.dist-info`` folder where that has one,
    so that its metadata need not be opened.

    Args:
        requires: Requirements as in ``Requires-Dist``, those of core itself are left out unless ``library`` is said.
        extras: The extras of the distribution that are wanted.
        library: The distribution that requires them, if it is one that a plugin requires. None: the plugin.
    """
    from importlib.metadata import distributions

    reader = f"{library}, which it requires, requires" if library else "it requires"
    for need in required(requires, extras):
        if library is None and canonicalize_name(need.name) == "headrace":
            continue  # the state of the plugin says whether that fits
        distribution = next(iter(distributions(name=need.name)), None)
        if distribution is None and _can_be_imported(need.name):
            continue  # another distribution contains the same package, such as `lib-gpu` for `lib`
        wish = f"{need.name}{need.specifier}"
        remedy = f'Install it: pip install "{str(need).partition(";")[0].strip()}"'
        if distribution is None:
            yield f"{reader} {wish}, which is not installed", remedy
        elif not _contains(need, version := version_of(distribution)):
            yield f"{reader} {wish}, installed is {version}", remedy


def required(requires: Iterable[str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """Return the requirements that apply to this Python, this system and these extras; invalid ones name no library."""
    for text in requires:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": name}) for name in ("", *extras)):
            yield need


def version_of(dist: Distribution) -> str:
    """Return the version of a library, read from the name of its folder where that has one."""
    folder = _FOLDER.fullmatch(getattr(getattr(dist, "_path", None), "name", ""))
    return folder[1] if folder is not None else dist.version


def _contains(need: Requirement, version: str) -> bool:
    try:
        return need.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True  # a version that does not follow the rules of PEP 440 cannot be compared


def _can_be_imported(distribution: str) -> bool:
    try:
        spec = importlib.util.find_spec(canonicalize_name(distribution).replace("-", "_"))
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None
