"""Imports everything that plugins offer, so that one failure stops nothing, and finds their problems."""

from __future__ import annotations

import importlib.util
from importlib.metadata import distributions
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from headrace.errors import MissingDependencyError, PluginError, PluginLoadError
from headrace.plugins import installed
from headrace_cli.installed.certificates import outdated
from headrace_cli.installed.findings import (
    Finding,
    finding_about,
    findings,
    missing_requirements,
    required,
    with_states,
)
from headrace_cli.installed.offers import wrong_offers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.plugins import Plugin

_LAST = ("duplicate", "modified", "outdated_certificate", "unknown_plugin")
"""Kinds of findings that come after all others, because the first finding about a plugin is its state."""


def examined(among: Sequence[Plugin] | None = None) -> tuple[list[Finding], list[Plugin]]:
    """Import plugins and report all their problems.

    Args:
        among: The plugins that are imported. Default: all that are installed.

    Returns:
        The findings, and the plugins with the states that follow from them: the first finding about a
        usable plugin is its state.
    """
    plugins = installed() if among is None else among
    examined = [
        plugin
        for plugin in plugins
        if plugin.state not in ("disabled", "incompatible") and plugin.distribution != "headrace"
    ]
    imported = {plugin.distribution for plugin in examined}
    # For imported plugins, the failed imports show more precisely than the metadata which library is missing.
    problems = [
        f
        for f in findings()
        if not (f.backend and f.distribution in imported and f.kind == "missing_dependency")
    ]
    owners = _Owners()
    for plugin in examined:
        problems += [
            *_lacking_libraries(plugin),
            *_overlaps(plugin, owners),
            *_not_importable(plugin),
        ]
    problems += [*wrong_offers(examined), *outdated(plugins)]
    problems.sort(key=lambda f: _LAST.index(f.kind) + 1 if f.kind in _LAST else 0)
    return problems, with_states(plugins, problems)


def _lacking_libraries(plugin: Plugin) -> Iterator[Finding]:
    """Report what libraries of Headrace lack that a plugin requires: they offer nothing, and have no findings."""
    waiting, names = [*required(plugin.requires)], {"headrace"}
    while waiting:
        need = waiting.pop(0)
        name = str(canonicalize_name(need.name))
        of_ours = (
            next(iter(distributions(name=name)), None) if name.startswith("headrace-") else None
        )
        if of_ours is None or name in names:
            continue
        names.add(name)
        requires = of_ours.requires or ()
        for reason, remedy in missing_requirements(requires, need.extras, name):
            yield finding_about(plugin, "missing_dependency", reason, remedy)
        waiting += required(requires, need.extras)


def _overlaps(plugin: Plugin, owners: _Owners) -> Iterator[Finding]:
    """Report libraries of which two distributions are installed into the same folder."""
    for package, names in owners.rivals(plugin.requires):
        reason = f"{' and '.join(names)} install {package!r} into one folder"
        remedy = f"Type `pip uninstall -y {' '.join(names)}`, then install one of them."
        yield finding_about(plugin, "overlap", reason, remedy)


def _not_importable(plugin: Plugin) -> Iterator[Finding]:
    for name in sorted(plugin.backends):
        try:
            plugin.backend(name)
        except MissingDependencyError as error:
            yield finding_about(plugin, "missing_dependency", error.what, error.hint, name)
        except PluginError as error:
            remedy = f"Install it again: pip install --force-reinstall {plugin.distribution}"
            if not isinstance(error, PluginLoadError):
                remedy = f"Ask its author for a fix. {error.hint or ''}".rstrip()
            if isinstance(error.__cause__, SystemExit):
                remedy = "Ask its author for a fix: its module ends the program."
            yield finding_about(plugin, "broken", error.what, remedy, name)


class _Owners:
    """The distributions that bring each installed package, looked up when they are first needed."""

    def __init__(self) -> None:
        self._by_package: Mapping[str, list[str]] | None = None

    def rivals(self, requires: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Return each package that a required distribution and another one both install, with their names."""
        if self._by_package is None:
            from importlib.metadata import packages_distributions

            try:
                self._by_package = packages_distributions()
            except Exception:  # noqa: BLE001 - one distribution's list of files is broken: nobody is told of rivals
                self._by_package = {}
        needs = set(map(_name, requires))
        for package, brought in self._by_package.items():
            names = sorted({str(canonicalize_name(distribution)) for distribution in brought})
            # Several distributions may share a namespace package, which has no file of its own.
            if len(names) > 1 and needs & set(names) and _has_a_file(package):
                yield package, names


def _name(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def _has_a_file(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None
