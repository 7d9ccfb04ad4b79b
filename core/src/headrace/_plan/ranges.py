"""The range of an element as the classes tell it, and how ranges of children make one of a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._checked import range_problem
from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._plan.element import Element, Range


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


# How the ranges of children make the range of a container; the same at check and at build.


class Ranged(NamedTuple):
    """A child of a container.

    Attributes:
        name: How it is called.
        range: Its range.
        conditional: Whether a condition stands before it, so that a part of a batch may come.
    """

    name: str
    range: Range
    conditional: bool = False


def ranged(
    children: Sequence[Backend],
    prefixes: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (),
) -> list[Ranged]:
    """Give what is known of children that are built, with the prefixes before them."""
    conditional = [bool(positional or named) for positional, named in prefixes]
    conditional += [False] * (len(children) - len(conditional))
    return [
        Ranged(child._label(), (child.min, child.max), condition)
        for child, condition in zip(children, conditional, strict=True)
    ]


def of_built(
    rule: Callable[[Sequence[Ranged]], Range],
    children: Sequence[Backend],
    prefixes: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (),
) -> Range:
    """Give the range of a container by a rule of this module, of children that are built.

    Raises:
        SetupError: The rule refuses what ``init`` of the children made of their ranges.
    """
    try:
        return rule(ranged(children, prefixes))
    except ValueError as error:
        raise SetupError(str(error)) from error


def sequence(ranges: Sequence[Ranged]) -> Range:
    """Give the range of elements that run one after the other.

    Elements whose max is 1 are run item by item and do not count, unless all are: else the largest
    min and the smallest max.

    Raises:
        ValueError: The range is empty, and the text names the two elements; or an element that a
            condition leaves a part of a batch has a min above 1.
    """
    _refuse_min([one for one in ranges if one.conditional])
    counted = [one for one in ranges if one.range[1] != 1]
    if counted:
        return inside(counted)
    return (1, 1) if ranges else (1, None)


def branches(ranges: Sequence[Ranged]) -> Range:
    """Give the range of branches that divide a batch: the smallest max; max 1 goes item by item.

    Raises:
        ValueError: A branch has a min above 1, which a part of a batch need not reach.
    """
    _refuse_min(ranges)
    bounded = [one.range[1] for one in ranges if one.range[1] not in (None, 1)]
    return 1, min(bounded, default=None)


def _refuse_min(ranges: Sequence[Ranged]) -> None:
    for one in ranges:
        least = one.range[0]
        if least > 1:
            raise ValueError(
                f"{one.name} needs at least {least}, and a branch may get a single item"
            )


def inside(ranges: Sequence[Ranged]) -> Range:
    """Give the range of a container that hands its whole batch to each child: what all take.

    Raises:
        ValueError: The range is empty; the text names the two children.
    """
    low_name, (low, _), _ = max(ranges, key=lambda one: one.range[0])
    bounded = [(one.name, one.range[1]) for one in ranges if one.range[1] is not None]
    if not bounded:
        return low, None
    high_name, high = min(bounded, key=lambda item: item[1])
    if low > high:
        raise ValueError(f"{low_name} needs at least {low}, {high_name} takes at most {high}")
    return low, high
