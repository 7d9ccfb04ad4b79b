"""What cannot stand in a process of its own: it would reach for something outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.words.batching import Batching
from headrace.words.dag import DagDispatcher, Repost
from headrace.words.queues import Queue, QueueUser

if TYPE_CHECKING:
    from headrace._plan.element import Element
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["check_process"]


def check_process(resolver: Resolver, element: Element, scope: Scope) -> bool:
    """Check that all that `Process` holds is inside of it; report what is not."""
    inside = element.children[0].walk() if element.children else []
    own = {id(one) for one in inside}
    for one in inside:
        named = one.named
        outside = named is not None and (named.registered or id(named.element) not in own)
        if outside or issubclass(one.cls, (QueueUser, Queue, DagDispatcher, Repost, Batching)):
            resolver.add(
                "process",
                f"{one.name} cannot stand in {element.name}: it reaches for something of the pipeline, "
                "which another process does not have",
                one.call,
                scope,
            )
            return False
    return True
