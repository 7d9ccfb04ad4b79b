"""How the ranges of children make the range of a container; the same at check and at build."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from headrace._backend import Backend

__all__ = ["Range", "Ranged", "branches", "inside", "ranged", "sequence"]

Range = tuple[int, "int | None"]


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


def sequence(ranges: Sequence[Ranged]) -> Range:
    """Give the range of elements that run one after the other.

    Elements whose max is 1 are run item by item and do not count, unless all are: else the largest
    min and the smallest max.

    Raises:
        ValueError: The range is empty, and the text names the two elements; or an element that a
            condition leaves a part of a batch has a min above 1.
    """
    _refuse_min([one for one in ranges if one.conditional])
    counted = [(one.name, one.range) for one in ranges if one.range[1] != 1]
    if not counted:
        return (1, 1) if ranges else (1, None)
    low_name, (low, _) = max(counted, key=lambda item: item[1][0])
    bounded = [(name, r[1]) for name, r in counted if r[1] is not None]
    if not bounded:
        return low, None
    high_name, high = min(bounded, key=lambda item: item[1])
    if low > high:
        raise ValueError(f"{low_name} needs at least {low}, {high_name} takes at most {high}")
    return low, high


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
