"""`Budget`: batches whose cost, as a sum or as a padded area, stays within a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from headrace.errors import LimitError
from headrace.policies import Cut, Greedy, InstanceView, Queue
from headrace_flow.policies.picking import PickingPolicy, closes, number_of, value_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.policies import Waiting

__all__ = ["Budget"]


class Budget(PickingPolicy):
    """Form batches within a budget: of tokens, of pixels, or of any other cost.

    The first request is in the batch. Others of the first 256 join it if they fit. With ``area = "sum"`` they join in
    their order, and the costs add up to at most ``most``. With ``area = "padded"`` the nearest in cost join first, and
    the greatest cost times the rows of the batch is at most ``most``, as if rows were padded to the longest. With
    ``spread`` only requests of nearly the same cost join, as in `Alike`, and the first one is never overtaken. A request
    above ``most`` is refused on arrival with a LimitError. A request queued again by its backend, as by `Iterate` after
    each step, counts with its present cost. If it has outgrown ``most`` it runs alone.

    While another instance runs, a batch that takes all requests waits ``batching_timeout`` for more, as with ``greedy``.

    Example:
        ``batch_policy = "Budget(cost=tokens, most=4096, area=padded)"``
    """

    class Options(Greedy.Options):
        """Keys of the node for the policy.

        Attributes:
            cost: The key of a request with its cost, a number. Where a request has no `length`, it is that of `data`.
            most: The most that a batch may cost.
            area: What a batch costs: the sum of its costs, or its rows times the greatest.
            spread: The most that (greatest - least) / greatest of the costs may be in a batch; 1: any.
        """

        cost: str = Field("tokens", min_length=1)
        most: float = Field(gt=0)
        area: Literal["sum", "padded"] = "sum"
        spread: float = Field(1.0, ge=0, le=1)

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self._cost: str = self.options.cost
        self._budget: float = self.options.most
        self._spread: float = self.options.spread
        self._padded: bool = self.options.area == "padded"

    def trait(self, request: Any) -> float:
        """Return the cost of a request.

        Raises:
            InputError: The request does not have the key, or no number there.
            LimitError: It alone costs more than a batch may.
        """
        cost = self.trait_again(request)
        rows = request.get("request_size", 1) if self._padded else 1
        if cost * rows > self._budget:
            each = f"{rows} rows of {cost:g}" if rows != 1 else f"{cost:g}"
            text = f"a request of {each} in {self._cost!r} is above the {self._budget:g} that a batch may cost"
            hint = "Send less at once, or raise `most` of the batch policy."
            raise LimitError(text, limit=int(self._budget), hint=hint)
        return cost

    def trait_again(self, request: Any) -> float:
        """Return the cost of a request now, also where it has outgrown the budget: then it runs alone.

        Raises:
            InputError: The request does not have the key, or no number there.
        """
        return number_of(value_of(request, self._cost), self._cost)

    def cut(self, queue: Queue, instance: InstanceView, now: float) -> Cut:
        """Form a batch. See `headrace.policies.BatchPolicy.cut`."""
        most = self._most(instance)
        window = [queue[place] for place in range(len(queue))]
        if window[0].weight > most:
            return Cut(0)
        places, weight, full = self._fitting(window, instance, most)
        if not full and weight < most and self._linger_s:
            waits = self._lingers(queue, now, most)
            if waits is not None:
                return waits
            over_at = self._over_at(queue)
            short = weight < self._least(instance) and not self._pad
            if short and now < over_at and not closes(queue):
                return Cut(0, over_at)
        taken = self._sized(window, places, weight)
        return Cut(tuple(taken), reason=self._timer(queue, now, full=full or weight >= most))

    def _fitting(
        self, window: Sequence[Waiting], instance: InstanceView, most: float
    ) -> tuple[list[int], int, bool]:
        """Return the places of the batch, its weight, and whether a request was left out."""
        first = window[0]
        others: Sequence[int] = range(1, len(window))
        if self._padded:
            others = sorted(others, key=lambda place: abs(window[place].trait - first.trait))
        places, weight, full = [0], first.weight, False
        total = greatest = least = first.trait
        for place in others:
            entry = window[place]
            heavier = weight + entry.weight
            higher, lower = max(greatest, entry.trait), min(least, entry.trait)
            costs = self._rows(heavier, instance) * higher if self._padded else total + entry.trait
            unlike = higher - lower > self._spread * higher
            if unlike or heavier > most or costs > self._budget:
                full = True
                continue
            places.append(place)
            weight, total = heavier, total + entry.trait
            greatest, least = higher, lower
        return places, weight, full
