"""The backend under test, which is built as a pipeline builds it, and called without a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import headrace
from headrace_testing.conformance.outcome import Broken, ends_the_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace import Backend, PipelineConfig
    from headrace.keys import Request

USUAL_BATCH = 4
"""How many requests a batch has, where the range allows so many."""

MOST = 1024
"""The heaviest batch that is tried with a backend that takes heavier ones."""

_UNBOUNDED = 64
"""The heaviest batch that is tried with a backend without a ``max``, unless its node has one."""

_EACH = 16
"""Every weight up to this one is tried, and above it each power of two."""


def weight_of(batch: Sequence[Request]) -> int:
    """Return the weight of a batch: the sum of ``request_size``, 1 where an item has none."""
    return sum(request.get("request_size", 1) for request in batch)


class Live:
    """The backend, built.

    Args:
        config: A configuration of one node.
        limit: The key ``max`` of the node, None when it is not set.

    Attributes:
        instances: The backends that a scheduler would call, one per instance.
        root: The backend of the outermost name in the first instance. Another one may wrap it.
    """

    def __init__(self, config: PipelineConfig, limit: int | None = None) -> None:
        self._built = headrace.plugins.build(config)
        self._asked = limit
        self.instances: list[Backend] = self._built.instances
        self.root: Backend = self._built.root

    @property
    def backend(self) -> Backend:
        """The first instance."""
        return self.instances[0]

    @property
    def range(self) -> tuple[int, int | None]:
        """The least and the greatest weight; None for unbounded."""
        return self.backend.min, self.backend.max

    @property
    def weights(self) -> list[int]:
        """The weights of the batches that are tried: all up to 16, then powers of two, and the largest."""
        least, most = self.range
        largest = max(least, min(MOST, max(_UNBOUNDED, self._asked or 1) if most is None else most))
        powers = (1 << n for n in range(largest.bit_length()))
        tried = {least, largest, *range(least, min(largest, _EACH) + 1), *powers}
        return sorted(weight for weight in tried if least <= weight)

    def close(self) -> list[BaseException]:
        """Close all that was built, newest first; give the errors. A second call does nothing."""
        try:
            return list(self._built.close())
        except BaseException as error:
            if ends_the_run(error):
                raise
            return [error]  # SystemExit of a backend, say: it must not end the kit

    def call(self, batch: list[Request], index: int = 0) -> list[Exception | None]:
        """Call an instance; give an exception or None per item."""
        return self._built.call(batch, index)

    def results(self, batch: list[Request], index: int = 0) -> list[Any]:
        """Call an instance with valid requests. Give their results.

        Raises:
            Broken: A request failed, or has no result.
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
        """Return the smallest batch that begins with a request; ``pad`` would add the same shallow copies."""
        batch = [request]
        while self.backend.max != 1 and weight_of(batch) < self.backend.min:
            batch.append(dict(request))
        return batch

    def alone(self, request: Request, index: int = 0) -> Exception | None:
        """Call an instance with one request, filled up to its min; give the outcome of the request."""
        return self.call(self.filled(request), index)[0]

    def result_alone(self, request: Request, index: int = 0) -> Any:
        """Give the result of one request."""
        return self.results(self.filled(request), index)[0]

    def take(self, item: Callable[[int], Request], want: int = USUAL_BATCH) -> list[Request]:
        """Make a batch of up to ``want`` requests, or of as many as the min asks for."""
        least, most = self.range
        batch: list[Request] = []
        weight = 0
        while len(batch) < want or weight < least:
            request = item(len(batch))
            more = request.get("request_size", 1)
            full = len(batch) if most == 1 else weight + more - 1
            if batch and most is not None and full >= most:
                break
            batch.append(request)
            weight += more
        return batch
