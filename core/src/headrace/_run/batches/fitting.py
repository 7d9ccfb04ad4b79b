"""Which weights a batch may have on an instance, and the copies of its items that fill it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._run.contract.checked import filler
from headrace.errors import BatchRangeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._run.batches.instance import Instance
    from headrace._run.contract.checked import Checked
    from headrace._run.requests.entry import Entry
    from headrace.keys import Request


def refusal(node: str, weights: Sequence[int], instance: Instance) -> BatchRangeError | None:
    """Return the error of a batch that an instance does not take, even with copies; else None."""
    weight, sizes, pad = sum(weights), instance.limits.batch_sizes, instance.limits.pad
    hint = None
    if instance.max is not None and weight > instance.max:
        problem = f"the batch policy cut a weight of {weight} for a max of {instance.max}"
    elif (weight >= instance.min and (not sizes or weight in sizes)) or (
        pad and indices_to_repeat(weights, instance, sizes) is not None
    ):
        return None
    else:
        allowed = f"the sizes {', '.join(map(str, sizes))}" if sizes else f"a min of {instance.min}"
        copies = ", which no number of copies of its requests gives" if pad else ""
        over = f"the wait for other requests is over with a weight of {weight}"
        problem = f"{over}, and the node has {allowed}{copies}"
        cure = f"Set {'' if pad else 'pad = true, '}a longer batching_timeout"
        hint = f"{cure}, or allow smaller batches. The request itself is right."
    least, most, index = instance.min, instance.max, instance.index
    return BatchRangeError(
        problem, weight=weight, min=least, max=most, node=node, instance=index, hint=hint
    )


def indices_to_repeat(
    weights: Sequence[int], taker: Checked | Instance, sizes: Sequence[int] | None = None
) -> list[int] | None:
    """Return the indices of the items to repeat so that a batch has an allowed weight, or None.

    The last item is repeated as often as it fits. Earlier items fill what is left. Where that gives
    no allowed weight, the same is tried without the last item, and so on.

    Args:
        weights: The weights of the items of the batch.
        taker: Whose ``min`` and ``max`` hold.
        sizes: The weights that are allowed within them. None or empty for all.
    """
    weight, least, most = sum(weights), max(sum(weights), taker.min), taker.max
    places = sorted({weight: place for place, weight in enumerate(weights)}.values())
    # Without sizes: copies of any one item reach one of these weights.
    allowed = sizes or range(least, least + max(weights))
    for size in (size for size in allowed if least <= size and (most is None or size <= most)):
        for end in range(len(places), 0, -1):
            repeated, missing = [], size - weight
            for item in reversed(places[:end]):
                times, missing = divmod(missing, weights[item])
                repeated += [item] * times
            if not missing:
                return repeated
    return None


def copies(instance: Instance, entries: Sequence[Entry]) -> list[Request]:
    """Return copies of items that fill a batch up."""
    weights = [entry.weight for entry in entries]
    items = indices_to_repeat(weights, instance, instance.limits.batch_sizes) or ()
    return [filler(entries[item].request) for item in items]
