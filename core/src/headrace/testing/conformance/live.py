"""The backend under test, built as a pipeline builds it, and called directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._weights import weight_of
from headrace.testing.conformance.rule import Broken

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import Backend
    from headrace._plan.element import Element, PipelinePlan
    from headrace.keys import Request

__all__ = ["MOST", "NODE", "USUAL_BATCH", "Live"]

USUAL_BATCH = 4
"""How many requests a batch has where the range allows it."""

MOST = 1024
"""The heaviest batch that is tried of a backend that takes heavier ones."""

NODE = "main"

_UNBOUNDED = 64
"""The heaviest batch that is tried of a backend without a ``max``, where its node asks for none."""

_EACH = 16
"""Every weight up to here is tried, and above it each power of two."""


class Live:
    """The backend, built.

    Attributes:
        instances: What a scheduler would call, one per instance.
        root: The object of the outermost name, of the first instance; it may be inside the former.
    """

    def __init__(self, plan: PipelinePlan) -> None:
        from headrace._build import build_pipeline

        self._built = build_pipeline(plan)
        self.plan = plan
        node = self._built.nodes[NODE]
        self.instances: list[Backend] = [i.backend for i in node.scheduler.instances]
        self._threads = [i.thread for i in node.scheduler.instances]
        self.root: Backend = self.object_of(plan.nodes[NODE].backend) or self.instances[0]

    def object_of(self, element: Element | None) -> Backend | None:
        """Give what was built from an element in the first instance."""
        return self._built.nodes[NODE].by_element.get(id(element))

    @property
    def backend(self) -> Backend:
        """The first instance."""
        return self.instances[0]

    @property
    def range(self) -> tuple[int, int | None]:
        """Least and greatest weight; None for unbounded."""
        return self.backend.min, self.backend.max

    @property
    def weights(self) -> list[int]:
        """The weights of the batches that are tried: all up to 16, powers of two, the largest."""
        least, most = self.range
        asked = self.plan.nodes[NODE].keys.max  # beside the expression
        largest = max(least, min(MOST, max(_UNBOUNDED, asked or 1) if most is None else most))
        powers = (1 << n for n in range(largest.bit_length()))
        tried = {least, largest, *range(least, min(largest, _EACH) + 1), *powers}
        return sorted(weight for weight in tried if least <= weight)

    def close(self) -> list[Exception]:
        """Close all that was built, newest first; give the errors."""
        built = self._built
        errors = built.front_parts.close()
        for node in reversed(built.nodes.values()):
            for parts in reversed(node.instances):
                errors += parts.close()
            node.scheduler.stop_runners()
            errors += node.parts.close()
        return errors

    def call(self, batch: list[Request], index: int = 0) -> list[Exception | None]:
        """Call an instance; give an exception or None per item."""
        backend, thread = self.instances[index], self._threads[index]
        outcomes = backend(batch) if thread is None else thread.call(backend, batch)
        return [None] * len(batch) if outcomes is None else list(outcomes)

    def results(self, batch: list[Request], index: int = 0) -> list[Any]:
        """Call an instance with requests that are right; give their results.

        Raises:
            Broken: One failed, or has no result.
        """
        outcomes = self.call(batch, index)
        for place, (request, outcome) in enumerate(zip(batch, outcomes, strict=True)):
            if outcome is not None:
                raise Broken(
                    f"item {place} of a batch of {len(batch)} failed: "
                    f"{type(outcome).__name__}: {outcome}"
                ) from outcome
            if "result" not in request:
                raise Broken(f"item {place} of a batch of {len(batch)} got no 'result'")
        return [dict.__getitem__(request, "result") for request in batch]

    def filled(self, request: Request) -> list[Request]:
        """Give the smallest batch that begins with a request: shallow copies are added, as by pad."""
        batch = [request]
        while self.backend.max != 1 and weight_of(batch) < self.backend.min:
            batch.append(dict(request))
        return batch

    def alone(self, request: Request, index: int = 0) -> Exception | None:
        """Call an instance with one request, filled up to its min; give that one's outcome."""
        return self.call(self.filled(request), index)[0]

    def result_alone(self, request: Request, index: int = 0) -> Any:
        """Give the result of one request."""
        return self.results(self.filled(request), index)[0]

    def take(self, item: Callable[[int], Request], want: int = USUAL_BATCH) -> list[Request]:
        """Make a batch of up to ``want`` requests, more where the min asks for them."""
        least, most = self.range
        batch: list[Request] = []
        while len(batch) < want or weight_of(batch) < least:
            request = item(len(batch))
            full = len(batch) if most == 1 else weight_of([*batch, request]) - 1
            if batch and most is not None and full >= most:
                break
            batch.append(request)
        return batch
