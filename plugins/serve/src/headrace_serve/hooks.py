"""The plugin's hooks: its commands, the APIs of other servers, and the probe that times requests for the access log."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_apis", "headrace_commands", "headrace_probes"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the commands."""
    return {"serve": "headrace_serve.commands.serve:serve", "ui": "headrace_serve.commands.ui:ui"}


@hookimpl
def headrace_apis() -> dict[str, str]:
    """Return the APIs of other servers."""
    return {
        "openai": "headrace_serve.apis.openai:ROUTES",
        "tei": "headrace_serve.apis.tei:ROUTES",
        "kserve-v1": "headrace_serve.apis.kserve:ROUTES",
        "sagemaker": "headrace_serve.apis.sagemaker:ROUTES",
    }


@hookimpl
def headrace_probes() -> dict[str, str]:
    """Give the probe that the server adds to its pipelines when the access log is on."""
    return {"ServeTimes": "headrace_serve.monitoring.run_times:ServeTimes"}
