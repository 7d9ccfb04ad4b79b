"""Where `Repost` may stand, and where the walks that it ends go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace._plan.element import doors, elements_run, nodes_named, roots_of
from headrace._plan.word import planned_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._config.problems import Problems
    from headrace._plan.element import Element, NodePlan, Place, WrittenLinks


Ways = dict[str, set[str]]
"""Per node, itself and all that come after it."""


def with_calls(
    links: Mapping[str, WrittenLinks], nodes: Mapping[str, NodePlan]
) -> dict[str, WrittenLinks]:
    """Add to the links what the expressions say: where `Repost` leads, which nodes are called."""
    found = dict(links)
    for name, node in nodes.items():
        roots = roots_of(node)
        targets = (e.target[0] for e in elements_run(nodes, roots) if e.target is not None)
        calls = tuple(n for n in nodes_named(roots) if n != name)
        found[name] = replace(
            links[name],
            reposts=tuple(dict.fromkeys(targets)),
            calls=calls,
            door_to=node.door_to,
            levels=tuple(each for one in doors(nodes, name) if (each := links[one].each)),
        )
    return found


def check_reposts(
    links: Mapping[str, WrittenLinks], nodes: Mapping[str, NodePlan], problems: Problems
) -> None:
    """Check that every walk that a `Repost` ends can go on. The nodes must form no cycle."""
    if not any(one.reposts for one in links.values()):
        return
    after = _after(links)
    ends = _ends(links, after)
    for one in links.values():
        for target, place in _places(nodes, one).items():
            wrong = _wrong(one, target, links, after, ends)
            if wrong is not None:
                message, hint = wrong
                problems.add("graph", message, hint=hint, **place)


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
    if any(planned_word(element.cls)._walks for element in run):
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


def _places(nodes: Mapping[str, NodePlan], one: WrittenLinks) -> dict[str, Place]:
    """Give where each Repost that a node may run is written, by its target."""
    if one.name not in nodes:
        return {}
    run = elements_run(nodes, roots_of(nodes[one.name]))
    return {e.target[0]: e.target[1] for e in run if e.target is not None}


def _wrong(
    one: WrittenLinks, target: str, links: Mapping[str, WrittenLinks], after: Ways, ends: Ways
) -> tuple[str, str] | None:
    if one.each is not None:
        return (
            (
                f"node {one.name!r} runs once per element, and an element has no walk that "
                f"Repost[{target}] could end"
            ),
            "Put it into a node after this one.",
        )
    before = {name for name in links if one.name in after[name]}
    together = {n for name in before for n in after[name]} - after[one.name] - before
    for name in sorted(together | before - {one.name}):
        joins = [n for n in links[name].next if n in after[one.name] and n != one.name]
        if joins:
            return (
                (
                    f"Repost[{target}] stands in a branch that joins again: {joins[0]!r} waits for "
                    f"{one.name!r} and for {name!r}"
                ),
                "Put it before the branches part, or after they have joined.",
            )
    others = {end for name in together for end in ends[name]}
    same = sorted(others & ends[target])
    if same:
        return (
            (
                f"after Repost[{target}] the walk may end at {same[0]!r}, and so may another branch: "
                "results are told apart by the node they end at"
            ),
            "Let the branches end at nodes of their own.",
        )
    return None


def _after(links: Mapping[str, WrittenLinks]) -> Ways:
    """Find what comes after each node by ``next``, the node itself included."""
    return {name: _closure(name, {n: one.next for n, one in links.items()}) for name in links}


def _ends(links: Mapping[str, WrittenLinks], after: Ways) -> Ways:
    """Find the nodes at which a walk from each node may end, by ``next`` and by `Repost`."""
    ways = {name: (*one.next, *one.reposts) for name, one in links.items()}
    return {name: {n for n in _closure(name, ways) if not links[n].next} for name in after}


def _closure(start: str, ways: Mapping[str, Iterable[str]]) -> set[str]:
    found, todo = {start}, [start]
    while todo:
        for name in ways.get(todo.pop(), ()):
            if name not in found and name in ways:
                found.add(name)
                todo.append(name)
    return found
