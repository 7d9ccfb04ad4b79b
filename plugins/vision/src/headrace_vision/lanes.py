"""The models that frames go through, by name: each a pipeline, and what gets its results in order."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import headrace
from headrace_vision.options import check_name
from headrace_vision.ordered import Ordered

__all__ = ["Lane", "VideoModel", "check_model", "open_lanes"]


class SubmitsRequests(Protocol):
    """What takes a request and returns a future of it: a pipeline, or a named model of headrace-models."""

    def submit(self, data: Any) -> Any:
        """Let a request run, and return at once."""


@dataclass(frozen=True)
class VideoModel:
    """One of several models of a `VideoRunner`.

    Attributes:
        pipe: A pipeline, a named model of headrace-models (what serves it at the time gets a frame), or a configuration, of which
            a pipeline is built and closed with the runner.
        ordered: What gets its results in order: an expression or a configuration, built once per source.
    """

    pipe: headrace.Pipeline | SubmitsRequests | Mapping[str, Any] | str | os.PathLike[str]
    ordered: str | Mapping[str, Any] | headrace.PipelineConfig | None = None


@dataclass(frozen=True)
class Lane:
    """A model that is built.

    Attributes:
        pipe: The pipeline, or what stands for it.
        ordered: What gets its results in order.
        own: The pipeline if it was built here.
    """

    pipe: SubmitsRequests
    ordered: Ordered
    own: headrace.Pipeline | None

    def close(self, timeout_s: float) -> None:
        """Close the pipeline, if it was built here."""
        if self.own is not None:
            self.own.close(drain=False, timeout=timeout_s)


def open_lanes(models: Mapping[str, VideoModel]) -> dict[str, Lane]:
    """Build the pipelines of models. All are closed again if one cannot be built.

    Raises:
        HeadraceError: A configuration is wrong, or something cannot be built.
    """
    orders = {name: Ordered(one.ordered) for name, one in models.items()}
    lanes: dict[str, Lane] = {}
    try:
        for name, one in models.items():
            submits = callable(getattr(one.pipe, "submit", None))
            own = None if submits else headrace.pipe(cast("Any", one.pipe))
            lanes[name] = Lane(own or cast("SubmitsRequests", one.pipe), orders[name], own)
    except BaseException:
        for lane in lanes.values():
            lane.close(0.0)
        raise
    return lanes


def check_model(name: str | None, models: Collection[str]) -> str:
    """Return the name of a model. None is the only one.

    Raises:
        ValueError: There is no such model, or there are several and ``name`` is None.
    """
    if name is None:
        if len(models) == 1:
            return next(iter(models))
        raise ValueError(f"there are several models: write model = one of {', '.join(models)}")
    check_name("model", name, models)
    return name
