"""The models that frames go through, by name: each a pipeline, and what gets its results in order."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import headrace
from headrace_vision.options import check_name
from headrace_vision.pipelines.crop_models import Answer, Asker, CropModel, SubmitsRequests
from headrace_vision.pipelines.gating import MotionGate
from headrace_vision.pipelines.ordered import Ordered

if TYPE_CHECKING:
    from headrace_vision.frames import Frame
    from headrace_vision.options import SourceOptions

__all__ = ["Lane", "SourceLane", "VideoModel", "check_model", "lanes_of", "open_lanes"]


@dataclass(frozen=True)
class VideoModel:
    """One of several models of a `VideoRunner`.

    Attributes:
        pipe: A pipeline, a named model of headrace-models (what serves it at the time gets a frame), or a configuration, of which
            a pipeline is built and closed with the runner.
        ordered: What gets its results in order: an expression or a configuration, built once per source.
        crops: Second models, which get the crops of its detections behind that, by name of the key in ``data`` for what they say.
    """

    pipe: headrace.Pipeline | SubmitsRequests | Mapping[str, Any] | str | os.PathLike[str]
    ordered: str | Mapping[str, Any] | headrace.PipelineConfig | None = None
    crops: Mapping[str, CropModel] = field(default_factory=dict)


class Lane:
    """A model that is built.

    Args:
        model: Its parts.

    Attributes:
        pipe: Its pipeline.
        crops: The pipelines that get crops, by name, each with its `CropModel`.

    Raises:
        HeadraceError: A configuration is wrong, or something cannot be built.
        TypeError: A value of ``crops`` is no CropModel.
    """

    def __init__(self, model: VideoModel) -> None:
        self._own: list[headrace.Pipeline] = []
        self._ordered = Ordered(model.ordered)
        for name, crop in model.crops.items():
            if not isinstance(crop, CropModel):
                raise TypeError(f"crops: {name!r} is a CropModel, not {crop!r}")
        try:
            self.pipe = self._built(model.pipe)
            self.crops = {name: (self._built(own.pipe), own) for name, own in model.crops.items()}
        except BaseException:
            self.close(0.0)
            raise

    def _built(self, pipe: Any) -> Any:
        if callable(getattr(pipe, "submit", None)):
            return pipe
        self._own.append(headrace.pipe(pipe))
        return self._own[-1]

    def for_source(self, options: SourceOptions) -> SourceLane:
        """Return what one source needs of it, with state of its own.

        Raises:
            ConfigError: What the source has in order is wrong.
        """
        askers = [Asker(name, pipe, crop) for name, (pipe, crop) in self.crops.items()]
        pipe = self.pipe if options.gate is None else MotionGate(self.pipe)
        return SourceLane(pipe, self._ordered.extended(options), askers)

    def close(self, timeout_s: float) -> None:
        """Close the pipelines that were built here."""
        for pipe in self._own:
            pipe.close(drain=False, timeout=timeout_s)


@dataclass(frozen=True)
class SourceLane:
    """A model as one source uses it.

    Attributes:
        pipe: The pipeline, or what stands for it, which all sources share, or the gate of this source before it.
        ordered: What gets the results of this source in order.
        askers: What asks second models about them.
    """

    pipe: SubmitsRequests
    ordered: Ordered
    askers: list[Asker]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing behind the pipeline."""
        return self.ordered.is_empty and not self.askers

    @property
    def gated(self) -> int:
        """How many requests a gate has kept from the pipeline."""
        return self.pipe.gated if isinstance(self.pipe, MotionGate) else 0

    def run_in_order(self, frame: Frame) -> list[list[Answer]]:
        """Run what is in order on a frame. Return the answers of the second models, which may be yet to come, or write its error."""
        self.ordered.run(frame)
        try:
            return [] if frame.error is not None else [asker.ask(frame) for asker in self.askers]
        except Exception as error:  # noqa: BLE001 - the outcome of this frame
            frame.result, frame.error = None, error
            return []

    def write(self, frame: Frame, answers: list[list[Answer]]) -> None:
        """Write the answers, which are all there, into the detections of a frame, or write its error."""
        error = next((value.error for values in answers for value in values if value.error), None)
        if error is not None:
            frame.result, frame.error = None, error
            return
        try:
            for asker, values in zip(self.askers, answers, strict=False):
                asker.write(frame, values)
        except Exception as error:  # noqa: BLE001 - the outcome of this frame
            frame.result, frame.error = None, error


def open_lanes(models: Mapping[str, VideoModel]) -> dict[str, Lane]:
    """Build the pipelines of models. All are closed again if one cannot be built.

    Raises:
        HeadraceError: A configuration is wrong, or something cannot be built.
    """
    for model in models.values():
        Ordered(model.ordered)  # before anything is built
    lanes: dict[str, Lane] = {}
    try:
        for name, model in models.items():
            lanes[name] = Lane(model)
    except BaseException:
        for lane in lanes.values():
            lane.close(0.0)
        raise
    return lanes


def lanes_of(lanes: Mapping[str, Lane], options: SourceOptions) -> dict[str, SourceLane]:
    """Return the models of a source by name.

    Raises:
        ValueError: See `check_model`.
        ConfigError: What the source has in order is wrong.
    """
    chosen = {}
    for name, own in options.by_model().items():
        model = check_model(name, lanes)
        chosen[model] = lanes[model].for_source(own)
    return chosen


def check_model(name: str | None, models: Collection[str]) -> str:
    """Return the name of a model. None is the only one.

    Raises:
        ValueError: There is no such model, or there are several and ``name`` is None.
    """
    if name is None:
        if len(models) == 1:
            return next(iter(models))
        names = ", ".join(models)
        raise ValueError(
            f"there are several models: write model = one of {names}, or models = [...]"
        )
    check_name("model", name, models)
    return name
