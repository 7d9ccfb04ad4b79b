"""How the ranges of children make the range of a container; the same at check and at build."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Range", "branches", "inside", "sequence"]

Range = tuple[int, "int | None"]


def sequence(ranges: Sequence[tuple[str, Range]]) -> Range:
    """Give the range of elements that run one after the other.

    Elements whose max is 1 are run item by item and do not count, unless all are: else the largest
    min and the smallest max.

    Raises:
        ValueError: The range is empty; the text names the two elements.
    """
    counted = [(name, r) for name, r in ranges if r[1] != 1]
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


def branches(ranges: Sequence[tuple[str, Range]]) -> Range:
    """Give the range of branches that divide a batch: the smallest max; max 1 goes item by item.

    Raises:
        ValueError: A branch has a min above 1, which a part of a batch need not reach.
    """
    for name, (low, _) in ranges:
        if low > 1:
            raise ValueError(f"{name} needs at least {low}, and a branch may get a single item")
    bounded = [high for _, (_, high) in ranges if high not in (None, 1)]
    return 1, min(bounded, default=None)


def inside(ranges: Sequence[tuple[str, Range]]) -> Range:
    """Give the range of a container that hands its whole batch to each child: what all take.

    Raises:
        ValueError: The range is empty; the text names the two children.
    """
    low_name, (low, _) = max(ranges, key=lambda item: item[1][0])
    bounded = [(name, high) for name, (_, high) in ranges if high is not None]
    if not bounded:
        return low, None
    high_name, high = min(bounded, key=lambda item: item[1])
    if low > high:
        raise ValueError(f"{low_name} needs at least {low}, {high_name} takes at most {high}")
    return low, high
