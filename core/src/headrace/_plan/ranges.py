"""The range of an element as the classes tell it, before any ``init``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace._plan.element import Element, Range

__all__ = ["static_range"]


def static_range(element: Element) -> Range:
    """Give the range of an element whose children have theirs.

    Raises:
        ValueError: It is empty, or a branch of a container asks for more than one item.
    """
    if element.named is not None:
        return element.range
    combine = getattr(element.cls, "combine_ranges", None)
    if combine is not None and element.children:
        named = [(child.name, child.range) for child in element.children]
        result: Range = combine(named)
        return result
    return element.cls.min, element.cls.max
