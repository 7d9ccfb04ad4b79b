"""The plugin's hooks: the command `headrace models`, and where files come from. All is imported at its first use."""

from __future__ import annotations

import os

from headrace.hookspecs import hookimpl

__all__ = ["headrace_commands", "headrace_fetchers"]


@hookimpl
def headrace_commands() -> dict[str, str]:
    """Return the command."""
    return {"models": "headrace_models.command:models"}


@hookimpl
def headrace_fetchers() -> dict[str, str]:
    """Return the schemes."""
    if os.environ.get("HEADRACE_OFFLINE", "") not in ("", "0"):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # for whatever else loads from the hub
    names = {"https": "web", "http": "web", "hf": "hub", "s3": "bucket"}
    return {scheme: f"headrace_models.fetching:{name}" for scheme, name in names.items()}
