"""How nodes are linked: what their keys and their expressions say of it, and whether the two agree.

The keys are ``next``, ``map``, ``or``, ``each`` and ``each_errors``. A backend may let a request go
on at another node than these say, which is not possible everywhere. A ``map`` makes a dict with
exactly the keys that it names, ``context`` and ``request_id``: all that the first backend after it
reads must be among them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from headrace._language.config.sections import LinkKeys, Sections
from headrace._language.plan.element import Element, elements_of, place_of
from headrace._language.plan.key_use import keys_required_by
from headrace._language.plan.nodes import NodePlan, with_aliased
from headrace._language.plan.parameters import check_keys, place_at
from headrace._run.contract.settings import Links
from headrace._run.graph.route import KEPT, closure, pairs_of, parallel
from headrace.keys import RESERVED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._language.config.problems import Problems
    from headrace._language.plan.declared import RequiredKeys


Pairs = list[tuple[str, str]]
"""Pairs of source key and target key that a map takes from one node."""

_PART = re.compile(r"\s*([A-Za-z][A-Za-z0-9_-]*)\s*\[([^\[\]]*)\]\s*(,|$)")
_PAIR = re.compile(r"\s*([^:,\s]+)\s*:\s*([^:,\s]+)\s*")
_EACH = re.compile(r"\s*([^:,\s\[\]]+)\s*(?::\s*([^:,\s\[\]]+)\s*)?")
_WRITES_IT = "it is taken out before a node runs, which writes it"


def plan_links(
    shape: Sections, nodes: Mapping[str, NodePlan], problems: Problems
) -> dict[str, Links]:
    """Read how all nodes are linked, and check that every request finds its way through them.

    Args:
        shape: The configuration.
        nodes: The nodes that are planned. Nodes that are wrong are missing.
        problems: Takes the problems that are found.
    """
    graph = _Graph(shape, nodes, problems)
    good = graph.check()
    graph.add_calls()
    if len(nodes) == len(shape.nodes):
        if good:
            graph.check_reposts()
        graph.check_keys_read()
    return graph.links


class _Graph:
    """All nodes and how they are linked. ``problems`` takes what is wrong.

    Attributes:
        links: How each node is linked.
        reposts: By node, those at which its backends let requests go on, each with the element that
            does.
        complete: Whether all keys could be read.
        before: By node, those that name it in their ``next``, in file order. Set by `check`.
    """

    def __init__(self, shape: Sections, nodes: Mapping[str, NodePlan], problems: Problems) -> None:
        self.shape, self.nodes, self.problems = shape, nodes, problems
        self.reposts: dict[str, dict[str, Element]] = {}
        self.complete = True
        self.before: dict[str, list[str]] = {name: [] for name in shape.nodes}
        self.links = {name: self._read_links(name, shape) for name in shape.nodes}

    def report(self, name: str, key: str, message: str, code: str = "graph", **more: Any) -> None:
        """Report a problem with a key of a node, or with the node where the key is not written."""
        self.problems.add(code, message, **{**place_at(key, name, self.shape), **more})

    # Reading the keys of one node.

    def _read_links(self, name: str, shape: Sections) -> Links:
        before, table = len(self.problems), shape.nodes[name]
        keys, _ = check_keys(LinkKeys, name, shape, self.problems)
        self.complete &= len(self.problems) == before
        errors = table.get("each_errors")
        if errors is not None and errors.value is not None and "each" not in table:
            self.report(name, "each_errors", "the node has no 'each'")
        following, taken = self._next(name, keys.next), self._map(name, keys.map)
        each_keys = self._each(name, keys.each)
        each_errors = "none" if each_keys is not None and keys.each_errors == "none" else None
        return Links(following, taken, keys.otherwise, each_keys, each_errors, name=name)

    def _next(self, name: str, value: str | tuple[str, ...]) -> tuple[str, ...]:
        pieces = value.split(",") if isinstance(value, str) else value
        names = [piece.strip() for piece in pieces]
        if "" in names:
            self.report(name, "next", f"there is an empty name in {value!r}")
            return ()
        for name_twice in _twice(names):
            self.report(name, "next", f"{name_twice!r} stands there twice")
        return tuple(dict.fromkeys(names))

    def _map(self, name: str, value: Any) -> dict[str, dict[str, str | tuple[str, ...]]]:
        if isinstance(value, str):
            taken = self._map_text(name, value)
        else:
            taken = {node: pairs_of(sources) for node, sources in (value or {}).items()}
        if not taken:
            return {}
        targets = [target for pairs in taken.values() for _, target in pairs]
        for target in _twice(targets):
            self.report(name, "map", f"two sources go to the key {target!r}")
        if "data" not in targets:
            hint = f"Write {next(iter(taken))}[result:data]."
            self.report(name, "map", "nothing goes to 'data'", hint=hint)
        if "result" in targets:
            self.report(name, "map", f"nothing can go to 'result': {_WRITES_IT}")
        return {node: _table(pairs) for node, pairs in taken.items()}

    def _map_text(self, name: str, text: str) -> dict[str, Pairs]:
        taken: dict[str, Pairs] = {}
        at = 0
        while True:
            match = _PART.match(text, at)
            pairs = match[2].split(",") if match is not None else []
            bad_pair = next((pair for pair in pairs if _PAIR.fullmatch(pair) is None), None)
            if match is None or bad_pair is not None:
                start = at if match is None else text.index(str(bad_pair), match.start(2))
                span = (start, len(text) if bad_pair is None else start + len(bad_pair))
                hint = 'For example: map = "a[result:data,color:color],b[result:mask]"'
                place = {"text": text, "span": span} if text.strip() else {}
                message = "expected node[source:target,...]"
                self.report(name, "map", message, "syntax", hint=hint, **place)
                return {}
            if match[1] in taken:
                message = f"{match[1]!r} stands there twice"
                self.report(name, "map", message, span=match.span(1), text=text)
            new = ([part.strip() for part in pair.split(":")] for pair in pairs)
            texts = taken.setdefault(match[1], [])
            texts += [(source, target) for source, target in new]
            at = match.end()
            if not match[3]:
                return taken

    def _each(self, name: str, value: str | None) -> str | None:
        if value is None:
            return None
        if (match := _EACH.fullmatch(value)) is None:
            self.report(name, "each", f"expected 'key' or 'key:target', got {value!r}", "type")
            return None
        if "result" in (match[1], match[2]):
            hint = "Write data: the result of the node before is the data of this one."
            message = f"'result' is neither a list nor an element here: {_WRITES_IT}"
            self.report(name, "each", message, hint=hint)
        return f"{match[1]}:{match[2] or 'data'}"

    # Checking the keys of all nodes together.

    def check(self) -> bool:
        """Check that the nodes make a graph, and that ``or`` and ``map`` fit it.

        Returns:
            Whether all names in ``next`` are nodes, and these form no cycle.
        """
        links = self.links
        for link in links.values():
            for key, names in (("next", link.next), ("map", link.map)):
                for name in names:
                    if name not in links:
                        message = f"no node is called {name!r}"
                        suggestion = self.problems.nearest(name, links)
                        self.report(link.name, key, message, suggestion=suggestion)
                    elif key == "next":
                        self.before[name].append(link.name)
        if (cycle := cycle_of(self.before)) is not None:
            self.report(cycle[0], "next", f"the nodes form a cycle: {' > '.join(cycle)}")
        if cycle is not None or not self.complete:
            return False
        for link in links.values():
            self._check_predecessors(link)
        return all(name in links for link in links.values() for name in link.next)

    def _check_predecessors(self, link: Links) -> None:
        """Check ``or`` and ``map`` of a node against its predecessors."""
        before, report = self.before[link.name], partial(self.report, link.name)
        if link.otherwise and len(before) != 1:
            report("or", f"a node with 'or' has one predecessor, this one has {len(before)}")
        if not link.map:
            written = self.shape.nodes[link.name].get("map")
            if len(before) > 1 and (written is None or written.value is None):
                hint = f'Write map = "{before[0]}[result:data],...": the keys to take from each.'
                message = f"the node follows {' and '.join(before)}, and has no map"
                report("map", message, hint=hint)
            return
        if not before:
            report("map", "nothing comes before this node")
            return
        for missing in before:
            if len(before) > 1 and missing not in link.map:
                report("map", f"the predecessor {missing!r} is not named")
        farther = self.before.keys() - {*before}
        for name in link.map:
            if name == link.name:
                report("map", f"{name!r} is this node, which has yet to run")
            elif name in farther and not self._is_needed(name, link.name):
                report("map", f"a request can reach {link.name!r} without passing {name!r}")

    def _is_needed(self, name: str, node: str) -> bool:
        """Tell whether every way from a root to ``node`` goes through ``name``."""
        others = closure([node], lambda other: [n for n in self.before[other] if n != name])
        return all(self.before[other] for other in others)

    # Checking the keys of nodes together with their expressions.

    def add_calls(self) -> None:
        """Add to the links what the expressions say.

        The nodes at which requests go on, and those that are called.
        """
        for name, node in self.nodes.items():
            run = elements_of(node.trees)
            self.reposts[name] = {to: element for element in run for to in element._goes_on_at}
            calls = [element.named.node for element in run if element.named is not None]
            calls += [to for e in run if not e._goes_on_at for to in e.nodes_called]
            called = tuple(to for to in dict.fromkeys(calls) if to and to != name)
            self.links[name] = replace(
                self.links[name], reposts=tuple(self.reposts[name]), calls=called
            )

    def check_reposts(self) -> None:
        """Check that no other part of a request is open where it goes on at another node."""
        if not any(self.reposts.values()):
            return
        apart = parallel(self.links, self.links)
        for name, targets in self.reposts.items():
            for target, element in targets.items():
                does = f"{element.name} lets a request go on at {target!r}"
                if self.links[name].each is not None:
                    node = f"node {name!r} runs once per element, which goes to no other node"
                    message = f"{does}, and {node}"
                    hint = "Put it into a node after this one."
                elif name in apart:
                    message = f"{does}, and node {name!r} stands in one of several branches"
                    hint = "Put it before the branches part, or after they have joined."
                else:
                    continue
                self.problems.add("graph", message, hint=hint, **place_of(element.call))

    def check_keys_read(self) -> None:
        """Report each key that a node reads first and that the ``map`` before it does not bring.

        Other missing keys are found only when a request runs: those that a later backend reads, and
        those that a ``map`` takes from a node that has not written them.
        """
        # Requests that go on at a node come to it without its map.
        entered = {name for link in self.links.values() for name in link.reposts}
        for name, link in self.links.items():
            if not link.map or name in entered:
                continue
            there = {*KEPT}
            there.update(to for sources in link.map.values() for _, to in pairs_of(sources))
            needs: RequiredKeys = {}
            way = with_aliased(self.nodes, name)
            linked = (self.links[node] for node in way)
            for source, target in (other._each_keys for other in linked if other.each):
                if source not in there:
                    needs.setdefault(source, "each")
                there.add(target)
            needs = {**keys_required_by(self.nodes[way[-1]].tree, {}), **needs}
            for key in (key for key in needs if key not in there and key not in RESERVED):
                reads = f"{needs[key]} of node {name!r} reads {key!r}"
                message = f"{reads}, and the map before it does not bring it"
                source = next(iter(link.map))
                hint = f"Name it there, from a node that ends with it: {source}[{key}:{key}]."
                self.report(name, "map", message, hint=hint)


def _table(pairs: Pairs) -> dict[str, str | tuple[str, ...]]:
    targets: dict[str, list[str]] = {}
    for source, target in pairs:
        targets.setdefault(source, []).append(target)
    return {source: to[0] if len(to) == 1 else tuple(to) for source, to in targets.items()}


def _twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def cycle_of(before: Mapping[str, list[str]]) -> list[str] | None:
    """Find nodes that follow each other in a cycle, from the first of them in the file."""
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        *cycle, _ = error.args[1]
        start = cycle.index(min(cycle, key=list(before).index))
        return [*cycle[start:], *cycle[: start + 1]]
    return None
