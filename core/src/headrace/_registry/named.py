"""Policies and probes by name: core's, registered ones, and those of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._registry.backends import is_policy
from headrace._registry.catalogue import CORE_POLICIES
from headrace._registry.hooks import PROBE_METHODS, Offer, find_offer, offers
from headrace._registry.loading import found, load
from headrace._registry.registry import registry
from headrace.policies import BatchPolicy, DispatchPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    Files = Iterable[tuple[str, dict[str, type[Any]]]]


class Kind(NamedTuple):
    """What a key may name, as ``Name`` or ``Name(a=1)``.

    Attributes:
        noun: What it is called.
        hook: The hook through which plugins offer it.
        base: The class that it derives from; None for a probe, which has some of `PROBE_METHODS`.
    """

    noun: str
    hook: str
    base: type[Any] | None

    def why_not(self, cls: Any, name: str, offer: Offer | None) -> str | None:
        """Say why a class is none of this kind, None when it is."""
        if self.base is not None:
            good = isinstance(cls, type) and issubclass(cls, self.base)
            return None if good else f"{name!r} is no {self.base.__name__}"
        if isinstance(cls, type) and any(callable(getattr(cls, m, None)) for m in PROBE_METHODS):
            return None
        whose = f"{offer.path!r} of {offer.record.distribution}" if offer else repr(name)
        return f"{whose} is no probe: a class with {' or '.join(PROBE_METHODS)}"


BATCH_POLICY = Kind("policy", "headrace_batch_policies", BatchPolicy)
DISPATCH_POLICY = Kind("policy", "headrace_dispatch_policies", DispatchPolicy)
PROBE = Kind("probe", "headrace_probes", None)


def find_named(kind: Kind, name: str, files: Files = ()) -> tuple[Any, Offer | None] | None:
    """Find what a key names; None for an unknown name.

    Args:
        kind: What the key names. It need not be what is found: see `Kind.why_not`.
        name: As written, perhaps ``plugin:Name``.
        files: The files that the configuration imports, and what each has registered.

    Returns:
        What should be its class, and the plugin that offers it, None where none does.

    Raises:
        PluginError: Two plugins offer the name, or its class cannot be imported.
    """
    if kind.base is not None:
        core = name.removeprefix("headrace:")
        if core in CORE_POLICIES:
            return found(CORE_POLICIES[core]), None
        for table in (*(table for _, table in files), registry.local):
            if name in table:
                return table[name], None
    offer = find_offer(kind.hook, kind.noun, name)
    return None if offer is None else (load(offer.path, offer.record.distribution), offer)


def names_of(kind: Kind, files: Files = ()) -> list[str]:
    """Give the names of all of one kind that can be known without an import."""
    names = {offer.name for offer in offers(kind.hook)}
    if kind.base is not None:
        names.update(n for n, path in CORE_POLICIES.items() if issubclass(found(path), kind.base))
        for table in (registry.local, *(table for _, table in files)):
            known = {name: cls for name, cls in table.items() if is_policy(cls)}
            names.update(name for name, cls in known.items() if issubclass(cls, kind.base))
    return sorted(names)
