"""The number of OpenCV's own threads, which holds for the whole process; only this module sets it."""

from __future__ import annotations

import os
import threading

from headrace.errors import MissingDependencyError, SetupError

__all__ = ["THREADS_VARIABLE", "limit_opencv_threads"]

THREADS_VARIABLE = "HEADRACE_CV_THREADS"
"""Environment variable: how many threads OpenCV may use inside one call, at least 1 (the default)."""

_lock = threading.Lock()
_is_limited = False


def limit_opencv_threads() -> None:
    """Set the number of threads OpenCV uses inside one call. Only the first call does anything.

    The default is 1: the threads of the pipelines already run side by side, and OpenCV's threads
    would compete with them for the same cores.

    Raises:
        MissingDependencyError: OpenCV is not installed, or cannot be loaded.
        SetupError: The environment variable holds something else than a whole number above 0.
    """
    global _is_limited
    with _lock:
        if _is_limited:
            return
        text = os.environ.get(THREADS_VARIABLE, "1")
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
            hint = "Set it to a whole number of at least 1, or unset it (the default is 1)."
            raise SetupError(f"{THREADS_VARIABLE}={text!r} is no number of threads", hint=hint)
        try:
            import cv2
        except ImportError as error:
            problem = f"OpenCV (cv2) cannot be imported: {error}"
            hint = "Type `pip install opencv-python-headless`."
            raise MissingDependencyError(problem, distribution="headrace-cv", hint=hint) from error
        cv2.setNumThreads(int(text))
        _is_limited = True
