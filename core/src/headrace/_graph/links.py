"""How one node is linked to the others: the keys ``next``, ``map``, ``or`` and ``each``, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KEPT", "Each", "Links", "Pairs", "is_graph"]

KEPT = ("context", "request_id")
"""The keys that a ``map`` brings along unasked."""

Pairs = tuple[tuple[str, str], ...]
"""Source key and target key of what a map takes from one node."""


class Each(NamedTuple):
    """What a node with ``each`` runs once for.

    Attributes:
        node: The node.
        source: The key of the list.
        target: The key under which its elements go.
        keep_errors: ``each_errors = "none"``: an element that fails leaves None.
    """

    node: str
    source: str
    target: str
    keep_errors: bool = False


@dataclass(frozen=True)
class Links:
    """How one node is linked to the others.

    Attributes:
        name: The node.
        next: Its successors.
        map: Per node named, pairs of source key and target key; None without a map.
        otherwise: The key ``or``: it runs only where its predecessor gave no result.
        each: Its own ``each``; None when it runs once.
        reposts: The nodes at which a `Repost` in its expression lets a request go on.
        calls: The nodes that its expression calls, ``Forward[node.x]``.
        door_to: The node that it is a second door to, or None.
        levels: Its own ``each``, and those of the nodes behind a second door.
    """

    name: str
    next: tuple[str, ...] = ()
    map: Mapping[str, Pairs] | None = None
    otherwise: bool = False
    each: Each | None = None
    reposts: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    door_to: str | None = None
    levels: tuple[Each, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the links that are set, as plain data."""
        each = self.each
        found: dict[str, Any] = {
            "next": list(self.next),
            "map": {node: _table(pairs) for node, pairs in (self.map or {}).items()},
            "or": self.otherwise,
            "each": f"{each.source}:{each.target}" if each is not None else None,
            "each_errors": "none" if each is not None and each.keep_errors else None,
            "reposts": list(self.reposts),
        }
        return {key: value for key, value in found.items() if value}


def _table(pairs: Pairs) -> dict[str, str | list[str]]:
    """Write pairs as the table that a configuration may have in their place."""
    found: dict[str, list[str]] = {}
    for source, target in pairs:
        found.setdefault(source, []).append(target)
    return {source: to[0] if len(to) == 1 else to for source, to in found.items()}


def is_graph(links: Mapping[str, Links]) -> bool:
    """Tell whether a request may go through more than one call of one node."""
    return len(links) > 1 or any(one.levels or one.reposts for one in links.values())
