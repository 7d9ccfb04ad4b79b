"""The part of a pipeline that needs the frames of a source in order: built once per source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import headrace

if TYPE_CHECKING:
    from headrace_vision.frames import Frame
    from headrace_vision.options import SourceOptions

__all__ = ["Ordered"]


class Ordered:
    """Runs expressions on the results of a source, one behind the other.

    Args:
        stages: Expressions, or configurations. None for nothing.

    Raises:
        ConfigError: One is wrong.
    """

    def __init__(self, *stages: str | Mapping[str, Any] | headrace.PipelineConfig | None) -> None:
        self._configs = [_config_of(stage) for stage in stages if stage is not None]
        self._pipes: list[headrace.Pipeline] = []

    def extended(self, options: SourceOptions) -> Ordered:
        """Return what runs for a source, with its own instances: its ``ordered`` in place of this one, then its lines and zones.

        Raises:
            ConfigError: One of them is wrong.
        """
        own = self._configs if options.ordered is None else [options.ordered]
        lines = _counting("CountLine", "line", options.lines)
        zones = _counting("CountZone", "zone", options.zones)
        return Ordered(*own, *lines, *zones)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self._configs

    def run(self, frame: Frame) -> None:
        """Write the final result, or the error, into a frame that the pipeline has answered.

        A frame that has failed passes by: what is ordered does not see it.
        """
        if self.is_empty or frame.error is not None:
            return
        request = dict(frame.request)
        try:
            if not self._pipes:
                self._pipes = _built(self._configs)
            for pipe in self._pipes:
                request["data"] = request.pop("result")
                pipe(request)
        except Exception as error:  # noqa: BLE001 - the outcome of this frame
            frame.result, frame.error = None, error
        else:
            frame.result, frame.request = request["result"], request

    def close(self) -> None:
        """Close what was built."""
        _close(self._pipes)
        self._pipes = []


def _counting(word: str, key: str, table: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return what counts at each of a table of lines or zones: its points, or a table of options of the word."""
    return [
        {"backend": word, "name": name}
        | (dict(entry) if isinstance(entry, Mapping) else {key: list(entry)})
        for name, entry in (table or {}).items()
    ]


def _config_of(stage: str | Mapping[str, Any] | headrace.PipelineConfig) -> headrace.PipelineConfig:
    if isinstance(stage, headrace.PipelineConfig):
        return stage
    table = {"backend": stage} if isinstance(stage, str) else dict(stage)
    return headrace.PipelineConfig.load(table)


def _built(configs: list[headrace.PipelineConfig]) -> list[headrace.Pipeline]:
    """Build all, or none."""
    pipes: list[headrace.Pipeline] = []
    try:
        pipes.extend(headrace.pipe(config) for config in configs)
    except BaseException:
        _close(pipes)
        raise
    return pipes


def _close(pipes: list[headrace.Pipeline]) -> None:
    for pipe in pipes:
        pipe.close(timeout=2.0)
