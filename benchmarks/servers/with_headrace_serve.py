"""JPEG to class over HTTP with headrace-serve; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_headrace_serve PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /run/light with the bytes of a file answers
``{"result": number}``.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import cv2
from benchmarks.jpeg_sides import SIDE
from benchmarks.servers.network import MODEL

import headrace
from headrace_serve import Server


@headrace.register("NumberOfClass")
def number_of_class(scores):  # noqa: ANN001, ANN201 - a function from data to result
    """Give the number of the greatest of ``float32 [classes]``."""
    return int(scores.argmax())


def serve(port: int, *, most: int, instances: int, queue_size: int = 1024) -> None:
    """Serve until killed: batches of up to ``most`` on ``instances``, one process."""
    cv2.setNumThreads(1)
    config = {
        "backend": "S[DecodeMat,ResizeMat,Mat2Tensor,OnnxTensor,NumberOfClass]",
        "resize_h": SIDE,
        "resize_w": SIDE,
        "model": os.environ[MODEL],
        "max": most,
        "instance_num": instances,
        "queue_size": queue_size,
        "queue_full": "reject",
    }
    with Server({"light": config}, port=port):
        threading.Event().wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]), **json.loads(sys.argv[2]))
