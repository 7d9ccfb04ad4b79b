"""The ways of a batch through a tree of elements.

What it passes first and last, what is called, and in which thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._language.plan.word import way_to_called, word_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._language.plan.element import Element
    from headrace._language.plan.nodes import NodePlan


def way_through(root: Element, place: int, *, threads: bool = True) -> Iterator[Element]:
    """Return the elements that a whole batch passes first (``place`` 0) or last (-1).

    The way ends at a name, with ``threads`` False also at the first element inside that has a
    thread of its own.
    """
    element = root
    while True:
        yield element
        if element.named is not None or not (threads or element is root or not element.own_thread):
            return
        word, children = word_of(element.cls), element.children
        if word._wiring or word._in_turn or (threads and word._threaded):
            element = children[place if word._in_turn else -1]
        else:
            return  # what runs something of its own before or after its children


def edges(root: Element) -> list[Element]:
    """Return the elements of an expression that give items their outcome there.

    The outermost, the last of an S, ...
    """
    *_, last = way = [*way_through(root, -1)]
    if last.cls.bracket.divides and last.named is None:
        way += [edge for child in last.children for edge in edges(child)]
    return [element for element in way if element.named is None]


# Elements that own a thread.


def give_thread(root: Element) -> None:
    """Put a thread around an expression if a backend in it owns one, and has none yet."""
    root._settle(own_thread=root.own_thread or _needs_thread(root))


def called_in_other_threads(root: Element) -> Iterator[Element]:
    """Find the names inside a thread that stand for instances outside of it which own theirs."""
    for thread in (element for element in root.walk() if word_of(element.cls)._threaded):
        inside = [*thread.walk()]
        ids = set(map(id, inside))
        for element in inside:  # and what it names
            target = element._referent
            if target is None or id(target) in ids:
                continue
            ids.add(id(target))
            inside += target.walk()
            if _needs_thread(target):
                yield element


def _needs_thread(root: Element) -> bool:
    """Tell whether a backend that owns a thread runs in the thread that runs ``root``."""
    inside = root.walk(lambda element: _runs_here(element) and not element.cls.builds_elsewhere)
    return any(
        element.owns_thread and element.named is None and _runs_here(element) for element in inside
    )


def _runs_here(element: Element) -> bool:
    return not (element.own_thread or word_of(element.cls)._threaded)


def owns_thread(node: NodePlan) -> bool:
    """Tell whether the instances of a node have a thread of their own."""
    return not all(map(_runs_here, way_to_called(node.tree)))
