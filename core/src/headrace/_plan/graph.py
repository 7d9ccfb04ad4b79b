"""What the links and the expressions of nodes say together: where a walk goes on, which keys are there.

A `Repost` ends a walk and lets it go on elsewhere, which is not possible everywhere. A ``map`` makes a
dict with exactly the keys it names, ``context`` and ``request_id``: what the first backend after it reads
must be among them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._graph.route import KEPT
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
from headrace._plan.word import word_of
from headrace.keys import DATA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._backend import Backend
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
            needs = {**_needs(backend, {}), **needs}
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
