"""What takes part when a request enters at a node: worked out once, read by every request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from headrace._graph.links import Each, Links
    from headrace._scheduling.scheduler import Scheduler
    from headrace._scheduling.sleeper import Rest

__all__ = ["Hop", "Route", "Step", "make_route", "roots"]


@dataclass(eq=False)
class Step:
    """A node on a route.

    Attributes:
        name: The node.
        index: Its place among all nodes, in file order.
        scheduler: Its queue and instances; only the drivers look at them.
        links: How it is linked.
        before: Its predecessors on the route.
        after: Its successors on the route.
        copied: Whether a successor gets a shallow copy of its dict: it has several successors, or
            a later map reads the keys that it ended with.
        timeout_ms: The limit of a second door, which its node does not know; None for none.
        skipped: Itself and all after it, where a `Repost` may end the leg there.
        runs_once: Whether its node runs it as it comes: without ``each``, and without a limit of
            its own.
    """

    name: str
    index: int
    scheduler: Scheduler
    links: Links
    before: tuple[str, ...]
    after: tuple[str, ...]
    copied: bool = False
    timeout_ms: float | None = None
    skipped: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.runs_once = not self.links.levels and self.timeout_ms is None

    @property
    def levels(self) -> Sequence[Each]:
        """Its own ``each``, and those of the nodes behind a second door."""
        return self.links.levels

    @property
    def is_plain(self) -> bool:
        """Whether it always runs, once, for as long as its node allows, and then comes ``next``."""
        return self.runs_once and not self.links.otherwise and not self.links.reposts


class Hop(NamedTuple):
    """How one plain node of a route is reached, worked out beforehand.

    Attributes:
        name: The node.
        scheduler: Its queue and instances.
        source: The node whose dict it takes; None with a map.
        copies: Whether it takes a copy.
        pairs: The map: per pair the node, its key and the key it goes to.
        step: The node on the route.
    """

    name: str
    scheduler: Scheduler
    source: str | None
    copies: bool
    pairs: tuple[tuple[str, str, str], ...]
    step: Step


@dataclass(eq=False)
class Route:
    """What takes part when a request enters at one node.

    Attributes:
        steps: The nodes, each after its predecessors.
        parallel: The schedulers of branches that may run at the same time, also after a `Repost`.
        is_chain: Whether each node simply hands its dict to the next.
        chain: The schedulers after the first, of a chain: the second, and what comes after that.
        hops: All nodes but the first, when each is plain; else None.
        sinks: The nodes without successors, in file order.
        by_name: The nodes.
        waits_for: Per node, for how many predecessors it waits.
        entry, first: The node at which a request enters, and its scheduler.
    """

    steps: tuple[Step, ...]
    parallel: tuple[Scheduler, ...] = ()
    is_chain: bool = False
    hops: tuple[Hop, ...] | None = None
    sinks: tuple[Step, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.by_name = {step.name: step for step in self.steps}
        self.waits_for = {step.name: len(step.before) for step in self.steps}
        self.entry = self.steps[0]
        self.first = self.entry.scheduler
        self.chain: Rest | None = None
        for step in reversed(self.steps[1:]) if self.is_chain else ():
            self.chain = (step.scheduler, self.chain)
        self.sinks = tuple(sorted((s for s in self.steps if not s.after), key=lambda s: s.index))


def make_route(
    entry: str,
    links: Mapping[str, Links],
    schedulers: Mapping[str, Scheduler],
    timeouts_ms: Mapping[str, float | None],
    lenient: Collection[str],
) -> Route:
    """Work out what takes part when a request enters at a node.

    Args:
        entry: The node.
        links: How all nodes are linked.
        schedulers: Their queues and instances.
        timeouts_ms: Per second door its limit.
        lenient: The nodes that may end without a result.
    """
    reached = _reached(links, [entry])
    before: dict[str, list[str]] = {name: [] for name in reached}
    for name in links:
        if name in reached:
            for following in links[name].next:
                before[following].append(name)
    order = _in_order(links, entry, before)
    mapped = {source for name in order[1:] for source in (links[name].map or ())}
    index = {name: i for i, name in enumerate(links)}
    steps = tuple(
        Step(
            name,
            index[name],
            schedulers[name],
            links[name],
            tuple(before[name]),
            links[name].next,
            _is_copied(links, name, is_mapped=name in mapped),
            timeouts_ms.get(name),
            frozenset(_reached(links, [name])) if links[name].reposts else frozenset(),
        )
        for name in order
    )
    plain = all(step.is_plain and step.name not in lenient for step in steps)
    is_chain = plain and all(len(step.after) <= 1 and not step.copied for step in steps)
    is_chain = is_chain and all(step.links.map is None for step in steps[1:])
    return Route(
        steps,
        tuple(schedulers[name] for name in _parallel(links, entry)),
        is_chain,
        _hops(steps) if plain else None,
    )


def _is_copied(links: Mapping[str, Links], name: str, *, is_mapped: bool) -> bool:
    following = [links[one] for one in links[name].next]
    # An `or` that is passed by stands for its predecessor, whatever its map says.
    takes_dict = any(one.map is None or one.otherwise for one in following)
    return takes_dict and (len(following) > 1 or is_mapped)


def _hops(steps: Sequence[Step]) -> tuple[Hop, ...]:
    by_name = {step.name: step for step in steps}
    hops = []
    for step in steps[1:]:
        source = None if step.links.map is not None else step.before[0]
        copies = source is not None and by_name[source].copied
        pairs = tuple(
            (name, key, target)
            for name, keys in (step.links.map or {}).items()
            for key, target in keys
            if name in by_name
        )
        hops.append(Hop(step.name, step.scheduler, source, copies, pairs, step))
    return tuple(hops)


def _parallel(links: Mapping[str, Links], entry: str) -> list[str]:
    """Give the nodes that may run beside another one, wherever a request from ``entry`` comes."""
    all_reached = _reached(links, [entry], reposts=True)
    found: set[str] = set()
    for name in all_reached:
        if len(links[name].next) > 1:
            branches = [_reached(links, [following]) for following in links[name].next]
            common = branches[0].intersection(*branches[1:])
            found.update(one for branch in branches for one in branch - common)
    return [name for name in links if name in found]


def roots(links: Mapping[str, Links]) -> tuple[str, ...]:
    """Give the nodes at which a request may begin that names none: nothing leads there.

    What leads to a node is another one before it, a `Repost`, or an expression that calls it. Of
    several nodes that lead to each other in a cycle, by `Repost`, the first in the file is one.
    """
    following = {name for one in links.values() for name in one.next}
    found: list[str] = []
    candidates = [name for name in links if name not in following]
    reached = {name: _reached(links, [name], reposts=True, calls=True) for name in candidates}
    for name in candidates:
        leads = [other for other in candidates if other != name and name in reached[other]]
        # One of a cycle that stands later in the file is led to by the first.
        if not any(other not in reached[name] or other in found for other in leads):
            found.append(name)
    return tuple(found)


def _reached(
    links: Mapping[str, Links], start: Iterable[str], *, reposts: bool = False, calls: bool = False
) -> set[str]:
    """Give the nodes reached from some, these included."""
    start = list(start)
    found, todo = set(start), list(start)
    while todo:
        name = todo.pop()
        one = links[name]
        ways = [*one.next, *(one.reposts if reposts else ())]
        if calls and not (one.door_to and name in start):
            ways += one.calls
        for following in ways:
            if following in links and following not in found:
                found.add(following)
                todo.append(following)
    return found


def _in_order(links: Mapping[str, Links], entry: str, before: Mapping[str, list[str]]) -> list[str]:
    """Give the nodes of a route, each after its predecessors."""
    left = {name: len(found) for name, found in before.items()}
    ready = [entry]
    order: list[str] = []
    while ready:
        name = ready.pop()
        order.append(name)
        for following in reversed(links[name].next):
            left[following] -= 1
            if not left[following]:
                ready.append(following)
    return order
