"""Which plugins are installed, and why one of them cannot be used.

What ``headrace plugins list`` shows, for programs::

    import headrace

    for plugin in headrace.plugins.installed():
        print(plugin.distribution, plugin.version, plugin.state, sorted(plugin.backends))
        if plugin.state != "ok":
            print(plugin.reason, plugin.remedy)

Names, versions and ranges are read from installed metadata. No backend is imported; of plugins only
the light modules with hooks are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Plugin", "installed"]


@dataclass(frozen=True)
class Plugin:
    """What is known of one installed plugin.

    Attributes:
        plugin: The qualifier in ``plugin:Name``: the distribution's normalised name without a
            leading ``headrace-``.
        distribution: Name of the distribution, as installed.
        version: Its version, ``"unknown"`` where the metadata do not tell.
        range: The versions of core it asks for, as ``>=0.1,<0.2``; empty when it names none.
        backends: Per name of a backend its import path.
        hooks: What its hooks give, by their short names: ``definitions``, ``batch_policies``,
            ``dispatch_policies``, ``probes``, ``commands``, each a table, and ``node_entrypoint``.
        state: ``"ok"``; else ``"disabled"``, ``"incompatible"``, ``"broken"``,
            ``"missing_dependency"`` or ``"duplicate"``.
        reason: Why it is not ok, in a sentence; None when it is.
        remedy: What to do about that, or None.
    """

    plugin: str
    distribution: str
    version: str
    range: str
    backends: Mapping[str, str]
    hooks: Mapping[str, Any]
    state: str
    reason: str | None = None
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain data for JSON, as ``headrace plugins list --json`` prints it."""
        return asdict(self)


def installed(*, refresh: bool = False) -> list[Plugin]:
    """List the installed plugins by name, core not among them.

    Args:
        refresh: Read the metadata again, for what was installed since this process looked first.
    """
    from headrace._doctor.findings import light_findings, listed
    from headrace._registry import registry

    if refresh:
        registry.refresh()
    records = registry.plugins()
    return [Plugin(**row) for row in listed(records, light_findings(records))]
