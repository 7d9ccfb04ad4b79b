"""Which keys the backends of a node read, and whether the ``map`` before them can bring them.

Only what is certain is reported. A ``map`` makes a dict with exactly the keys it names, ``context``
and ``request_id``; from there on keys are added by what backends say they write. Behind a class
that says nothing of what it writes, and in a branch that may not run, nothing is certain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._graph.links import KEPT
from headrace._plan.calls import doors
from headrace.keys import BOX, COLOR, DATA, RESERVED, RESULT
from headrace.words._wiring import Wiring
from headrace.words.background import BackgroundThread
from headrace.words.cat_split import CatSplit
from headrace.words.choice import Fallback, ModelLoader
from headrace.words.conditions import Branches
from headrace.words.dag import Repost
from headrace.words.loops import Again
from headrace.words.process import Process
from headrace.words.sequential import Sequential

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace._config.problems import Problems
    from headrace._graph.links import Links
    from headrace._plan.element import Element, NodePlan

__all__ = ["OPTIONAL", "check_keys_read", "keys_named"]

OPTIONAL = frozenset(RESERVED) - {COLOR, BOX}
"""Keys that are there, or that a backend does without."""

_ALWAYS = (DATA, RESULT)
"""Keys that every node ends with."""

_Ended = tuple["set[str] | None", "Links | None"]
"""The keys that a node may end with beside what a caller brings, None when that is unknown; and the
node whose ``map`` made the dict they are in, None when it is the caller's."""


def check_keys_read(
    links: Mapping[str, Links],
    nodes: Mapping[str, NodePlan],
    problems: Problems,
    doubts: Problems,
) -> None:
    """Report each key that a node reads, or a ``map`` takes, and that cannot be there.

    Args:
        links: How the nodes are linked.
        nodes: Their plans.
        problems: Where that goes.
        doubts: Where keys go that a ``map`` takes and only the caller could have brought.
    """
    before: dict[str, list[str]] = {name: [] for name in links}
    for one in links.values():
        for name in one.next:
            before[name].append(one.name)
    ended: dict[str, _Ended] = {}
    by_repost = {name for one in links.values() for name in one.reposts}
    for name in _in_order(links, before):
        one = links[name]
        if one.map is not None:
            _check_sources(one, ended, problems, doubts)
        keys: set[str] | None
        mapped: Links | None = None
        if not before[name]:
            keys = set()  # and whatever the caller brings
        elif name in by_repost:
            keys = None
        elif one.map is not None:
            keys = {target for pairs in one.map.values() for _, target in pairs} | {*KEPT}
            mapped = one
        elif len(before[name]) == 1:
            keys, mapped = ended[before[name][0]]
        else:
            keys = None  # a join without a map, which is reported
        reader = _Reader(name, mapped, problems)
        ended[name] = reader.node(one, _plan_of(nodes, name), keys), mapped
        if one.otherwise and len(before[name]) == 1:  # passed by, it stands for the one before
            ended[name] = _either(ended[name], ended[before[name][0]])


def _either(one: _Ended, other: _Ended) -> _Ended:
    """Give what a node may end with that may be passed by."""
    keys = None if one[0] is None or other[0] is None else one[0] | other[0]
    return keys, None if other[1] is None else one[1]


def _check_sources(
    one: Links, ended: Mapping[str, _Ended], problems: Problems, doubts: Problems
) -> None:
    """Report the keys that a ``map`` takes from nodes which do not end with them."""
    for node, pairs in (one.map or {}).items():
        keys, mapped = ended.get(node, (None, None))
        for source, _ in pairs:
            if keys is None or source in keys or source in OPTIONAL:
                continue
            takes = f"the map takes {source!r} from {node!r}, whose backends do not write it"
            near = problems.nearest(source, sorted({*keys, *_ALWAYS}))
            place = one.places["map"]
            if mapped is None:
                only = f"{takes}: it is there only when the caller's request has it"
                doubts.add("map_source", only, suggestion=near, **place)
            else:
                before = f"{takes}, and the map of node {mapped.name!r} does not bring it"
                problems.add("graph", before, suggestion=near, **place)


def _in_order(links: Mapping[str, Links], before: Mapping[str, list[str]]) -> list[str]:
    """Give the nodes, each after its predecessors."""
    left = {name: len(found) for name, found in before.items()}
    ready = [name for name, count in left.items() if not count]
    for name in ready:
        for following in links[name].next:
            left[following] -= 1
            if not left[following]:
                ready.append(following)
    return ready


def _plan_of(nodes: Mapping[str, NodePlan], name: str) -> NodePlan:
    return nodes[doors(nodes, name)[-1]]


