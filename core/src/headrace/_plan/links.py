"""How nodes are linked: what their keys say, what their expressions say, and whether that goes together.

The keys are ``next``, ``map``, ``or``, ``each`` and ``each_errors``. A `Repost` ends a walk and lets it go
on elsewhere, which is not possible everywhere. A ``map`` makes a dict with exactly the keys it names,
``context`` and ``request_id``: what the first backend after it reads must be among them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from headrace._config.nodekeys import LINK_KEYS, LinkKeys
from headrace._graph.route import KEPT, Each, Pairs
from headrace._plan.declared import OPTIONAL, Needs
from headrace._plan.element import (
    Element,
    NodePlan,
    WrittenLinks,
    doors,
    elements_run,
    nodes_named,
    roots_of,
)
from headrace._plan.options import check_keys
from headrace._plan.parameters import written_key
from headrace._plan.scope import place_of
from headrace._plan.word import needs_of, word_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._config.document import Written
    from headrace._config.problems import Problems
    from headrace._plan.element import Place


_PART = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)\s*\[([^\[\]]*)\]\s*(,|$)")
_PAIR = re.compile(r"\s*([^:,\s]+)\s*:\s*([^:,\s]+)\s*")
_EACH = re.compile(r"\s*([^:,\s\[\]]+)\s*(?::\s*([^:,\s\[\]]+)\s*)?")
_WRITES_IT = "it is taken out before a node runs, which writes it"


class _Reader:
    """Reads what the keys of one node say; what is wrong goes to ``problems``."""

    def __init__(
        self, node: str, keys: LinkKeys, places: Mapping[str, Place], problems: Problems
    ) -> None:
        self.node = node
        self.keys = keys
        self.places = places
        self.problems = problems

    def wrong(self, key: str, message: str, code: str = "graph", **more: Any) -> None:
        self.problems.add(code, message, **{**self.places[key], **more})

    def next(self) -> tuple[str, ...]:
        value = self.keys.next
        pieces = value.split(",") if isinstance(value, str) else value
        names = [piece.strip() for piece in pieces]
        if "" in names:
            self.wrong("next", f"there is an empty name in {value!r}")
            return ()
        for name in _twice(names):
            self.wrong("next", f"{name!r} stands there twice")
        return tuple(dict.fromkeys(names))

    def map(self) -> dict[str, Pairs] | None:
        value = self.keys.map
        if value is None:
            return None
        found = self._map_text(value) if isinstance(value, str) else _map_table(value)
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

    def each(self) -> Each | None:
        value = self.keys.each
        match = None if value is None else _EACH.fullmatch(value)
        if match is None:
            if value is not None:
                self.wrong("each", f"expected 'key' or 'key:target', got {value!r}", "type")
            return None
        if match[2] == "result":
            self.wrong("each", f"elements cannot go to 'result': {_WRITES_IT}")
        return Each(self.node, match[1], match[2] or "data", self.keys.each_errors == "none")


def _map_table(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Pairs]:
    return {
        node: tuple(
            (source, target)
            for source, to in sources.items()
            for target in ([to] if isinstance(to, str) else to)
        )
        for node, sources in table.items()
    }


def _twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def read_links(
    name: str, table: Mapping[str, Written], shared: Mapping[str, Written], problems: Problems
) -> WrittenLinks:
    """Read the keys of one node that link it to others; what is wrong goes to ``problems``."""
    before = len(problems)
    keys, _ = check_keys(LinkKeys, table, shared, name, problems)
    incomplete = len(problems) > before
    found = ((key, written_key(key, name, table, shared)) for key in LINK_KEYS)
    places = {key: one.place() for key, one in found if one is not None}
    reader = _Reader(name, keys, places, problems)
    if "each_errors" in table and "each" not in table:
        reader.wrong("each_errors", "the node has no 'each'")
    return WrittenLinks(
        name,
        reader.next(),
        reader.map(),
        keys.otherwise,
        reader.each(),
        places=places,
        incomplete=incomplete,
    )


def check_links(links: Mapping[str, WrittenLinks], problems: Problems) -> bool:
    """Check that the links of all nodes make a graph through which every request finds its way.

    Returns:
        Whether all names in ``next`` are nodes, and none comes after itself.
    """
    for one in links.values():
        for key, names in (("next", one.next), ("map", one.map or ())):
            for name in names:
                if name not in links:
                    near = problems.nearest(name, links)
                    _wrong(problems, one, key, f"no node is called {name!r}", suggestion=near)
    before = {name: [one.name for one in links.values() if name in one.next] for name in links}
    cycle = _cycle(before)
    if cycle is not None:
        message = f"the nodes form a cycle: {' > '.join(cycle)}"
        _wrong(problems, links[cycle[0]], "next", message)
        return False
    if any(one.incomplete for one in links.values()):
        return False
    for one in links.values():
        _check_predecessors(one, before, problems)
    return all(name in links for one in links.values() for name in one.next)


def _cycle(before: Mapping[str, list[str]]) -> list[str] | None:
    """Find nodes that follow each other in a cycle; it begins at the first of them in the file."""
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        *found, _ = error.args[1]
        start = min(range(len(found)), key=lambda place: list(before).index(found[place]))
        return [*found[start:], *found[: start + 1]]
    return None


def _wrong(problems: Problems, one: WrittenLinks, key: str, message: str, **more: Any) -> None:
    problems.add("graph", message, **{**one.places[key], **more})


def _check_predecessors(
    one: WrittenLinks, all_before: Mapping[str, list[str]], problems: Problems
) -> None:
    """Check ``or`` and ``map`` against what comes before the node."""
    before = all_before[one.name]
    if one.otherwise and len(before) != 1:
        message = f"a node with 'or' has one predecessor, this one has {len(before)}"
        _wrong(problems, one, "or", message)
    if one.map is None:
        if len(before) > 1:
            hint = f'Write map = "{before[0]}[result:data],..." with every predecessor.'
            message = f"{', '.join(before)} join here, and there is no map"
            problems.add("graph", message, path=one.name, hint=hint)
        return
    if not before:
        _wrong(problems, one, "map", "nothing comes before this node")
        return
    for missing in before:
        if len(before) > 1 and missing not in one.map:
            _wrong(problems, one, "map", f"the predecessor {missing!r} is not named")
    for name in one.map:
        if name == one.name:
            _wrong(problems, one, "map", f"{name!r} is this node, which has yet to run")
        elif name in all_before and not _always_before(name, one.name, all_before):
            message = f"a request can reach {one.name!r} without passing {name!r}"
            _wrong(problems, one, "map", message)


def _always_before(name: str, node: str, before: Mapping[str, list[str]]) -> bool:
    """Tell whether every way from a root to ``node`` goes through ``name``."""
    others = {one: [n for n in names if n != name] for one, names in before.items()}
    return name in before[node] or all(before[one] for one in _closure(node, others))


# What the links and the expressions of nodes say together.


def with_calls(
    links: Mapping[str, WrittenLinks], nodes: Mapping[str, NodePlan]
) -> dict[str, WrittenLinks]:
    """Add to the links what the expressions say: where `Repost` leads, which nodes are called and how."""
    found = dict(links)
    for name, node in nodes.items():
        roots = roots_of(node)
        *chain, _ = doors(nodes, name)
        limits = [ms for one in chain if (ms := nodes[one].keys.timeout_ms) is not None]
        run = elements_run(nodes, roots)
        targets = {e.target: place_of(e.call) for e in run if e.target is not None}
        found[name] = replace(
            links[name],
            reposts=tuple(targets),
            calls=tuple(n for n in nodes_named(roots) if n != name),
            door_to=node.door_to,
            levels=tuple(each for one in doors(nodes, name) if (each := links[one].each)),
            timeout_ms=min(limits, default=None),
            repost_places=targets,
        )
    return found


def check_reposts(links: Mapping[str, WrittenLinks], problems: Problems) -> None:
    """Check that every walk that a `Repost` ends can go on. The nodes must form no cycle."""
    if not any(one.reposts for one in links.values()):
        return
    following = {name: one.next for name, one in links.items()}
    after = {name: _closure(name, following) for name in links}
    ways = {name: (*one.next, *one.reposts) for name, one in links.items()}
    ends = {name: {n for n in _closure(name, ways) if not links[n].next} for name in links}
    for one in links.values():
        behind = after[one.name]
        before = {name for name in links if one.name in after[name]}
        together = {n for name in before for n in after[name]} - behind - before
        joins = [
            (n, name)
            for name in sorted(together | before - {one.name})
            for n in links[name].next
            if n in behind - {one.name}
        ]
        others = {end for name in together for end in ends[name]}
        for target, place in one.repost_places.items():
            if one.each is not None:
                message = (
                    f"node {one.name!r} runs once per element, and an element has no walk that "
                    f"Repost[{target}] could end"
                )
                hint = "Put it into a node after this one."
            elif joins:
                message = (
                    f"Repost[{target}] stands in a branch that joins again: {joins[0][0]!r} waits for "
                    f"{one.name!r} and for {joins[0][1]!r}"
                )
                hint = "Put it before the branches part, or after they have joined."
            elif others & ends[target]:
                message = (
                    f"after Repost[{target}] the walk may end at {min(others & ends[target])!r}, and so "
                    "may another branch: results are told apart by the node they end at"
                )
                hint = "Let the branches end at nodes of their own."
            else:
                continue
            problems.add("graph", message, hint=hint, **place)


def _closure(start: str, ways: Mapping[str, Iterable[str]]) -> set[str]:
    found, todo = {start}, [start]
    while todo:
        new = [name for name in ways[todo.pop()] if name not in found and name in ways]
        found.update(new)
        todo += new
    return found


def check_front(
    front: Element,
    links: Mapping[str, WrittenLinks],
    nodes: Mapping[str, NodePlan],
    problems: Problems,
) -> None:
    """Check what an ``entrypoint`` does to the graph: there is no walk where nothing walks."""
    run = elements_run(nodes, [front])
    for element in run:
        if element.target is not None:
            problems.add(
                "graph",
                f"Repost[{element.target}] is called by the entrypoint, where there is no walk to end",
                **place_of(element.call),
            )
    if any(word_of(element.cls)._walks for element in run):
        return
    called = set(nodes_named(run))
    for name, one in links.items():
        if name not in called:
            problems.add(
                "graph",
                f"node {name!r} is unreachable: nothing in the entrypoint calls it",
                path=name,
                hint=f"Write Forward[node.{name}] there, or DagDispatcher to walk the graph.",
            )
        elif one.next:
            problems.add(
                "graph",
                "the entrypoint does not walk the graph, so nothing comes next",
                hint="Put DagDispatcher where the walk is to begin.",
                **one.places["next"],
            )


def check_keys_read(
    links: Mapping[str, WrittenLinks], nodes: Mapping[str, NodePlan], problems: Problems
) -> None:
    """Report each key that a node reads first and that its own ``map`` does not bring.

    A key that a later backend misses, or that a ``map`` takes where nobody has written it, is named by
    the first request.
    """
    entered = {name for one in links.values() for name in one.reposts}  # past their map
    for one in links.values():
        if one.map is None or one.name in entered:
            continue
        there = {*KEPT, *(target for pairs in one.map.values() for _, target in pairs)}
        needs: Needs = {}
        for each in one.levels:
            if each.source not in there:
                needs.setdefault(each.source, "each")
            there.add(each.target)
        backend = nodes[doors(nodes, one.name)[-1]].backend
        if backend is not None:
            needs = {**needs_of(backend, {}), **needs}
        source = next(iter(one.map), "")
        for key, reader in needs.items():
            if key not in there and key not in OPTIONAL:
                problems.add(
                    "graph",
                    f"{reader} of node {one.name!r} reads {key!r}, and the map before it does not "
                    "bring it",
                    hint=f"Name it there, from a node that ends with it: {source}[{key}:{key}].",
                    **one.places["map"],
                )
