"""From a configuration to a pipeline that runs: the one place that knows both wings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._backend import no_progress, showing_progress
from headrace._build.compose import compose
from headrace._pipeline import Pipeline
from headrace._pipeline_config import PipelineConfig
from headrace._portable import without_inner_frames
from headrace.errors import ConfigError, PluginError, SetupError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from headrace._backend import ProgressFactory


def pipe(
    source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig,
    *,
    allow_import: bool = True,
    progress: ProgressFactory = no_progress,
) -> Pipeline:
    """Build a pipeline; it is warm and accepts requests when this returns.

    Args:
        source: A dict, the path of a TOML file (a text is always a path), or a configuration.
        allow_import: Whether the code under ``import`` may run.
        progress: Shows long work in ``init``: ``progress(total, unit)`` gives a context manager for
            one piece of work, which yields a function that is called with the number of ``unit``
            done since its last call; ``total`` may be None. Pieces may overlap. Default: silent.

    Raises:
        ConfigError: The configuration is wrong; nothing was built.
        SetupError: A backend could not be built; what was built is closed again.
        PluginError: A plugin or a library is missing.
    """
    try:
        with showing_progress(progress):
            return Pipeline(compose(PipelineConfig.load(source, allow_import=allow_import)))
    except (ConfigError, PluginError, SetupError) as error:
        raise without_inner_frames(error) from error.__cause__
