"""A gate before the model of a source: frames that show nothing new pass by, with the answer to the last one that did."""

from __future__ import annotations

import math
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_vision.pipelines.crop_models import Answer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace_vision.pipelines.crop_models import SubmitsRequests

__all__ = ["MotionGate"]

MOST_AGE_S = 5.0
"""Seconds of the source's time after which the model gets a frame though nothing moves: it may find more in the same scene."""

SIDE = 320
"""Most pixels along a side of the pictures that are compared: smaller motion is no object for a detector."""

LEVELS = 10
"""Levels, of 255, by which a colour differs where something has moved. Grain and encoders stay below, once it is blurred."""

_OF_ITS_FRAME = {"data", "image", "color", "context", "events"}
"""Keys of a request that belong to its frame alone. An event has happened once."""


class MotionGate:
    """Sends a request to a model if its picture differs from the last one that went there. Else it repeats the answer.

    All pictures between two that the model sees are alike, also where something moves slowly, as each is compared with the first. A
    request that was repeated has the key ``gated``, which is True.

    Args:
        pipe: The pipeline, or what stands for it.

    Attributes:
        gated: How many requests did not go to the model.
    """

    def __init__(self, pipe: SubmitsRequests) -> None:
        self.gated = 0
        self._pipe = pipe
        self._seen: NDArray[np.uint8] | None = None
        self._seen_s = -math.inf
        self._answer = Answer()

    def submit(self, request: dict[str, Any]) -> Any:
        """Return a future of a request with ``image`` (``uint8 [H, W, 3]``) and, in ``context``, ``timestamp`` (s).

        Call it from one thread, in the order of the source.
        """
        picture, time_s = _reduced(request["image"]), request["context"]["timestamp"]
        if self._is_like(picture) and time_s - self._seen_s < MOST_AGE_S:
            self.gated += 1
            repeated: Future[dict[str, Any]] = Future()
            self._answer.then(partial(_repeat, self._answer, request, repeated))
            return repeated
        self._seen = None  # if it is refused
        future, answer = self._pipe.submit(request), Answer()
        future.add_done_callback(partial(answer.take_from, request, value_of=_answer_of))
        self._seen, self._seen_s, self._answer = picture, time_s, answer
        return future

    def _is_like(self, picture: NDArray[np.uint8]) -> bool:
        """Return whether a picture is like the one that was answered, or will be. One that was dropped, or failed, is none."""
        import cv2

        if self._seen is None or self._seen.shape != picture.shape or self._answer.error:
            return False
        return bool(cv2.absdiff(picture, self._seen).max() < LEVELS)


def _reduced(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import cv2

    height, width = image.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = (max(round(scale * width), 1), max(round(scale * height), 1))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return cv2.blur(small, (3, 3))  # type: ignore[return-value]


def _answer_of(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key not in _OF_ITS_FRAME}


def _repeat(answer: Answer, request: dict[str, Any], future: Future[dict[str, Any]]) -> None:
    """Give a request the outcome of the one before: also its error, and a frame that waits for one that is dropped is dropped."""
    if isinstance(answer.error, CancelledError):
        future.cancel()
    elif future.set_running_or_notify_cancel():
        if answer.error is not None:
            future.set_exception(answer.error)
        else:
            request.update(answer.value, gated=True)
            future.set_result(request)
