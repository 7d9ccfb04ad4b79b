"""The keys ``next``, ``map``, ``or``, ``each`` and ``each_errors`` of a node, read and checked."""

from __future__ import annotations

import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from headrace._config.nodekeys import LINK_KEYS
from headrace._graph.route import Each, Pairs
from headrace._plan.element import WrittenLinks
from headrace._plan.parameters import written_key
from headrace._problem import nearest
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._config.document import Written
    from headrace._config.problems import Problems


_PART = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)\s*\[([^\[\]]*)\]\s*(,|$)")
_PAIR = re.compile(r"\s*([^:,\s]+)\s*:\s*([^:,\s]+)\s*")
_WRITES_IT = "it is taken out before a node runs, which writes it"
_KEY = re.compile(r"[^:,\s\[\]]+")
_FLAG: TypeAdapter[bool] = TypeAdapter(bool)


class _Reader:
    """Reads the keys of one node, placeholders replaced; what is wrong goes to ``problems``."""

    def __init__(
        self,
        name: str,
        table: Mapping[str, Written],
        shared: Mapping[str, Written],
        problems: Problems,
    ) -> None:
        self.name = name
        self.problems = problems
        self.table: dict[str, Any] = {}
        self.places: dict[str, dict[str, Any]] = {}
        self.incomplete = False
        for key in LINK_KEYS:
            found = written_key(key, name, table, shared)
            if found is None:
                continue
            self.places[key] = found.place()
            try:
                self.table[key] = found.value(problems)
            except ConfigError:
                self.incomplete = True

    def wrong(self, key: str, message: str, code: str = "graph", **more: Any) -> None:
        self.problems.add(code, message, **{**self.places[key], **more})

    def next(self) -> tuple[str, ...]:
        if "next" not in self.table:
            return ()
        value = self.table["next"]
        names = value.split(",") if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            self.wrong("next", f"expected the names of nodes, got {value!r}", "type")
            self.incomplete = True
            return ()
        names = [name.strip() for name in names]
        if "" in names:
            self.wrong("next", f"there is an empty name in {value!r}")
            return ()
        for name in _twice(names):
            self.wrong("next", f"{name!r} stands there twice")
        return tuple(dict.fromkeys(names))

    def map(self) -> dict[str, Pairs] | None:
        if "map" not in self.table:
            return None
        value = self.table["map"]
        found = self._map_text(value) if isinstance(value, str) else self._map_table(value)
        if found is None:
            return None
        targets = [target for pairs in found.values() for _, target in pairs]
        for target in _twice(targets):
            self.wrong("map", f"two sources go to the key {target!r}")
        if "data" not in targets:
            self.wrong("map", "nothing goes to 'data'", hint="Write a[result:data].")
        if "result" in targets:
            self.wrong("map", f"nothing can go to 'result': {_WRITES_IT}")
        return found

    def _map_text(self, text: str) -> dict[str, Pairs] | None:
        found: dict[str, Pairs] = {}
        at = 0
        while at < len(text) or not found:
            match = _PART.match(text, at)
            if match is None:
                self._no_map("expected node[source:target,...]", text, (at, len(text)))
                return None
            pairs = []
            start = match.start(2)
            for piece in match[2].split(","):
                pair = _PAIR.fullmatch(piece)
                if pair is None:
                    span = (start, start + len(piece))
                    self._no_map(f"expected source:target, got {piece!r}", text, span)
                    return None
                pairs.append((pair[1], pair[2]))
                start += len(piece) + 1
            at = match.end()
            if match[3] and at == len(text):
                self._no_map("there is nothing after the comma", text, match.span(3))
                return None
            if match[1] in found:
                self.wrong("map", f"{match[1]!r} stands there twice", span=match.span(1), text=text)
            found[match[1]] = tuple(pairs)
        return found

    def _no_map(self, message: str, text: str, span: tuple[int, int]) -> None:
        hint = 'For example: map = "a[result:data,color:color],b[result:mask]"'
        place = {"text": text, "span": span} if text.strip() else {}
        self.wrong("map", message, "syntax", hint=hint, **place)

    def _map_table(self, value: Any) -> dict[str, Pairs] | None:
        found: dict[str, Pairs] = {}
        for node, table in value.items() if isinstance(value, dict) else ():
            several = table.items() if isinstance(table, dict) else ()
            pairs = [
                (k, v) for k, to in several for v in (to if to and isinstance(to, list) else [to])
            ]
            found[node] = tuple(pairs)
        good = all(found.values()) and all(
            isinstance(key, str) and key
            for pairs in found.values()
            for pair in pairs
            for key in pair
        )
        if not good or not found:
            message = f"expected a table of sources and targets, got {value!r}"
            hint = 'For example: map.a = {result = "data"}, or map = "a[result:data]"'
            self.wrong("map", message, "type", hint=hint)
            return None
        return found

    def flag(self, key: str) -> bool:
        if key not in self.table:
            return False
        value = self.table[key]
        try:
            return _FLAG.validate_python(value)
        except ValidationError:
            self.wrong(key, f"expected true or false, got {value!r}", "type")
            return False

    def keep_errors(self) -> bool:
        value = self.table.get("each_errors", "fail")
        if value not in ("none", "fail"):
            near = nearest(value, ("none", "fail")) if isinstance(value, str) else None
            message = f"expected 'fail' or 'none', got {value!r}"
            self.wrong("each_errors", message, "type", suggestion=near)
        return bool(value == "none")

    def each(self, *, keep_errors: bool) -> Each | None:
        if "each" not in self.table:
            return None
        value = self.table["each"]
        parts = [part.strip() for part in value.split(":")] if isinstance(value, str) else []
        if not 1 <= len(parts) <= 2 or not all(_KEY.fullmatch(part) for part in parts):
            self.wrong("each", f"expected 'key' or 'key:target', got {value!r}", "type")
            return None
        if parts[-1] == "result" and len(parts) == 2:
            self.wrong("each", f"elements cannot go to 'result': {_WRITES_IT}")
        return Each(self.name, parts[0], parts[1] if len(parts) == 2 else "data", keep_errors)


