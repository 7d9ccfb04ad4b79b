"""Policies by name: the defaults, registered ones, and those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._registry.loading import load
from headrace._registry.registry import registry
from headrace.errors import PluginError
from headrace.policies import BatchPolicy, BestFit, Greedy

if TYPE_CHECKING:
    from collections.abc import Iterable

    Files = Iterable[tuple[str, dict[str, type[Any]]]]

__all__ = ["find_policy", "policy_names"]

_BUILT_IN: dict[str, type[Any]] = {"greedy": Greedy, "best_fit": BestFit}


def find_policy(name: str, kind: type[Any], files: Files = ()) -> type[Any] | None:
    """Give the class of a policy, of whichever kind it is; None for an unknown name.

    Args:
        name: As written, perhaps ``plugin:Name``.
        kind: `BatchPolicy` or `DispatchPolicy`: which hook of plugins is asked.
        files: The files that the configuration imports, and what each has registered.

    Raises:
        PluginError: Two plugins offer the name, or its class cannot be imported.
    """
    for table in (_BUILT_IN, *(table for _, table in files), registry.local):
        if name in table:
            return table[name]
    if name.startswith("headrace:"):
        return _BUILT_IN.get(name.removeprefix("headrace:"))
    offer = registry.offer(_hook(kind), name, "policy")
    if offer is None:
        return None
    cls: Any = load(offer.path, offer.record.distribution)
    if not isinstance(cls, type):
        raise PluginError(f"{offer.path!r} is no class", distribution=offer.record.distribution)
    return cls


def policy_names(kind: type[Any], files: Files = ()) -> list[str]:
    """Give the names of all policies of one kind that can be known without an import."""
    tables = (_BUILT_IN, *(table for _, table in files), registry.local)
    names = {name for table in tables for name, cls in table.items() if issubclass(cls, kind)}
    return sorted(names.union(registry.offered(_hook(kind))))


def _hook(kind: type[Any]) -> str:
    batch = issubclass(kind, BatchPolicy)
    return "headrace_batch_policies" if batch else "headrace_dispatch_policies"
