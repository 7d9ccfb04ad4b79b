"""The plugin's hooks: the batch policies, and the keys and words that are translated."""

from __future__ import annotations

from headrace.hookspecs import hookimpl

__all__ = ["headrace_batch_policies", "headrace_rewriters"]

KEYS = ("entrypoint", "node_entrypoint")
WORDS = (
    *("Register", "InstancesRegister", "List", "Batching", "InstanceDispatcher", "Block"),
    *("Proxy", "BackendProxy", "ProxyFromParam", "InstanceFromParam", "DagDispatcher"),
    *("DI", "Aspect", "With"),
)


@hookimpl
def headrace_batch_policies() -> dict[str, str]:
    """Return the batch policies."""
    return {"Alike": "headrace_flow.alike:Alike", "Budget": "headrace_flow.budget:Budget"}


@hookimpl
def headrace_rewriters() -> dict[str, str]:
    """Return the keys and words of configurations that wire themselves."""
    choosing = dict.fromkeys(
        ("Fallback", "ModelLoader", "ModelLoadder"), "headrace_flow.choosing:choose"
    )
    return {**dict.fromkeys((*KEYS, *WORDS), "headrace_flow.wiring:translate"), **choosing}
