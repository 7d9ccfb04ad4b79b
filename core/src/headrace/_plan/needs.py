"""Which keys a request needs where it enters a node, and which it has at the end of one.

A ``map`` makes a dict with exactly the keys it names, ``context`` and ``request_id``; from there on
keys are added by what backends say they write. Only what is certain is reported: that the first
backend of a node reads a key that nothing has brought, or that a ``map`` takes one from a node none of
whose backends write it.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace._graph.links import KEPT
from headrace._plan.declared import OPTIONAL, Needs, keys_named
from headrace._plan.element import Element, NodePlan, WrittenLinks, elements_run, roots_of
from headrace._plan.links import predecessors
from headrace._plan.word import PlannedWord, planned_word
from headrace.keys import DATA, RESULT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._config.problems import Problems


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
    word = planned_word(element.cls)
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
    node = nodes[one.name]
    while node.door_to is not None and node.door_to in nodes:
        node = nodes[node.door_to]
    if node.backend is not None:
        needs = {**_needs(node.backend, {}), **needs}
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
    if issubclass(element.cls, PlannedWord):
        return True
    stated = any("writes" in vars(cls) for cls in element.cls.__mro__ if cls is not Backend)
    return stated or (bool(element.spec.path) and not element.children)
