"""The meaning of a name on the command line: a backend, a plugin, or what else a plugin offers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import plugins
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.plugins import Plugin

COMMANDS = {
    "run": "Run inputs through a pipeline and print the results.",
    "check": "Check a configuration without building it.",
    "explain": "Show what a configuration or expression asks for.",
    "conformance": "Judge backends by the rules of the backend contract, and print a certificate.",
    "schema": "Print the JSON Schema of configurations, for editors.",
    "plugins": "Show what is installed, what a backend takes, and what is wrong.",
    "new": "Start a backend or a service of your own from a template.",
}
"""The commands of this package, each in the module of its name below ``commands``; plugins cannot replace them."""

COMMANDS_ELSEWHERE = {
    "validate": "check",
    "predict": "run",
    "start": "serve",
    "init": "new app",
    "doctor": "plugins list --check",
}
"""Names of commands in other tools, and those of ours that do the same."""

LEFT = {
    "top": "Import the dashboard of docs/operating.md into Grafana, or open a server's live page.",
    "observe report": "Give bench, simulate or tune --plot, and open a trace at ui.perfetto.dev.",
    "plugins doctor": "Write: headrace plugins list --check",
    "trt inspect": "Write: polygraphy inspect model FILE",
    "trt profile": "Write: trtexec --loadEngine=FILE --dumpProfile",
    "explain --graph svg": "Write: headrace explain CONFIG --graph dot | dot -Tsvg",
}
"""What left, as it was typed, and the cure: `docs/policies.md` has the same."""

GROUPS = {
    "Start": ("new", "check", "explain", "schema"),
    "Run and serve": ("run", "serve", "ui", "video"),
    "Prepare models": ("models", "trt"),
    "Measure": ("bench", "certify", "tune", "simulate", "trace", "observe"),
    "Extend": ("plugins", "conformance"),
}
"""Where ``headrace --help`` lists the commands of this package and of well-known plugins."""


def all_plugins() -> list[Plugin]:
    """Return the installed plugins, and core as if it were one."""
    return [plugins.core(), *plugins.installed()]


def all_names() -> list[str]:
    """Return the names of all backends that can be used, and of all plugins and distributions."""
    plugins = all_plugins()
    return [
        *(name for plugin in plugins if plugin.usable for name in plugin.backends),
        *(name for plugin in plugins for name in (plugin.plugin, plugin.distribution)),
    ]


def backends_named(name: str) -> list[tuple[str, Plugin]]:
    """Return each backend that ``name``, perhaps ``plugin:Name``, may mean, with its plugin."""
    qualifier, _, part = name.rpartition(":")
    matches = [plugin for plugin in all_plugins() if plugin.usable and part in plugin.backends]
    if qualifier:
        matches = [plugin for plugin in matches if plugin.plugin == qualifier]
    elif matches and matches[0].plugin == "headrace":
        del matches[1:]  # a name of core always means core's
    return [(part, plugin) for plugin in matches]


def plugins_named(name: str) -> list[Plugin]:
    """Return the plugins of this name; if it names neither plugin nor backend, of the normalised name."""
    known = all_plugins()
    exact = [plugin for plugin in known if name in (plugin.distribution, plugin.plugin)]
    if exact or backends_named(name):
        return exact
    return [plugin for plugin in known if plugins.qualifier(name) == plugin.plugin]


def unknown(name: str, known: Iterable[str]) -> ConfigError:
    """Make the error of a name that means nothing here: install what it names, or correct it.

    Args:
        name: The name of a backend, a plugin or a distribution.
        known: Names of which the nearest one is suggested.
    """
    elsewhere = {
        plugins.qualifier(n): n for n in ("headrace-serve", *plugins.KNOWN_BACKENDS.values())
    }
    missing = elsewhere.get(plugins.qualifier(name))
    if missing is None:
        part = name.rpartition(":")[2]
        owners = [f"{plugin.plugin}:{part}" for plugin in all_plugins() if part in plugin.backends]
        known = owners or known
        return ConfigError(plugins.why_unknown(name, known))
    hint = how_to_install(missing)
    return ConfigError(Problem("missing_plugin", f"{missing} is not installed", hint=hint))


def how_to_install(distribution: str) -> str:
    """Explain how to install a plugin of this repository, also from a clone of it."""
    here = "in a clone of Headrace, after ./dev wheels: pip install --find-links dist"
    return f"Install it: pip install {distribution}, or {here} {distribution}"
