"""The time of a request beside its native calls, which are replaced by recorded answers.

The first request calls OpenCV and ONNX Runtime, and their answers are recorded. Every later call of the same
function gives its recorded answer, without leaving the interpreter. The rest of a request is Python under the
interpreter lock. A thread that is alone releases the lock nowhere else, so the processor time of the calling
thread per request is the time under the lock. A recorded picture is stored as floats: numpy would release the
lock to convert it, and now has nothing to convert.

A native call releases the lock once, so the number of recorded calls is the number of releases, except for those
inside of ``imdecode`` (two more, for its copy) and of numpy. The Python measured here is warm: after a real decoder
or network has run, the same lines take several times as long, because they are no longer in the caches.
"""

from __future__ import annotations

import os
import threading
import time
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

import headrace

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from onnxruntime.capi._pybind_state import InferenceSession

if TYPE_CHECKING:
    from collections.abc import Callable


class Recorded:
    """Functions that give recorded answers.

    Attributes:
        calls: How often any of the functions was called.
        records: True: the real functions are called, and their answers recorded. False: the recorded
            answers are given.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.records = True

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls ``function``, or gives the last answer of ``function`` again."""
        answer: Any = None

        def recorded(*args: Any, **kwargs: Any) -> Any:
            nonlocal answer
            self.calls += 1
            if not self.records:
                return answer
            answer = given = function(*args, **kwargs)
            if isinstance(given, np.ndarray) and given.dtype == np.uint8:
                answer = given.astype(np.float32)
            return given

        return recorded


def lock_per_request(config: dict[str, Any], data: bytes, requests: int) -> dict[str, float]:
    """Return the time under the interpreter lock per request, and how often the lock is released.

    Args:
        config: The pipeline, of one instance.
        data: What each request brings.
        requests: How many are measured.
    """
    recorded = Recorded()
    natives = [
        (owner, name)
        for owner in (cv2, cv2.dnn)
        for name, one in vars(owner).items()
        if isinstance(one, BuiltinFunctionType)
    ]
    natives += [
        (InferenceSession, name) for name in ("run", "run_with_ort_values", "run_with_iobinding")
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name in natives]
    found: dict[str, float] = {}
    try:
        for owner, name, function in kept:  # the backends look these functions up when they start
            setattr(owner, name, recorded.of(function))
        with headrace.pipe(config) as pipe:
            pipe({"data": data})
            recorded.records = False

            def measured() -> None:
                pipe({"data": data})
                recorded.calls, begun = 0, time.thread_time()
                for _ in range(requests):
                    pipe({"data": data})
                found["lock_us"] = (time.thread_time() - begun) / requests * 1e6
                found["releases"] = recorded.calls / requests

            thread = threading.Thread(target=measured)
            thread.start()
            thread.join()
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)
    return found
