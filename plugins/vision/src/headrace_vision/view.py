"""`View`: a page that shows every source live, served on this machine alone."""

from __future__ import annotations

import http.server
import importlib.resources
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from headrace_vision.records import frame_record
from headrace_vision.saving import picture_of
from headrace_vision.sinks import Sink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["View"]

_MOST = 64
"""So many sources are shown, those seen last."""

_WINDOW_S = 5.0
"""Frames per second are those of so many last seconds."""

_HOSTS = ("127.0.0.1", "localhost")


class View(Sink):
    """A page with every source: its picture with boxes and numbers, frames per second, counts, drops.

    The page is served on the loopback address and asks nothing of any other host. It works in any browser; from
    a phone it is reached through a tunnel of yours.

    Args:
        port: The port; 0 takes a free one. ``url`` says where the page is.

    Raises:
        OSError: The port is taken.
    """

    full = "drop"
    queue_size = 8

    def __init__(self, port: int = 0) -> None:
        self._shown: dict[str, _Shown] = {}
        self._lock = threading.Lock()
        self._status: Callable[[], dict[str, Any]] = dict
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="headrace-vision-view", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def attach(self, status: Callable[[], dict[str, Any]]) -> None:
        """Take the counts from the runner."""
        self._status = status

    def write(self, frame: Frame) -> None:
        """Keep the picture of a frame as the latest of its source."""
        import cv2

        image = picture_of(frame, draw=True)
        data = None
        if image is not None:
            data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()
        record = frame_record(frame)
        with self._lock:
            shown = self._shown.pop(frame.source, None) or _Shown()
            self._shown[frame.source] = shown
            shown.add(data, record, time.monotonic())
            while len(self._shown) > _MOST:
                del self._shown[next(iter(self._shown))]

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def status(self) -> dict[str, Any]:
        """Return the ``url``."""
        return {"url": self.url}

    def state(self) -> dict[str, Any]:
        """Return what the page shows, as a dict for JSON."""
        counts = self._status().get("sources", {})
        now = time.monotonic()
        with self._lock:
            seen = {name: shown.summary(now) for name, shown in self._shown.items()}
        # A camera that does not open has no picture, but a state and a reason.
        unseen = [name for name, one in counts.items() if name not in seen and _is_open(one)]
        found = seen | {name: _Shown().summary(now) for name in unseen[:_MOST]}
        return {name: {**found[name], "status": counts.get(name)} for name in sorted(found)}

    def picture(self, name: str) -> bytes | None:
        """Return the latest JPEG of a source, or None."""
        with self._lock:
            shown = self._shown.get(name)
            return None if shown is None else shown.data


class _Shown:
    """The latest of one source."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self._record: dict[str, Any] = {}
        self._times: deque[float] = deque(maxlen=512)

    def add(self, data: bytes | None, record: dict[str, Any], now: float) -> None:
        """Keep a frame."""
        self.data = data or self.data
        self._record = record
        self._times.append(now)

    def summary(self, now: float) -> dict[str, Any]:
        """Return what is said below the picture; ``now`` is in seconds, as those of `add`."""
        recent = [one for one in self._times if one > now - _WINDOW_S]
        passed = now - recent[0] if recent else 0.0
        found = self._record.get("detections", [])
        return {
            "frame": self._record.get("frame"),
            "timestamp": self._record.get("timestamp"),
            "fps": len(recent) / max(passed, 1.0),
            "objects": len(found),
            "counts": self._record.get("counts", {}),
            "error": self._record.get("error"),
            "has_picture": self.data is not None,
        }


def _is_open(status: dict[str, Any]) -> bool:
    return status["state"] not in ("ended", "stopped")


def _handler_of(view: View) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            if host not in _HOSTS:  # a page of another host that resolves to this machine
                self._answer(403, "text/plain", b"this page is asked for by its own address only")
                return
            parts = urlsplit(self.path)
            path = parts.path
            if path == "/":
                page = importlib.resources.files("headrace_vision") / "view.html"
                self._answer(200, "text/html; charset=utf-8", page.read_bytes())
            elif path == "/state.json":
                self._answer(200, "application/json", json.dumps(view.state()).encode())
            else:
                names = parse_qs(parts.query).get("source", [""])
                self._answer_picture(view.picture(names[0]) if path == "/picture.jpg" else None)

        def _answer_picture(self, data: bytes | None) -> None:
            if data is None:
                self._answer(404, "text/plain", b"there is no such page")
            else:
                self._answer(200, "image/jpeg", data)

        def _answer(self, code: int, kind: str, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            policy = "default-src 'none'; img-src 'self'; connect-src 'self'; "
            policy += "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
            self.send_header("Content-Security-Policy", policy)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Write nothing: standard error is the program's."""

    return Handler
