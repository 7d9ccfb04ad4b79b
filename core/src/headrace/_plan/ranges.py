"""The range of an element as the classes tell it, before any ``init``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._weights import range_problem
from headrace.words._ranges import Ranged, inside

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._plan.element import Element, Range

__all__ = ["depending_range", "narrowed", "static_range"]


def static_range(element: Element) -> Range:
    """Give the range of an element whose children have theirs.

    Raises:
        ValueError: It is empty, a branch of a container asks for more than one item, or the class
            states what is no range.
    """
    if element.named is not None:
        return element.range
    cls = element.cls
    problem = range_problem(cls.min, cls.max)
    if problem is not None:
        raise ValueError(f"the class {cls.__name__} is wrong, {problem}")
    conditional = [bool(positional or named) for positional, named in element.prefixes]
    conditional += [False] * (len(element.children) - len(conditional))
    children = [
        Ranged(child.name, child.range, condition)
        for child, condition in zip(element.children, conditional, strict=False)
    ]
    combine = getattr(cls, "combine_ranges", None)
    if combine is not None and children:
        result: Range = combine(children)
        return result
    if children and not states_range(cls):
        return inside(children)
    return cls.min, cls.max


def depending_range(cls: type[Backend], dependency: Range) -> Range:
    """Give the range of an instance that is called with a dependency."""
    return (cls.min, cls.max) if states_range(cls) else dependency


def states_range(cls: type[Backend]) -> bool:
    """Tell whether a class says what its range is; else it is that of what is inside."""
    return cls.min != 1 or cls.max is not None


def narrowed(found: Range, keys: NodeKeys) -> Range:
    """Give the range of a node: its keys narrow what the classes tell; 1 if neither says a max."""
    low, high = found
    least, most, sizes = keys.min, keys.max, keys.batch_sizes
    if sizes:
        least = sizes[0] if least is None else least
        most = sizes[-1] if most is None else most
    low = max(low, least or 1)
    if most is not None:
        high = most if high is None else min(high, most)
    return low, max(1, low) if high is None else high
