"""JPEG to class over HTTP with headrace-serve; started by `benchmarks.serve.peers` and `benchmarks.serve.cores`.

    python -m benchmarks.servers.with_headrace_serve PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /run/light with the bytes of a file answers
``{"result": number}``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import cv2
from benchmarks.jpeg_sides import SIDE
from benchmarks.load import first_cores, on_cores
from benchmarks.servers.network import MODEL

from headrace_serve import Server

WORK = "S[DecodeMat,ResizeMat,Mat2Tensor,OnnxTensor,NumberOfClass]"


def serve(
    port: int,
    *,
    most: int,
    instances: int,
    queue_size: int = 1024,
    processes: bool = False,
    workers: int = 1,
    switch_interval_ms: float = 5,
    front_cpus: int | None = None,
) -> None:
    """Serve until killed: batches of up to ``most`` on ``instances``.

    ``processes`` puts each instance in a process of its own, behind the one that serves; ``workers`` are
    whole processes that share the port, ``switch_interval_ms`` what a thread waits for the interpreter before it asks,
    ``front_cpus`` the processors of the threads of this process, once the others have started.
    """
    cv2.setNumThreads(1)
    sys.setswitchinterval(switch_interval_ms / 1e3)
    config = {
        "import": ["benchmarks.servers.classes"],
        "backend": f"Process[{WORK}]" if processes else WORK,
        "resize_h": SIDE,
        "resize_w": SIDE,
        "model": os.environ[MODEL],
        "max": most,
        "instance_num": instances,
        "queue_size": queue_size,
        "queue_full": "reject",
    }
    if workers > 1:
        lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
        file = Path(os.environ[MODEL]).with_name("light.toml")
        file.write_text("\n".join(lines), encoding="utf-8")
        command = ["-m", "headrace", "serve", f"light={file}", "--port", str(port)]
        os.execv(sys.executable, [sys.executable, *command, "--workers", str(workers)])
    with Server({"light": config}, port=port), on_cores(first_cores(front_cpus), all_threads=True):
        threading.Event().wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]), **json.loads(sys.argv[2]))
