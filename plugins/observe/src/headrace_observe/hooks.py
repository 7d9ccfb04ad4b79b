"""The plugin's hooks: probes and commands, each by the path of an object that is imported at the first use."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = [
    "COMMANDS",
    "PROBES",
    "headrace_commands",
    "headrace_probes",
]

COMMANDS: dict[str, str] = {
    "bench": "headrace_observe.commands.bench:bench",
    "certify": "headrace_observe.commands.certify:certify",
    "observe": "headrace_observe.commands.observe:observe",
    "tune": "headrace_observe.commands.tune:tune",
    "trace": "headrace_observe.commands.trace:trace",
    "simulate": "headrace_observe.commands.simulate:simulate",
}
"""Every command, in the module of its name below ``headrace_observe.commands``."""

PROBES: dict[str, str] = {
    "ElementTimes": "headrace_observe.probes.element_times:ElementTimes",
    "OpenTelemetry": "headrace_observe.probes.otel:OpenTelemetry",
    "Prometheus": "headrace_observe.probes.prometheus:Prometheus",
    "Remember": "headrace_observe.probes.remember:Remember",
    "Times": "headrace_observe.probes.times:Times",
    "Trace": "headrace_observe.probes.trace:Trace",
}
"""Every probe."""


@hookimpl
def headrace_probes() -> dict[str, str]:
    """Return the probes."""
    return PROBES


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the commands."""
    return COMMANDS
