"""Findings about what plugins offer besides backends, made by importing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, MissingDependencyError, PluginError
from headrace.plugins import PROBE_METHODS
from headrace_cli.installed.findings import NOUNS, finding_about
from headrace_cli.installed.plugin_commands import as_command
from headrace_cli.names import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.plugins import Plugin
    from headrace_cli.installed.findings import Finding

_FIX = "Ask its author for a fix."


def wrong_offers(plugins: Sequence[Plugin]) -> Iterator[Finding]:
    """Import the objects that plugins name besides backends, and report those that are wrong."""
    core = headrace.plugins.core()
    taken: dict[str, set[str]] = {kind: set(core.offers[kind]) for kind in NOUNS}
    for plugin in plugins:
        for kind in NOUNS:
            for name, path in plugin.offers[kind].items():
                if kind == "commands" and name in COMMANDS:
                    reason = (
                        f"the command {name!r} is never used: headrace itself has one of that name"
                    )
                    remedy = "Ask its author for another name."
                    yield finding_about(plugin, "duplicate", reason, remedy)
                elif name not in taken[kind]:
                    yield from _wrong(plugin, kind, name, path)


def _wrong(plugin: Plugin, kind: str, name: str, path: str) -> Iterator[Finding]:
    """Import the object of one offer, and check that it is of its kind."""
    again = f"Install it again: pip install --force-reinstall {plugin.distribution}"
    named = f"the {NOUNS[kind]} {name!r}"
    try:
        if kind == "commands":
            as_command(path, plugin)
        else:
            _check_class(kind, plugin.load(path))
    except MissingDependencyError as error:
        reason = f"{named}: {error.what}"
        yield finding_about(plugin, "missing_dependency", reason, error.hint)
    except ConfigError as error:
        reason = f"{named}: {error.problems[0].message}"
        yield finding_about(plugin, "broken", reason, _FIX)
    except PluginError as error:
        yield finding_about(plugin, "broken", f"{named}: {error.what}", again)
    except TypeError as error:
        yield finding_about(plugin, "broken", f"{named}: {path!r} {error}", _FIX)


def _check_class(kind: str, offered: Any) -> None:
    """Raise TypeError when an object is not of its kind: a class of its kind, a function or a table."""
    from headrace.policies import BatchPolicy, DispatchPolicy

    if kind in ("rewriters", "readers", "fetchers", "records", "apis"):
        if not (isinstance(offered, dict) if kind == "apis" else callable(offered)):
            raise TypeError("is no table of routes" if kind == "apis" else "is no function")
        return
    if kind == "probes":
        if not isinstance(offered, type) or not any(hasattr(offered, m) for m in PROBE_METHODS):
            raise TypeError(f"is no class with {' or '.join(PROBE_METHODS)}")
    elif kind == "node_keys":
        right = isinstance(offered, type) and issubclass(offered, headrace.Options)
        if not right or not hasattr(offered, "check"):
            raise TypeError("is no subclass of headrace.Options with check")
    else:
        base = BatchPolicy if kind == "batch_policies" else DispatchPolicy
        if not isinstance(offered, type) or not issubclass(offered, base):
            raise TypeError(f"is no {base.__name__}")
    options = getattr(offered, "Options", headrace.Options)
    if not isinstance(options, type) or not issubclass(options, headrace.Options):
        raise TypeError("has an Options that is no subclass of headrace.Options")
