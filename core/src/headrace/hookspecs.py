"""The hooks of plugins: functions of a light module named in the group ``headrace.plugins``.

A module implements a hook by a function of the same name with the marker `hookimpl`::

    from headrace.hookspecs import hookimpl

    @hookimpl
    def headrace_definitions():
        return {"Classify": "S[DecodeMat,ResizeMat,OnnxTensor]"}

Each is called once, without arguments, and returns texts: expressions, or import paths
``module:Name``, so that nothing heavy is loaded before it is used.
"""

from __future__ import annotations

import pluggy

__all__ = [
    "headrace_batch_policies",
    "headrace_definitions",
    "headrace_dispatch_policies",
    "headrace_node_entrypoint",
    "hookimpl",
    "hookspec",
]

hookspec = pluggy.HookspecMarker("headrace")
hookimpl = pluggy.HookimplMarker("headrace")


@hookspec
def headrace_definitions() -> dict[str, str]:
    """Give definitions: name to expression. Since 0.1."""
    return {}


@hookspec
def headrace_batch_policies() -> dict[str, str]:
    """Give batch policies: name to the import path of a `headrace.policies.BatchPolicy`. Since 0.1."""
    return {}


@hookspec
def headrace_dispatch_policies() -> dict[str, str]:
    """Give dispatch policies: name to the path of a `headrace.policies.DispatchPolicy`. Since 0.1."""
    return {}


@hookspec
def headrace_node_entrypoint() -> str | None:
    """Give the expression of a node that configures none, in place of the default. Since 0.1."""
    return None
