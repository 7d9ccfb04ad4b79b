"""The parameters of a node: who wins, and which keys nobody has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._config.nodekeys import COME_LATER, GLOBAL_KEYS, NODE_KEYS
from headrace._registry.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._config.document import Written
    from headrace._config.problems import Problems

__all__ = ["Found", "Parameters", "report_unknown_globals"]

_OWN = frozenset((*NODE_KEYS, *GLOBAL_KEYS, *COME_LATER))
"""Keys that configure nodes and the pipeline; they are never options."""

Found = tuple[str, "Written", str]
"""Origin (``node`` or ``global``), what is written, and the path of keys to it."""


class Parameters:
    """The plain keys of one node and of ``[global]``, with a note of those that somebody has.

    Args:
        node: Name of the node.
        table: The node's keys.
        shared: The global keys.
        used_globals: The global keys that some node has; shared by all nodes.
    """

    def __init__(
        self,
        node: str,
        table: dict[str, Written],
        shared: dict[str, Written],
        used_globals: set[str],
    ) -> None:
        self.node = node
        self._table = table
        self._shared = shared
        self._used: set[str] = set()
        self._used_globals = used_globals
        self._asked: set[str] = set()

    def find(self, names: Iterable[str], key: str) -> Found | None:
        """Give the value of ``key`` for the backend called ``names``, the one that wins.

        All places where it is written count as known from now on.
        """
        scoped = [f"{name}::{key}" for name in names]
        plain = [key] if key not in _OWN else []
        self._asked.update(scoped, plain)
        found: Found | None = None
        for origin, table, used in (
            ("node", self._table, self._used),
            ("global", self._shared, self._used_globals),
        ):
            for name in (*scoped, *plain):
                if name in table:
                    used.add(name)
                    where = f"{self.node}.{name}" if origin == "node" else f"global.{name}"
                    found = found or (origin, table[name], where)
        return found

    def backend(self) -> Found | None:
        """Give the key ``backend`` of the node."""
        if "backend" in self._table:
            return "node", self._table["backend"], f"{self.node}.backend"
        if "backend" in self._shared:
            return "global", self._shared["backend"], "global.backend"
        return None

    def report_unknown(self, problems: Problems) -> None:
        """Report the node's keys that nobody has."""
        for key, written in self._table.items():
            if key in self._used or key in NODE_KEYS or key in COME_LATER:
                continue
            if key in GLOBAL_KEYS:
                problems.add(
                    "global_key",
                    f"{key!r} belongs to the pipeline, not to a node",
                    file=written.file,
                    path=f"{self.node}.{key}",
                    hint="Move it to [global].",
                )
                continue
            problems.add(
                "unknown_key",
                f"nobody in node {self.node!r} has an option {key!r}",
                file=written.file,
                path=f"{self.node}.{key}",
                suggestion=nearest(key, self.known()),
            )

    def known(self) -> set[str]:
        """Give the keys that the node could have."""
        plain = {key for key in self._asked if "::" not in key}
        return plain | set(NODE_KEYS) | {key for key in self._asked if "::" in key}


def report_unknown_globals(
    shared: dict[str, Written], nodes: list[Parameters], problems: Problems
) -> None:
    """Report the global keys that no node has."""
    used = set().union(*(node._used_globals for node in nodes))
    known = set().union(*(node.known() for node in nodes)) | set(GLOBAL_KEYS)
    for key, written in shared.items():
        if key not in used and key not in _OWN:
            problems.add(
                "unknown_key",
                f"no node has an option {key!r}",
                file=written.file,
                path=f"global.{key}",
                suggestion=nearest(key, known),
            )
