"""The probe ``Times`` tells each caller that asks how long its request waited and ran in each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.hookspecs import BatchRecord

__all__ = ["Times"]


class Times:
    """The probe that fills the list of a caller: ``pipe({"data": x, "context": {"times": []}})``.

    For each batch that has run the request, whatever its outcome, the list gets ``{"node", "instance", "size", "reason",
    "waited_ms", "ran_ms"}``, in the order in which the batches ended: how many requests were in it, why it was formed, the time
    from the arrival at the node to the begin of the batch, and that of the batch.
    """

    @staticmethod
    def batch_ran(record: BatchRecord) -> None:
        """Tell those that ask; a hook of probes."""
        for entry in record.requests:
            context = entry.request.get("context")
            times = context.get("times") if isinstance(context, Mapping) else None
            if type(times) is list:
                times.append(
                    {
                        "node": record.node,
                        "instance": record.instance,
                        "size": len(record.requests),
                        "reason": record.reason,
                        "waited_ms": 1000 * (record.started - entry.arrival),
                        "ran_ms": 1000 * (record.ended - record.started),
                    }
                )
