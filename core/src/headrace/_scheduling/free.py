"""The instances of a node that nobody holds, and the lists from which callers take them without a lock."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace._scheduling.instance import SWIFT_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.instance import Instance


IdleList = tuple["deque[Instance]"]
"""Free instances that a caller may take without the lock: they lie in the deque of this tuple, and the
thread that pops an instance owns it."""

IdleLists = tuple[IdleList, IdleList]
"""The idle list of swift backends, for all callers, and that of the others, for the main thread. They
serve one set of instances, and are never used again once others stand in their place."""


def new_idle_lists() -> IdleLists:
    """Make idle lists on which nothing lies."""
    return (deque(),), (deque(),)


class FreeInstances:
    """The part of a node that knows which instances are free. Changed in a `Section` of the node.

    Attributes:
        free: The instances in service that nobody holds, the one that has been free longest first.
            Those on the idle lists are not among them until `collect` has been called.
        idle_lists: Where the free instances are while nobody waits.
        publishes: Whether any may lie there.
    """

    def __init__(self, instances: Sequence[Instance]) -> None:
        self.free = list(instances)
        self.idle_lists = new_idle_lists()
        self.publishes = False

    @property
    def has_idle(self) -> bool:
        """Whether an instance is free, on an idle list or not."""
        swift, other = self.idle_lists
        return bool(self.free or swift[0] or other[0])

    @property
    def idle_count(self) -> int:
        """How many instances are free, on an idle list or not."""
        swift, other = self.idle_lists
        return len(self.free) + len(swift[0]) + len(other[0])

    def collect_one(self) -> bool:
        """See to it that one instance is among the free ones; False where none is idle."""
        for (instances,) in () if self.free else self.idle_lists:
            if instances:
                try:
                    self.free.append(instances.popleft())
                    break
                except IndexError:  # a caller was quicker
                    pass
        return bool(self.free)

    def collect(self, idle_lists: Sequence[IdleList] | None = None) -> None:
        """Take what lies on the idle lists among the free ones."""
        if idle_lists is None:
            (swift,), (other,) = idle_lists = self.idle_lists
            if not (swift or other):
                return
        for (instances,) in idle_lists:
            while instances:
                try:
                    self.free.append(instances.popleft())
                except IndexError:  # a caller was quicker
                    break

    def publish(self) -> None:
        """Let callers take the free instances without the lock, since nobody waits."""
        if self.publishes:
            # All on one idle list, so that they take turns.
            (swift,), (other,) = self.idle_lists
            slow = max([instance.mean_s for instance in self.free], default=0.0) >= SWIFT_S
            (other if slow else swift).extend(self.free)
            self.free.clear()
