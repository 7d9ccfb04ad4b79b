"""Finding installed plugins by their metadata alone: nothing of a plugin is imported here.

A plugin is a distribution with entry points in one of our groups. Its state is one of:

``ok``
    It can be used, as far as its metadata tells.
``disabled``
    ``HEADRACE_PLUGINS`` does not allow it.
``incompatible``
    Its ``Requires-Dist: headrace...`` does not admit this version of core.
``broken``
    Its metadata cannot be read, or its hook module or a backend module cannot be imported.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import headrace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import Distribution, EntryPoint

__all__ = [
    "BACKENDS",
    "CONFORMANCE",
    "HOOKS",
    "PluginRecord",
    "conformance_classes",
    "discover",
    "normalised_plugin",
]

BACKENDS = "headrace.backends"
HOOKS = "headrace.plugins"
CONFORMANCE = "headrace.conformance"
_GROUPS = (BACKENDS, HOOKS)


@dataclass
class PluginRecord:
    """What is known of one plugin.

    Attributes:
        plugin: The qualifier in ``plugin:Name``: the distribution's normalised name without a
            leading ``headrace-``.
        distribution, version: As installed.
        requires: The range of core it asks for, as written; empty when it names none.
        backends: Name of each backend and its import path.
        hooks: Import paths of its modules with hooks.
        state, reason, remedy: See the module; the last two are None for ``ok``.
        managers: Its hook modules, once they are loaded, by import path.
        answers: What its hooks gave, by the name of the hook; each is called once.
    """

    plugin: str
    distribution: str
    version: str
    requires: str = ""
    backends: dict[str, str] = field(default_factory=dict)
    hooks: list[str] = field(default_factory=list)
    state: str = "ok"
    reason: str | None = None
    remedy: str | None = None
    managers: dict[str, Any] = field(default_factory=dict, repr=False)
    answers: dict[str, list[Any]] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Give the record as plain data for JSON."""
        return {
            "plugin": self.plugin,
            "distribution": self.distribution,
            "version": self.version,
            "requires": self.requires,
            "backends": dict(sorted(self.backends.items())),
            "state": self.state,
            "reason": self.reason,
            "remedy": self.remedy,
        }


def normalised_plugin(distribution: str) -> str:
    """Give the qualifier of a distribution: ``Headrace_CV`` is ``cv``."""
    name = re.sub(r"[-_.]+", "-", distribution).lower()
    return name.removeprefix("headrace-") if name != "headrace" else name


def discover(environ: Mapping[str, str] | None = None) -> list[PluginRecord]:
    """List all installed plugins, ordered by name, with their states."""
    from importlib.metadata import entry_points

    environ = os.environ if environ is None else environ
    by_distribution: dict[str, tuple[Distribution | None, list[EntryPoint]]] = {}
    for group in _GROUPS:
        for point in entry_points(group=group):
            name = _name_of(point)
            by_distribution.setdefault(name, (point.dist, []))[1].append(point)
    records = [_record(name, *found) for name, found in sorted(by_distribution.items())]
    for record in records:
        _check_allowed(record, environ.get("HEADRACE_PLUGINS"))
    return records


def conformance_classes() -> dict[tuple[str, str], str]:
    """Give the import path of each conformance class, by distribution and name of the backend."""
    from importlib.metadata import entry_points

    points = entry_points(group=CONFORMANCE)
    return {(_name_of(point), point.name): point.value for point in points}


def _name_of(point: EntryPoint) -> str:
    """Give the name of the distribution of an entry point, however broken its metadata is."""
    try:
        name: str | None = point.dist.name if point.dist is not None else None
    except Exception:  # noqa: BLE001 - one plugin's bad metadata must not stop the others
        name = None
    return name or point.value.partition(":")[0].partition(".")[0]


def _record(name: str, dist: Distribution | None, points: list[EntryPoint]) -> PluginRecord:
    record = PluginRecord(normalised_plugin(name), name, "unknown")
    for point in points:
        if point.group == HOOKS:
            if point.value not in record.hooks:
                record.hooks.append(point.value)
        elif record.backends.setdefault(point.name, point.value) != point.value:
            record.state = "broken"
            record.reason = f"it offers the backend {point.name!r} twice"
            record.remedy = "Ask its author for a version that offers it once."
    try:
        record.version = dist.version or "unknown" if dist is not None else "unknown"
        _check_range(record, dist)
    except Exception as error:  # noqa: BLE001 - one plugin's bad metadata must not stop the others
        record.state = "broken"
        record.reason = f"its metadata cannot be read: {error}"
        record.remedy = f"Install it again: pip install --force-reinstall {name}"
    return record


def _check_range(record: PluginRecord, dist: Distribution | None) -> None:
    """Compare what the plugin requires of core with the core that runs."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for text in (dist.requires if dist else None) or ():
        if not re.match(r"\s*headrace\b(?![-_.]*\w)", text, re.IGNORECASE):
            continue
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) != "headrace":
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        record.requires = str(requirement.specifier)
        if not requirement.specifier.contains(headrace.__version__, prereleases=True):
            record.state = "incompatible"
            record.reason = (
                f"it requires headrace {requirement.specifier}, this is {headrace.__version__}"
            )
            record.remedy = (
                f"Install versions that fit: pip install --upgrade {record.distribution} headrace"
            )


def _check_allowed(record: PluginRecord, allowed: str | None) -> None:
    """Apply ``HEADRACE_PLUGINS``: ``cv,ort`` allows only these, ``-torch`` denies, empty none."""
    if allowed is None:
        return
    words = [normalised_plugin(word.strip()) for word in allowed.split(",") if word.strip()]
    denied = {word[1:].removeprefix("headrace-") for word in words if word.startswith("-")}
    only = {word for word in words if not word.startswith("-")}
    if record.plugin in denied or (not denied and not only) or (only and record.plugin not in only):
        record.state = "disabled"
        record.reason = f"HEADRACE_PLUGINS={allowed} does not allow it"
        record.remedy = (
            f"Take '-{record.plugin}' out of HEADRACE_PLUGINS."
            if record.plugin in denied
            else f"Add {record.plugin!r} to HEADRACE_PLUGINS, or unset it."
        )
