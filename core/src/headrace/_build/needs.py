"""Which keys a request must have where it enters, as what was built there says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._build.door import Guarded
from headrace._plan.choosing import label_of
from headrace._plan.reads import OPTIONAL, keys_named
from headrace.keys import DATA
from headrace.words._wiring import Wiring
from headrace.words.background import BackgroundThread
from headrace.words.cat_split import CatSplit
from headrace.words.choice import Fallback, ModelLoader
from headrace.words.conditions import Branches
from headrace.words.loops import Again
from headrace.words.process import Process
from headrace.words.sequential import Sequential

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace._backend import Backend
    from headrace._graph.links import Each
    from headrace._plan.element import Element

__all__ = ["needed_keys", "needed_with_each"]

_ONE_WAY = (Sequential, BackgroundThread, Again, CatSplit)


def needed_keys(root: Element | None, built: Mapping[int, Backend]) -> tuple[str, ...]:
    """Give the keys without which a request is refused on entry.

    That is ``data`` wherever something reads it that is not known to be made inside. Else it is what
    the first backend reads: a model with several inputs reads the keys that are called like them.

    Args:
        root: The expression of an instance; None when it is not known.
        built: What was built from its elements, by their identity.
    """
    found = {DATA} if root is None else _read_first(root, built)
    return (DATA,) if DATA in found else tuple(sorted(found))


def needed_with_each(needs: tuple[str, ...], levels: Sequence[Each]) -> tuple[str, ...]:
    """Give the keys of a request whose elements need ``needs``; ``each`` looks for its list itself."""
    made = {each.target for each in levels}
    return tuple(key for key in needs if key not in made)


def _read_first(element: Element, built: Mapping[int, Backend]) -> set[str]:
    """Give what is read before there is a first ``result``; with ``data`` where that is uncertain."""
    cls, children = element.cls, element.children
    if element.named is not None:
        inner = element.named.element
        known = inner is not None and not element.named.registered and not children
        return _read_first(inner, built) if known and inner is not None else {DATA}
    if issubclass(cls, Wiring):
        return _read_first(children[-1], built) if children else {DATA}
    if issubclass(cls, _ONE_WAY):
        return _read_in_turn(element, built)
    if issubclass(cls, Branches):
        return _read_in_branches(element, built)
    if issubclass(cls, (Fallback, ModelLoader)):
        return _read_first(_chosen(element, built), built)
    backend: Any = built.get(id(element))
    if isinstance(backend, Guarded):
        backend = backend.child
    if backend is None or (children and cls is not Process):  # that knows what is inside of it
        return {DATA}
    return {
        key
        for key in keys_named(backend, element.options, "reads")
        if key == DATA or key not in OPTIONAL
    }


def _read_in_turn(element: Element, built: Mapping[int, Backend]) -> set[str]:
    first, *rest = element.children
    prefixes = element.prefixes or [((), {}) for _ in element.children]
    if any(prefixes[0]):
        return {DATA}  # passed by, an item has its data as result
    for child, (flags, _) in zip(rest, prefixes[1:], strict=True):
        if "or" in flags and DATA in _read_first(child, built):
            return {DATA}  # it runs on the data of an item without a result
    return _read_first(first, built)


def _read_in_branches(element: Element, built: Mapping[int, Backend]) -> set[str]:
    found = [_read_first(child, built) for child in element.children]
    if len(found) < 2 or any(DATA in keys for keys in found):
        return {DATA}
    return set.intersection(*found)


def _chosen(element: Element, built: Mapping[int, Backend]) -> Element:
    label = getattr(built.get(id(element)), "chosen", None)
    calls = element.call.children
    return next(
        (child for child in element.children if label_of(child.call, calls) == label),
        element.children[0],
    )
