"""What second models say of the crops of detections: asked behind what is in order, without waiting, for all sources at once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import os

    import supervision as sv

    import headrace
    from headrace_vision.frames import Frame

__all__ = ["Answer", "Asker", "CropModel", "SubmitsRequests"]

MOST_TRACKS = 1024
"""So many tracks of a source have an answer that is kept, those seen last."""


class SubmitsRequests(Protocol):
    """What takes a request and returns a future of it: a pipeline, or a named model of headrace-models."""

    def submit(self, data: Any) -> Any:
        """Let a request run, and return at once."""


@dataclass(frozen=True)
class CropModel:
    """A second model, which gets a crop of each detection of the first one, behind ``ordered``.

    A request has ``data`` and ``image`` (the crop, ``uint8 [h, w, 3]``), ``color="bgr"``, and in ``context`` the keys ``source``,
    ``frame``, ``timestamp``, ``time`` and ``track_id``.

    Attributes:
        pipe: A pipeline, a named model of headrace-models, or a configuration, of which a pipeline is built and closed with the runner.
        every: A track is asked about again after so many frames of its source, and keeps its answer until then. 0: once. A detection
            without a track is asked about in each frame.
        part: The part of the box that is cut out. See the option of ``Crops``.

    Raises:
        ValueError: A value is out of its range.
    """

    pipe: (
        headrace.Pipeline
        | SubmitsRequests
        | headrace.PipelineConfig
        | Mapping[str, Any]
        | str
        | os.PathLike[str]
    )
    every: int = 1
    part: tuple[float, float, float, float] = (0, 0, 1, 1)

    def __post_init__(self) -> None:
        """Check the values."""
        from headrace_vision.models.cascade import check_part

        if type(self.every) is not int or self.every < 0:
            raise ValueError(f"every is a whole number of at least 0, not {self.every!r}")
        check_part(self.part)


class Answer:
    """What a second model says of one crop. Unlike a future it keeps nobody who has waited: it may last as long as its track.

    Attributes:
        is_done: Whether it is there.
        value: It.
        error: Why there is none.
    """

    __slots__ = ("_lock", "_waiting", "error", "is_done", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] = []
        self.is_done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def then(self, function: Callable[[], object]) -> None:
        """Call a function once it is there, perhaps now."""
        with self._lock:
            if not self.is_done:
                self._waiting.append(function)
                return
        function()

    def take_from(
        self,
        request: dict[str, Any],
        future: Future[dict[str, Any]],
        *,
        value_of: Callable[[dict[str, Any]], Any] = itemgetter("result"),
    ) -> None:
        """Take the outcome of a request, and nothing else of it."""
        try:
            self.error = CancelledError() if future.cancelled() else future.exception()
            self.value = None if self.error else value_of(request)
        except Exception as error:  # noqa: BLE001 - what answers is no pipeline of ours
            self.error = error
        with self._lock:
            self.is_done = True
            waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()


class Asker:
    """Asks one second model about the detections of one source, and writes into them what it says.

    Args:
        name: The key of ``data`` for the answers. Mappings, as ``{"text": ...}``, give ``NAME_text``.
        pipe: What is asked, by all sources.
        model: What is cut out, and how often.
    """

    def __init__(self, name: str, pipe: SubmitsRequests, model: CropModel) -> None:
        self._name = name
        self._pipe = pipe
        self._part = model.part
        self._every = model.every
        self._tracks: OrderedDict[int, tuple[int, Answer]] = OrderedDict()

    def ask(self, frame: Frame) -> list[Answer]:
        """Ask about each detection of a frame. Return an answer for each, of now or of an earlier frame.

        Raises:
            InputError: The result is no ``supervision.Detections``.
            HeadraceError: The model takes no requests.
        """
        from headrace_vision.models.boxes import as_picture
        from headrace_vision.models.cascade import cut

        detections = _detections_of(frame)
        tracks = detections.tracker_id
        ids = [-1] * len(detections) if tracks is None else tracks.tolist()
        answers = [self._known(track, frame.frame) for track in ids]
        rows = [row for row, known in enumerate(answers) if known is None]
        image = as_picture({"image": frame.image})
        crops = cut(image, detections.xyxy[rows], self._part)
        requests = [
            _request_of(frame, ids[row], crop) for row, crop in zip(rows, crops, strict=True)
        ]
        futures = self._pipe.submit(requests) if requests else []
        for row, request, future in zip(rows, requests, futures, strict=True):
            answers[row] = answer = Answer()
            if self._every != 1 and ids[row] >= 0:
                self._tracks[ids[row]] = (frame.frame, answer)
            future.add_done_callback(partial(answer.take_from, request))
        while len(self._tracks) > MOST_TRACKS:
            self._tracks.popitem(last=False)
        return [answer for answer in answers if answer is not None]

    def _known(self, track: int, number: int) -> Answer | None:
        """Return the answer about a track that still holds in the frame of this number."""
        asked_at, answer = self._tracks.get(track, (0, None))
        if answer is None or (self._every and number - asked_at >= self._every):
            return None
        if answer.error is not None:
            return None
        self._tracks.move_to_end(track)
        return answer

    def write(self, frame: Frame, answers: list[Answer]) -> None:
        """Write the answers, which are all there and no errors, into ``data`` of the detections.

        Raises:
            InputError: They differ in kind.
        """
        from headrace_vision.models.cascade import columns_of

        detections = _detections_of(frame)
        values = [answer.value for answer in answers]
        columns = columns_of(self._name, values) if values else {}
        extended = replace(detections, data={**detections.data, **columns})
        for key in ("result", "detections"):
            if frame.request.get(key) is detections:
                frame.request[key] = extended
        frame.result = extended if frame.result is detections else frame.result


def _detections_of(frame: Frame) -> sv.Detections:
    from headrace_vision.models.boxes import as_detections

    return as_detections(frame.request.get("detections", frame.result))


def _request_of(frame: Frame, track: int, crop: Any) -> dict[str, Any]:
    names = ("source", "frame", "timestamp", "time")
    context = {name: getattr(frame, name) for name in names} | {"track_id": track}
    return {"data": crop, "image": crop, "color": "bgr", "context": context}
