"""Which elements get a thread of their own, because a backend in them asks for one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._plan.brackets import owns_its_thread
from headrace.words._wiring import Wiring
from headrace.words.batching import Batching

if TYPE_CHECKING:
    from headrace._plan.element import Element

__all__ = ["give_threads", "needs_thread"]


def needs_thread(element: Element) -> bool:
    """Tell whether a backend below owns its thread and stands in no thread or process of its own."""
    todo = [element]
    while todo:
        one = todo.pop()
        if one.named is not None and not one.children:
            continue
        if one.own_thread or owns_its_thread(one.cls):
            continue
        if one.cls.owns_thread:
            return True
        todo += one.children
    return False


def give_threads(root: Element) -> None:
    """Put a thread around what needs one and stands in no ``Reflect`` of an instance."""
    todo = [root]
    while todo:
        element = todo.pop()
        if element.own_thread or owns_its_thread(element.cls):
            continue
        if issubclass(element.cls, Wiring) or element.cls is Batching:
            todo += element.children
        elif needs_thread(element):
            element.own_thread = True
