"""Eight cameras of 5 frames a second, whose cameras, receivers and disks are away 40 times: is an event missing at the end?

Each camera is an address on the loopback interface that serves pictures (MJPEG). Every second frame of each has an event, which must
reach a receiver over HTTP, a file with a line per frame and a function, each at least once and in order. A camera that is away closes its
connections and takes none; so does the receiver; a disk that is away takes no byte more (a limit on the size of files, as
Linux and macOS have it); the function raises. Videos are written beside them.

Printed are how many events were made and how many came to each, what came twice, what the videos lack; and memory, open files and
threads after the first tenth, and at the end, when everything is there again. The status is 1 where an event is missing or out of
order.

    python -m benchmarks.vision.outages [--seconds 3600] [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import http.server
import json
import logging
import os
import random
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace_vision import SaveJSONL, SaveVideo, Sink, VideoRunner, Webhook

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_vision import Frame

PACKAGES = ("headrace", "headrace-vision", "numpy", "av")
CAMERAS, FPS, OUTAGES = 8, 5, 40

MADE: dict[str, list[int]] = {}
"""The numbers of the frames of each source that have an event."""


class Alarm(headrace.Backend):
    """Writes an event for each second frame, and notes it."""

    def forward(self, batch: list[Any]) -> None:
        """Write and note the events of a batch."""
        for request in batch:
            request["result"] = None
            context = request["context"]
            if context["frame"] % 2 == 0:
                request["events"] = [{"type": "alarm"}]
                MADE.setdefault(context["source"], []).append(context["frame"])


class Server:
    """A server that can be away: its port is closed, and so are its connections."""

    def __init__(self, handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        self._handler = handler
        self._server: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.is_up = threading.Event()
        self.up()

    def up(self) -> None:
        """Take connections."""
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._server.daemon_threads = True
        self._server.owner = self  # type: ignore[attr-defined]
        self.port = self._server.server_port
        self.is_up.set()
        threading.Thread(target=self._server.serve_forever, args=[0.05]).start()

    def down(self) -> None:
        """Take none, and end those that are there."""
        self.is_up.clear()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class Camera(http.server.BaseHTTPRequestHandler):
    """Serves pictures until its server is away."""

    def do_GET(self) -> None:
        """Send a picture every 200 ms."""
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        self.end_headers()
        owner = self.server.owner  # type: ignore[attr-defined]
        number, pause = 0, threading.Event()
        try:
            while owner.is_up.is_set():
                image = np.full((96, 128, 3), number % 250, np.uint8)
                data = cv2.imencode(".jpg", image)[1].tobytes()
                head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data + b"\r\n")
                number += 1
                pause.wait(1 / FPS)
        except OSError:
            pass
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Receiver(http.server.BaseHTTPRequestHandler):
    """Notes what is posted."""

    got: list[tuple[str, int]] = []  # noqa: RUF012 - of all connections

    def do_POST(self) -> None:
        """Note a frame, and answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append((body["source"], body["frame"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Function(Sink):
    """A sink that calls Python, and fails when it is told so. It keeps no pictures meanwhile: 64 MiB hold 40 s of them."""

    name = "function"
    needs_image = False

    def __init__(self) -> None:
        self.got: list[tuple[str, int]] = []
        self.is_away = False

    def write(self, frame: Frame) -> None:
        """Note a frame with events."""
        if self.is_away:
            raise RuntimeError("away")
        if frame.request.get("events"):
            self.got.append((frame.source, frame.frame))


def disk(*, is_full: bool) -> None:
    """Let no file grow, or let them grow again."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if is_full else hard, hard))


def usage() -> dict[str, int]:
    """Return memory, open files and threads of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
    fds = len(os.listdir("/dev/fd"))  # noqa: PTH208 - the number alone
    memory_mib = pages * resource.getpagesize() // 2**20
    return {"memory_mib": memory_mib, "files": fds, "threads": threading.active_count()}


def judged(got: list[tuple[str, int]]) -> dict[str, int]:
    """Return how many events came, came again, are missing, and came before an earlier one."""
    missing = disordered = 0
    for source, made in MADE.items():
        came = list(dict.fromkeys(number for name, number in got if name == source))
        missing += len(set(made) - set(came))
        disordered += came != sorted(came)
    found = len(set(got))
    return {"came": found, "again": len(got) - found, "missing": missing, "disordered": disordered}


def run(seconds: float, folder: Path) -> dict[str, Any]:
    """Run the day, and return what came of it."""
    cameras = [Server(Camera) for _ in range(CAMERAS)]
    receiver, function = Server(Receiver), Function()
    chance = random.Random(0)
    trouble: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (receiver.down, receiver.up),
        (lambda: disk(is_full=True), lambda: disk(is_full=False)),
        (lambda: vars(function).update(is_away=True), lambda: vars(function).update(is_away=False)),
        *((one.down, one.up) for one in cameras),
    ]
    lines = folder / "all.jsonl"
    host = "127.0.0.1"
    sinks = [
        Webhook(f"http://{host}:{receiver.port}/", network=[host], close_s=60),
        SaveJSONL(lines, close_s=60),
        SaveVideo(folder / "videos", codec="mpeg4", close_s=60),
        function,
    ]
    pause = threading.Event()
    begin: dict[str, int] = {}
    with VideoRunner({"backend": "Alarm", "max": 8}, sinks=sinks, network=[host]) as runner:
        handles = [
            runner.add({f"camera{number}": f"http://{host}:{one.port}/"}, read_timeout=5.0)
            for number, one in enumerate(cameras)
        ]
        slot_s = seconds * 0.9 / OUTAGES
        pause.wait(seconds * 0.1)
        begin = usage()
        for number in range(OUTAGES):
            # Sinks, the disk and a camera in turn.
            down, up = (
                trouble[number % 4] if number % 4 < 3 else trouble[3 + chance.randrange(CAMERAS)]
            )
            began = time.monotonic()
            down()
            pause.wait(slot_s * chance.uniform(0.1, 0.6))
            up()
            pause.wait(max(began + slot_s - time.monotonic(), 0.0))
        end = usage()
        for one in handles:
            one.stop()
        for one in handles:
            one.wait(30)
    status = runner.status()
    for one in (*cameras, receiver):
        one.down()
    text = lines.read_text().splitlines()
    written = [(one["source"], one["frame"]) for one in map(json.loads, text) if one.get("events")]
    return {
        "seconds": seconds,
        "outages": OUTAGES,
        "made": sum(map(len, MADE.values())),
        "sinks": {
            "Webhook": judged(Receiver.got),
            "SaveJSONL": judged(written),
            "function": judged(function.got),
        },
        "videos_lack": status["sinks"]["SaveVideo"]["missing"],
        "begin": begin,
        "end": end,
    }


def main() -> None:
    """Run and print."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long it runs")
    args = parser.parse_args()
    logging.getLogger("headrace.vision").setLevel(logging.ERROR)
    headrace.register("Alarm", Alarm, replace=True)
    about = environment(PACKAGES)
    print_environment(about)
    with tempfile.TemporaryDirectory() as folder:
        found = run(12.0 if args.quick else args.seconds, Path(folder))
    print(f"{CAMERAS} cameras, {OUTAGES} outages in {found['seconds']:g} s, {found['made']} events")
    print("              came   again  missing  disordered")
    for name, one in found["sinks"].items():
        print(
            f"{name:10} {one['came']:7} {one['again']:7} {one['missing']:8} {one['disordered']:11}"
        )
    print(f"pictures that no video has: {found['videos_lack']}")
    for when in ("begin", "end"):
        one = found[when]
        print(f"{when:6} {one['memory_mib']} MiB, {one['files']} files, {one['threads']} threads")
    save(args.json, about, {"outages": found})
    if any(one["missing"] or one["disordered"] for one in found["sinks"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
