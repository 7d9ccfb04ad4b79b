"""The plugin's hook: the batch policies."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_batch_policies"]


@hookimpl
def headrace_batch_policies() -> dict[str, str]:
    """Return the batch policies."""
    return {
        "Alike": "headrace_flow.policies.alike:Alike",
        "Budget": "headrace_flow.policies.budget:Budget",
    }
