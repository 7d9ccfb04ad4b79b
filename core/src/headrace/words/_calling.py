"""How a container calls a child with the items that are still alive, within the child's range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._scheduling.batch import Filler
from headrace._weights import weight_of
from headrace.errors import BatchRangeError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace.keys import Request


class Caller:
    """Calls one child: item by item where its max is 1, filled up or refused below its min."""

    __slots__ = ("child", "pad")

    def __init__(self, child: Backend, *, pad: bool) -> None:
        self.child = child
        self.pad = pad

    def __call__(self, batch: list[Request]) -> list[Exception | None] | None:
        """Give one outcome per item, None when all went well."""
        child = self.child
        if child.max == 1:
            if len(batch) == 1:
                return child(batch)
            outcomes = [child([request]) for request in batch]
            if not any(outcomes):
                return None
            return [None if outcome is None else outcome[0] for outcome in outcomes]
        if child.min > 1:
            weight = weight_of(batch)
            if weight < child.min:
                return self._too_few(batch, weight)
        return child(batch)

    def _too_few(self, batch: list[Request], weight: int) -> list[Exception | None] | None:
        child = self.child
        if not self.pad:
            what = (
                f"only a weight of {weight} is left for {child._label()}, whose min is {child.min}: "
                "the other items of the batch failed or went another way"
            )
            return [
                BatchRangeError(
                    what,
                    weight=weight,
                    min=child.min,
                    max=child.max,
                    node=child._node,
                    backend=child._label(),
                    instance=child._index,
                    hint="Set pad = true to fill such batches up.",
                )
                for _ in batch
            ]
        filled = list(batch)
        step = batch[-1].get("request_size", 1)
        while weight < child.min:
            copy = Filler(batch[-1])
            copy.pop("result", None)
            filled.append(copy)
            weight += step
        outcomes = child(filled)
        return None if outcomes is None else outcomes[: len(batch)]


def caller_of(child: Backend, *, pad: bool) -> Backend | Caller:
    """Give what calls ``child``: itself where its range needs no care."""
    return Caller(child, pad=pad) if child.max == 1 or child.min > 1 else child
