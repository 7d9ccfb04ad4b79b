"""The part of a pipeline that needs the frames of a source in order: built once per source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import headrace

if TYPE_CHECKING:
    from headrace_vision.source import Flight, Source

__all__ = ["Ordered"]


class Ordered:
    """Runs an expression on the results of each source, with its own instances per source.

    Args:
        expression: An expression, or a configuration; None for nothing.

    Raises:
        ConfigError: It is wrong.
    """

    def __init__(
        self, expression: str | Mapping[str, Any] | headrace.PipelineConfig | None
    ) -> None:
        self._config: headrace.PipelineConfig | None = None
        if isinstance(expression, headrace.PipelineConfig):
            self._config = expression
        elif expression is not None:
            source = {"backend": expression} if isinstance(expression, str) else dict(expression)
            self._config = headrace.PipelineConfig.load(source)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return self._config is None

    def run(self, source: Source, flight: Flight) -> None:
        """Write the final result, or the error, of a flight that the pipeline has answered.

        A frame that has failed passes by: what is ordered does not see it.
        """
        frame = flight.frame
        if self._config is None or frame.error is not None:
            return
        request = dict(flight.request)
        request["data"] = request.pop("result")
        try:
            if source.ordered is None:
                source.ordered = headrace.pipe(self._config)
            source.ordered(request)
        except Exception as error:  # noqa: BLE001 - the outcome of this frame
            frame.result, frame.error = None, error
        else:
            frame.result, frame.request = request["result"], request

    def close(self, source: Source) -> None:
        """Close what was built for a source."""
        pipe, source.ordered = source.ordered, None
        if pipe is not None:
            pipe.close(timeout=2.0)