def _twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def read_links(
    name: str, table: Mapping[str, Written], shared: Mapping[str, Written], problems: Problems
) -> WrittenLinks:
    """Read the keys of one node that link it to others; what is wrong goes to ``problems``."""
    reader = _Reader(name, table, shared, problems)
    links = WrittenLinks(
        name,
        reader.next(),
        reader.map(),
        reader.flag("or"),
        reader.each(keep_errors=reader.keep_errors()),
        places=reader.places,
        incomplete=reader.incomplete,
    )
    if "each_errors" in table and "each" not in table:
        reader.wrong("each_errors", "the node has no 'each'")
    return links


def predecessors(links: Mapping[str, WrittenLinks]) -> dict[str, list[str]]:
    """Give per node those that it comes next after."""
    found: dict[str, list[str]] = {name: [] for name in links}
    for one in links.values():
        for name in one.next:
            if name in found:
                found[name].append(one.name)
    return found


def check_links(links: Mapping[str, WrittenLinks], problems: Problems) -> bool:
    """Check that the links of all nodes make a graph through which every request finds its way.

    Returns:
        Whether all names in ``next`` are nodes, and none comes after itself.
    """
    checker = _Checker(links, problems)
    for one in links.values():
        checker.names(one)
    cycle = _cycle(links)
    if cycle is not None:
        message = f"the nodes form a cycle: {' > '.join(cycle)}"
        checker.wrong(links[cycle[0]], "next", message)
        return False
    if any(one.incomplete for one in links.values()):
        return False
    for one in links.values():
        checker.predecessors(one)
    return all(name in links for one in links.values() for name in one.next)


def _cycle(links: Mapping[str, WrittenLinks]) -> list[str] | None:
    """Find nodes that follow each other in a cycle; it begins at the first of them in the file."""
    try:
        TopologicalSorter(predecessors(links)).prepare()
    except CycleError as error:
        *found, _ = error.args[1]
        start = min(range(len(found)), key=lambda place: list(links).index(found[place]))
        return [*found[start:], *found[: start + 1]]
    return None


class _Checker:
    """Checks the links of one node after the other; what is wrong goes to ``problems``."""

    def __init__(self, links: Mapping[str, WrittenLinks], problems: Problems) -> None:
        self.links = links
        self.problems = problems
        self.before = predecessors(links)

    def wrong(self, one: WrittenLinks, key: str, message: str, **more: Any) -> None:
        self.problems.add("graph", message, **{**one.places[key], **more})

    def names(self, one: WrittenLinks) -> None:
        """Report the names in ``next`` and ``map`` that are no nodes."""
        for key, names in (("next", one.next), ("map", one.map or ())):
            for name in names:
                if name not in self.links:
                    near = self.problems.nearest(name, self.links)
                    self.wrong(one, key, f"no node is called {name!r}", suggestion=near)

    def predecessors(self, one: WrittenLinks) -> None:
        """Check ``or`` and ``map`` against what comes before the node."""
        before = self.before[one.name]
        if one.otherwise and len(before) != 1:
            message = f"a node with 'or' has one predecessor, this one has {len(before)}"
            self.wrong(one, "or", message)
        if one.map is None:
            if len(before) > 1:
                hint = f'Write map = "{before[0]}[result:data],..." with every predecessor.'
                message = f"{', '.join(before)} join here, and there is no map"
                self.problems.add("graph", message, path=one.name, hint=hint)
            return
        if not before:
            self.wrong(one, "map", "nothing comes before this node")
            return
        for missing in before:
            if len(before) > 1 and missing not in one.map:
                self.wrong(one, "map", f"the predecessor {missing!r} is not named")
        for name in one.map:
            if name == one.name:
                self.wrong(one, "map", f"{name!r} is this node, which has yet to run")
            elif name in self.links and not self._always_before(name, one.name):
                message = f"a request can reach {one.name!r} without passing {name!r}"
                self.wrong(one, "map", message)

    def _always_before(self, name: str, node: str) -> bool:
        """Tell whether every way from a root to ``node`` goes through ``name``."""
        if name in self.before[node]:
            return True
        seen, todo = {node}, [node]
        while todo:
            current = todo.pop()
            if not self.before[current]:
                return False
            new = [one for one in self.before[current] if one != name and one not in seen]
            seen.update(new)
            todo += new
        return True
