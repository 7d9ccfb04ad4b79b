"""Findings about the offers of plugins' hooks, made by importing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, MissingDependencyError, PluginError
from headrace.plugins import PROBE_METHODS
from headrace_cli.findings import HOOK_NOUNS, finding_about
from headrace_cli.names import COMMANDS
from headrace_cli.plugin_commands import as_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.plugins import Plugin
    from headrace_cli.findings import Finding

_FIX = "Ask its author for a fix."


def wrong_offers(plugins: Sequence[Plugin]) -> Iterator[Finding]:
    """Import the objects that the hooks of plugins name, and report those that are wrong."""
    core = headrace.plugins.core()
    taken: dict[str, set[str]] = {hook: set(core.hooks[hook]) for hook in HOOK_NOUNS}
    for plugin in plugins:
        for hook in HOOK_NOUNS:
            for name, path in plugin.hooks[hook].items():
                if hook == "commands" and name in COMMANDS:
                    reason = (
                        f"the command {name!r} is never used: headrace itself has one of that name"
                    )
                    remedy = "Ask its author for another name."
                    yield finding_about(plugin, "duplicate", reason, remedy)
                elif name not in taken[hook]:
                    yield from _wrong(plugin, hook, name, path)


def _wrong(plugin: Plugin, hook: str, name: str, path: str) -> Iterator[Finding]:
    """Import the object of one offer, and check that it is of the kind of its hook."""
    again = f"Install it again: pip install --force-reinstall {plugin.distribution}"
    named = f"the {HOOK_NOUNS[hook]} {name!r}"
    try:
        if hook == "commands":
            as_command(path, plugin)
        else:
            _check_class(hook, plugin.load(path))
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


def _check_class(hook: str, offered: Any) -> None:
    """Raise TypeError when an object is not what its hook wants: a class of its kind, a function or a table."""
    from headrace.policies import BatchPolicy, DispatchPolicy

    if hook in ("rewriters", "readers", "fetchers", "apis"):
        if not (isinstance(offered, dict) if hook == "apis" else callable(offered)):
            raise TypeError("is no table of routes" if hook == "apis" else "is no function")
        return
    if hook == "probes":
        if not isinstance(offered, type) or not any(hasattr(offered, m) for m in PROBE_METHODS):
            raise TypeError(f"is no class with {' or '.join(PROBE_METHODS)}")
    elif hook == "node_keys":
        right = isinstance(offered, type) and issubclass(offered, headrace.Options)
        if not right or not hasattr(offered, "check"):
            raise TypeError("is no subclass of headrace.Options with check")
    else:
        kind = BatchPolicy if hook == "batch_policies" else DispatchPolicy
        if not isinstance(offered, type) or not issubclass(offered, kind):
            raise TypeError(f"is no {kind.__name__}")
    options = getattr(offered, "Options", headrace.Options)
    if not isinstance(options, type) or not issubclass(options, headrace.Options):
        raise TypeError("has an Options that is no subclass of headrace.Options")