class _Reader:
    """Follows the keys through the expression of one node."""

    def __init__(self, name: str, mapped: Links | None, problems: Problems) -> None:
        self.name = name
        self.mapped = mapped
        self.problems = problems
        self.told: set[str] = set()
        self._ways: tuple[tuple[Any, Callable[..., set[str] | None]], ...] = (
            (Wiring, self._word),
            ((Sequential, BackgroundThread, Process, Again), self._in_turn),
            ((Branches, Fallback, ModelLoader), self._branches),
            (CatSplit, self._cat_split),
        )

    def node(self, links: Links, plan: NodePlan, keys: set[str] | None) -> set[str] | None:
        """Give the keys that the dict of a node may have at its end."""
        if keys is None:
            return None
        inside = set(keys)
        for each in links.levels:
            self._needs(each.source, "each", inside)
            inside.add(each.target)
        root = plan.backend
        after = None if root is None else self.run(root, inside, certain=True)
        if links.levels:
            return {*keys, RESULT}
        return after

    def run(self, element: Element, keys: set[str] | None, *, certain: bool) -> set[str] | None:
        """Give the keys after an element; report those that it misses, if it is certain to run."""
        if keys is None:
            return None
        if element.named is not None:
            return self._instance(element, keys, certain=certain)
        for kinds, follow in self._ways:
            if issubclass(element.cls, kinds):
                return follow(element, keys, certain=certain)
        return self._backend(element, keys, certain=certain)

    def _instance(self, element: Element, keys: set[str], *, certain: bool) -> set[str] | None:
        named = element.named
        if named is None or named.registered or named.element is None or element.children:
            return None
        return self.run(named.element, keys, certain=certain)

    def _backend(self, element: Element, keys: set[str], *, certain: bool) -> set[str] | None:
        if certain:
            for key in keys_named(element.cls, element.options, "reads"):
                self._needs(key, element.name, keys)
        if element.children or not _says_what_it_writes(element):
            return None
        return keys | set(keys_named(element.cls, element.options, "writes", optional=True))

    def _word(self, element: Element, keys: set[str], *, certain: bool) -> set[str] | None:
        if element.cls is Repost:
            return None  # the item leaves
        if not element.children:
            return None
        return self.run(element.children[-1], keys, certain=certain)

    def _in_turn(self, element: Element, keys: set[str], *, certain: bool) -> set[str] | None:
        found: set[str] | None = keys
        for child, (flags, named) in zip(element.children, element.prefixes, strict=True):
            found = self.run(child, found, certain=certain and not flags and not named)
        return found

    def _branches(self, element: Element, keys: set[str], *, certain: bool) -> set[str] | None:
        only = len(element.children) == 1 and not issubclass(element.cls, Branches)
        found: set[str] = {*keys, RESULT}
        for child in element.children:
            after = self.run(child, set(keys), certain=certain and only)
            if after is None:
                return None
            found |= after
        return found

    def _cat_split(self, element: Element, keys: set[str], *, certain: bool) -> set[str] | None:
        cat, _, split = element.children
        after = self.run(cat, keys, certain=certain)
        return self.run(split, after, certain=certain)

    def _needs(self, key: str, reader: str, keys: set[str]) -> None:
        if key in keys or key in OPTIONAL or key in self.told or self.mapped is None:
            return
        self.told.add(key)
        sources = list(self.mapped.map or ())
        own = self.mapped.name == self.name
        self.problems.add(
            "graph",
            f"{reader} of node {self.name!r} reads {key!r}, and the map "
            f"{'before it' if own else f'of node {self.mapped.name!r} before it'} does not bring it",
            hint=f"Name it there, from a node that ends with it: {sources[0]}[{key}:{key}].",
            **self.mapped.places["map"],
        )


def _says_what_it_writes(element: Element) -> bool:
    """Tell whether ``writes`` of a class can be relied on: stated, or that of an installed plugin."""
    stated = any("writes" in vars(cls) for cls in element.cls.__mro__ if cls is not Backend)
    return stated or bool(element.spec.path)


def keys_named(
    backend: type[Backend] | Backend, options: Any, what: str, *, optional: bool = False
) -> Iterable[str]:
    """Give the keys that a backend names in ``reads`` or ``writes``.

    Args:
        backend: The class, or an instance, whose `init` may have named others.
        options: Its checked options, in which ``{option}`` is looked up; None for none.
        what: ``"reads"`` or ``"writes"``.
        optional: Whether the optional keys of a TypedDict count.
    """
    named: Any = getattr(backend, what)
    if isinstance(named, str):
        named = (named,)
    if isinstance(named, type):
        return _typed_keys(named, optional=optional)
    found: list[str] = []
    for key in named:
        if not (key.startswith("{") and key.endswith("}")):
            found.append(key)
            continue
        value: Any = getattr(options, key[1:-1], None)
        if isinstance(value, dict):
            value = list(value.values())
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        found += [one for one in values if isinstance(one, str)]
    return found


def _typed_keys(named: type, *, optional: bool) -> list[str]:
    """Give the keys of a TypedDict; those that may be missing only if ``optional``."""
    required: Iterable[str] = getattr(named, "__required_keys__", ())
    every = list(getattr(named, "__annotations__", {}))
    if optional:
        return [*dict.fromkeys([*every, *required, *getattr(named, "__optional_keys__", ())])]
    return [key for key in required if not _may_be_missing(named, key)]


def _may_be_missing(named: type, key: str) -> bool:
    """Tell whether an annotation that is still text says ``NotRequired``."""
    for cls in (named, *getattr(named, "__orig_bases__", ())):
        annotation = getattr(cls, "__annotations__", {}).get(key)
        text = getattr(annotation, "__forward_arg__", annotation)
        if isinstance(text, str) and "NotRequired" in text:
            return True
    return False
