"""The configuration: read, merged, checked as a whole, before anything is built."""

from headrace._config.pipeline_config import PipelineConfig

__all__ = ["PipelineConfig"]
