"""What the links and the expressions of nodes say together: where a walk goes on, which keys are there.

A `Repost` ends a walk and lets it go on elsewhere, which is not possible everywhere. A ``map`` makes a
dict with exactly the keys it names, ``context`` and ``request_id``; from there on keys are added by what
backends say they write. Only what is certain is reported: that the first backend of a node reads a key
that nothing has brought, or that a ``map`` takes one from a node none of whose backends write it.
"""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace._graph.route import KEPT
from headrace._plan.declared import OPTIONAL, Needs, keys_named
from headrace._plan.element import (
    Element,
    NodePlan,
    WrittenLinks,
    doors,
    elements_run,
    nodes_named,
    roots_of,
)
from headrace._plan.links import predecessors
from headrace._plan.word import Word, word_of
from headrace.keys import DATA, RESULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._config.problems import Problems


def with_calls(
    links: Mapping[str, WrittenLinks], nodes: Mapping[str, NodePlan]
) -> dict[str, WrittenLinks]:
    """Add to the links what the expressions say: where `Repost` leads, which nodes are called and how."""
    found = dict(links)
    for name, node in nodes.items():
        roots = roots_of(node)
        *chain, _ = doors(nodes, name)
        limits = [ms for one in chain if (ms := nodes[one].keys.timeout_ms) is not None]
        targets = dict(e.target for e in elements_run(nodes, roots) if e.target is not None)
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
                f"Repost[{element.target[0]}] is called by the entrypoint, where there is no walk to end",
                **element.target[1],
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


_Ended = tuple["set[str] | None", "WrittenLinks | None"]
"""The keys that a node may end with beside what a caller brings, None when that is unknown; and the
node whose ``map`` made the dict they are in, None when it is the caller's."""


def needed_keys(root: Element | None, built: Mapping[int, Backend]) -> tuple[str, ...]:
    """Give the keys without which a request is refused on entry.

    That is ``data`` wherever something reads it that is not known to be made inside. Else it is what
    the first backend reads: a model with several inputs reads the keys that are called like them.

    Args:
        root: The expression of an instance; None when it is not known.
        built: What was built from its elements, by their identity.
    """
    found = {DATA: ""} if root is None else _needs(root, built)
    return (DATA,) if DATA in found else tuple(sorted(found))


def _needs(element: Element, built: Mapping[int, Backend]) -> Needs:
    """Give the keys that every request needs at an element, as far as they are known."""
    if element.named is not None:
        known = not element.named.registered and not element.children
        inner = element.named.element if known else None
        return {DATA: element.name} if inner is None else _needs(inner, built)
    word = word_of(element.cls)
    return word._needs(element, lambda one: _needs(one, built), built.get(id(element)))


def check_keys_read(
    links: Mapping[str, WrittenLinks],
    nodes: Mapping[str, NodePlan],
    problems: Problems,
    warnings: Problems,
) -> None:
    """Report each key that a node reads first, or a ``map`` takes, and that cannot be there.

    Args:
        links: How the nodes are linked.
        nodes: Their plans.
        problems: Where that goes.
        warnings: Where keys go that a ``map`` takes and only the caller could have brought.
    """
    before = predecessors(links)
    ended: dict[str, _Ended] = {}
    by_repost = {name for one in links.values() for name in one.reposts}
    for name in TopologicalSorter(before).static_order():
        one = links[name]
        _check_sources(one, ended, problems, warnings)
        keys, mapped = _begins(one, before[name], ended)
        if name in by_repost and before[name]:
            keys, mapped = None, None
        if keys is not None and mapped is not None:
            _check_first(one, mapped, nodes, keys, problems)
        ended[name] = _written(one, nodes, keys), mapped
        if one.otherwise and len(before[name]) == 1:  # passed by, it stands for the one before
            ended[name] = _either(ended[name], ended[before[name][0]])


def _begins(one: WrittenLinks, before: list[str], ended: Mapping[str, _Ended]) -> _Ended:
    """Give the keys that the dict of a node has at its start, as `_Ended`."""
    if not before:
        return set(), None  # and whatever the caller brings
    if one.map is not None:
        targets = {target for pairs in one.map.values() for _, target in pairs}
        return {*targets, *KEPT}, one
    return ended[before[0]] if len(before) == 1 else (None, None)


def _either(one: _Ended, other: _Ended) -> _Ended:
    """Give what a node may end with that may be passed by."""
    keys = None if one[0] is None or other[0] is None else one[0] | other[0]
    return keys, None if other[1] is None else one[1]


def _check_sources(
    one: WrittenLinks, ended: Mapping[str, _Ended], problems: Problems, warnings: Problems
) -> None:
    """Report the keys that a ``map`` takes from nodes which do not end with them."""
    for node, pairs in (one.map or {}).items():
        keys, mapped = ended.get(node, (None, None))
        for source, _ in pairs:
            if keys is None or source in keys or source in OPTIONAL:
                continue
            takes = f"the map takes {source!r} from {node!r}, whose backends do not write it"
            near = problems.nearest(source, sorted({*keys, DATA, RESULT}))
            place = one.places["map"]
            if mapped is None:
                only = f"{takes}: it is there only when the caller's request has it"
                warnings.add("map_source", only, suggestion=near, **place)
            else:
                before = f"{takes}, and the map of node {mapped.name!r} does not bring it"
                problems.add("graph", before, suggestion=near, **place)


def _check_first(
    one: WrittenLinks,
    mapped: WrittenLinks,
    nodes: Mapping[str, NodePlan],
    keys: set[str],
    problems: Problems,
) -> None:
    """Report the keys that a node reads first and that the ``map`` before it does not bring."""
    needs: Needs = {}
    there = set(keys)
    for each in one.levels:
        if each.source not in there:
            needs.setdefault(each.source, "each")
        there.add(each.target)
    backend = nodes[doors(nodes, one.name)[-1]].backend
    if backend is not None:
        needs = {**_needs(backend, {}), **needs}
    which = "before it" if mapped.name == one.name else f"of node {mapped.name!r} before it"
    source = next(iter(mapped.map or ()), "")
    for key, reader in needs.items():
        if key not in there and key not in OPTIONAL:
            problems.add(
                "graph",
                f"{reader} of node {one.name!r} reads {key!r}, and the map {which} does not bring it",
                hint=f"Name it there, from a node that ends with it: {source}[{key}:{key}].",
                **mapped.places["map"],
            )


def _written(
    one: WrittenLinks, nodes: Mapping[str, NodePlan], keys: set[str] | None
) -> set[str] | None:
    """Give the keys that the dict of a node may have at its end; None when that is unknown."""
    if keys is None or one.levels:
        return None if keys is None else {*keys, RESULT}
    found = {*keys, RESULT}
    for element in elements_run(nodes, roots_of(nodes[one.name])):
        if not _says_what_it_writes(element) or element.target is not None:
            return None  # or the request leaves
        found.update(keys_named(element.cls, element.options, "writes", optional=True))
    return found


def _says_what_it_writes(element: Element) -> bool:
    """Tell whether ``writes`` of a class can be relied on: stated, or that of an installed plugin."""
    if issubclass(element.cls, Word):
        return True
    stated = any("writes" in vars(cls) for cls in element.cls.__mro__ if cls is not Backend)
    return stated or (bool(element.spec.path) and not element.children)
