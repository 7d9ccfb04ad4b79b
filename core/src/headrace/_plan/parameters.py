"""The parameters of a node: who wins, and which keys nobody has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._config.nodekeys import (
    GLOBAL_KEYS,
    KEYS_ELSEWHERE,
    LINK_KEYS,
    NODE_KEYS,
    NODE_ONLY,
)
from headrace._config.problems import key_place
from headrace._config.shape import misspelt_table
from headrace._plan.values import replaced
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace._config.document import Written
    from headrace._config.problems import Problems

__all__ = ["Found", "Parameters", "report_unknown_globals"]

_OWN = frozenset((*NODE_KEYS, *LINK_KEYS, *GLOBAL_KEYS))
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

    Attributes:
        effective: The paths of the keys whose value some element has.
        overruled: Per path of a key, the elements that have it and take another value.
        incomplete: Whether some text or name of the node could not be understood, so that a key
            nobody has may belong there; only those that look like a key of a node are reported.
        reflected: How many elements parameters have brought that are reflected in others.
        excused: Whether a branch that is not built cannot be looked into, so that any key may
            belong to it.
    """

    def __init__(
        self,
        node: str,
        table: dict[str, Written],
        shared: dict[str, Written],
        used_globals: set[str],
    ) -> None:
        self.node = node
        self.effective: set[str] = set()
        self.overruled: dict[str, list[str]] = {}
        self.incomplete = False
        self.excused = False
        self.reflected = 0
        self.used_globals = used_globals
        self._table = table
        self._shared = shared
        self._used: set[str] = set()
        self._asked: set[str] = set()

    def is_own(self, key: str) -> bool:
        """Tell whether a key configures nodes, so that an option of that name is written scoped."""
        return key in _OWN

    def find(self, names: Sequence[str], key: str, *, wins: bool = True) -> Found | None:
        """Give the value of ``key`` for the backend called ``names``, the nearest one.

        All places where it is written count as known from now on.

        Args:
            names: The names of the backend.
            key: The option.
            wins: Whether the backend takes that value; else one in the expression is nearer.
        """
        scoped = [f"{name}::{key}" for name in names]
        plain = [key] if key not in _OWN else []
        self._asked.update(scoped, plain)
        found: Found | None = None
        for origin, table, used in (
            ("node", self._table, self._used),
            ("global", self._shared, self.used_globals),
        ):
            for name in (*scoped, *plain):
                if name in table:
                    used.add(name)
                    where = f"{self.node}.{name}" if origin == "node" else f"global.{name}"
                    if found is None and wins:
                        self.effective.add(where)
                    else:
                        self.overruled.setdefault(where, []).append(names[0])
                    found = found or (origin, table[name], where)
        return found

    def key(self, key: str) -> Found | None:
        """Give one of the keys of the node itself, from the node or from ``[global]``."""
        for origin, table, where in (
            ("node", self._table, self.node),
            ("global", self._shared, "global"),
        ):
            if key in table and table[key].value is not None:
                return origin, table[key], f"{where}.{key}"
        return None

    def unused(self) -> list[str]:
        """Give the keys of the node that nobody has asked for so far."""
        return [key for key in self._table if key not in self._used and key not in _OWN]

    def report_unknown(self, problems: Problems) -> None:
        """Report the node's keys that belong to the pipeline, and those that nobody has."""
        known = self.known()
        for key, written in self._table.items():
            path = f"{self.node}.{key}"
            place = key_place(written.file, path, key, written.value, at_key=True)
            if key in GLOBAL_KEYS:
                problems.add(
                    "global_key",
                    f"{key!r} belongs to the pipeline, not to a node",
                    hint="Move it to [global].",
                    **place,
                )
            elif key not in self._used and key not in _OWN and not self.excused:
                _report_unset(written, path, problems)
                suggestion = _like(key, known, problems, incomplete=self.incomplete)
                if isinstance(written.value, dict):
                    suggestion = misspelt_table(key) or suggestion
                if suggestion is not None or not self.incomplete:
                    problems.add(
                        "unknown_key",
                        f"nobody in node {self.node!r} has an option {key!r}",
                        suggestion=suggestion,
                        **place,
                    )

    def known(self) -> set[str]:
        """Give the keys that the node could have."""
        return self._asked | {*NODE_KEYS, *LINK_KEYS}


def _like(key: str, known: Iterable[str], problems: Problems, *, incomplete: bool) -> str | None:
    """Give the known key that was probably meant by ``key``.

    That is ``max`` for ``Name::max``, since node keys have no scope, and for ``batch_size``. Where
    some backend is not known, whose option it may be, only a key of nodes that is nearly the same.
    """
    scope, _, part = key.rpartition("::")
    if scope and part in NODE_KEYS:
        return part
    if incomplete:
        return problems.nearest(key, (*NODE_KEYS, *GLOBAL_KEYS))
    return KEYS_ELSEWHERE.get(part) or problems.nearest(key, known)


def _report_unset(written: Written, path: str, problems: Problems) -> None:
    """Report placeholders without a value in a key whose owner is not known."""
    try:
        replaced(written.value)
    except ConfigError as error:
        problems.extend(error.problems, file=written.file, path=path)


def report_unknown_globals(
    shared: dict[str, Written], nodes: list[Parameters], problems: Problems
) -> None:
    """Report the global keys that belong to a node, and those that no node has."""
    used = set().union(*(node.used_globals for node in nodes))
    known = set().union(*(node.known() for node in nodes)) | set(GLOBAL_KEYS)
    excused = any(node.excused for node in nodes)
    incomplete = any(node.incomplete for node in nodes)
    for key, written in shared.items():
        place = key_place(written.file, f"global.{key}", key, written.value, at_key=True)
        if key in NODE_ONLY:
            problems.add("node_key", f"{key!r} belongs to a node, not to [global]", **place)
        elif key not in used and key not in _OWN and not excused:
            suggestion = _like(key, known, problems, incomplete=incomplete)
            if suggestion is not None or not incomplete:
                problems.add(
                    "unknown_key",
                    f"no node has an option {key!r}",
                    suggestion=suggestion,
                    **place,
                )
