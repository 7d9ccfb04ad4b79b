"""`View`: a page that shows every source live, served on this machine alone."""

from __future__ import annotations

import http.server
import logging
import os
import re
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

from headrace_formats import write_json
from headrace_formats.page import HEADERS, SANDBOXED, Page, why_refused
from headrace_vision.records import is_detections, plain
from headrace_vision.sinks.event_index import EventIndex
from headrace_vision.sinks.pictures import encoded, picture_of
from headrace_vision.sinks.sink import Sink

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_vision.frames import Frame
    from headrace_vision.tracking.drawing import Annotators

__all__ = ["View"]

_LOG = logging.getLogger("headrace.vision")

_MOST = 64
"""So many sources are shown, those seen last."""

_EVENTS = 50
"""So many events of a source are listed, the last ones."""

MOST_CONNECTIONS = 64
"""So many connections are open, each with a thread. One more closes the oldest: an answer takes a moment."""

CONNECTION_S = 20.0
"""Most seconds from a connection to the end of its answer."""

_PIECE_BYTES = 1 << 20
"""So much of a file is sent in one go. Each of them may take `CONNECTION_S`."""

_KINDS = {".jpg": "image/jpeg", ".png": "image/png", ".webp": "image/webp", ".mp4": "video/mp4"}

_OF_EVENTS = ("/ui/events.json", "/ui/clip", "/ui/snapshot")

_POLICY = "content-security-policy"
_PAGE = {**HEADERS, _POLICY: f"{HEADERS[_POLICY]}; media-src 'self'"}
"""Headers of the files of the page, which plays clips."""

_WINDOW_S = 5.0
"""Frames per second are those of so many last seconds."""


@dataclass(eq=False, repr=False, kw_only=True)
class View(Sink):
    """A page with every source: its picture with boxes, trails, lines and zones, frames per second, counts, events, drops.

    The page is served on the loopback address and asks nothing of any other host. It works in any browser. From
    a phone it is reached through a tunnel of yours. The latest frame of each source is kept, and drawn once a browser asks for it.
    At most 64 connections are open, each for 20 s at most.

    With ``records`` it lists what happened, also before this run: by source, class, zone and time, with clips and snapshots.

    Args:
        port: The port. 0 takes a free one. ``url`` says where the page is.
        records: The file of a `SaveJSONL`, whose events are listed. An index is kept beside it. None for no list.
        videos: The folder of a `SaveVideo` with ``every_s``, ``before_s`` or ``after_s``, for clips.
        images: The folder of a `SaveImages`, for snapshots.

    Raises:
        OSError: The port is taken.
    """

    port: int = field(default=0, kw_only=False)
    records: str | os.PathLike[str] | None = None
    videos: str | os.PathLike[str] | None = None
    images: str | os.PathLike[str] | None = None

    full = "drop"
    queue_size = 8
    spool_bytes = 0  # an old picture is worth nothing

    def __post_init__(self) -> None:
        records = self.records
        self.index = None if records is None else EventIndex(records, self.videos, self.images)
        self._shown: dict[str, _Shown] = {}
        self._lock = threading.Lock()
        self._status: Callable[[], dict[str, Any]] = dict
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.view, self._server.page = self, Page("headrace_vision.sinks")
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
        """Keep a frame as the latest of its source."""
        with self._lock:
            shown = self._shown.pop(frame.source, None) or _Shown()
            self._shown[frame.source] = shown
        shown.add(frame, time.monotonic())
        with self._lock:
            while len(self._shown) > _MOST:
                del self._shown[next(iter(self._shown))]

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self.index is not None:
            self.index.close()

    def status(self) -> dict[str, Any]:
        """Return the ``url``."""
        return {"url": self.url}

    def state(self) -> dict[str, Any]:
        """Return what the page shows, as a dict for JSON."""
        counts = self._status().get("sources", {})
        now = time.monotonic()
        with self._lock:
            live = {name: shown.summary(now) for name, shown in self._shown.items()}
        # A camera that does not open has no picture, but a state and a reason.
        unseen = [name for name, status in counts.items() if name not in live and _is_open(status)]
        rows = live | {name: _Shown().summary(now) for name in unseen[:_MOST]}
        sources = {key: {**rows[key], "status": counts.get(key)} for key in sorted(rows)}
        return {"now": now, "sources": sources, "has_events": self.index is not None}

    def picture(self, name: str) -> bytes | None:
        """Return the latest picture of a source as JPEG, or None."""
        with self._lock:
            shown = self._shown.get(name)
        return None if shown is None else shown.jpeg()


class _Shown:
    """The latest of one source."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latest: Frame | None = None
        self._seen: Frame | None = None
        self._annotators: Annotators | None = None
        self._drawn: tuple[Frame, bytes] | None = None
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._times: deque[float] = deque(maxlen=512)

    def add(self, frame: Frame, now: float) -> None:
        """Keep a frame; one without an image leaves the picture as it is."""
        events = [event for event in frame.request.get("events") or () if isinstance(event, dict)]
        with self._lock:
            if frame.image is not None:
                self._skip()
                self._seen = frame
            self._latest = frame
            self._times.append(now)
            self._events.extend(plain(events))

    def _skip(self) -> None:
        """Let the trails go on where nobody has asked for the picture before."""
        frame = self._seen
        if frame is None or (self._drawn is not None and self._drawn[0] is frame):
            return
        if (annotators := self._annotators_of(frame)) is not None:
            annotators.skip(frame.result)

    def _annotators_of(self, frame: Frame) -> Annotators | None:
        """Return what draws boxes and trails, where there are tracks; None where no trail can be."""
        from headrace_vision.tracking.drawing import DRAWN, Annotators

        if getattr(frame.result, "tracker_id", None) is None:
            return None
        if self._annotators is None:
            self._annotators = Annotators(("trace", *DRAWN))
        return self._annotators

    def jpeg(self) -> bytes | None:
        """Return the picture with what was found, drawn at the first question for it."""
        import cv2

        with self._lock:
            frame, drawn = self._seen, self._drawn
            if frame is None or (drawn is not None and drawn[0] is frame):
                return None if drawn is None else drawn[1]
            image = picture_of(frame, draw=True, annotators=self._annotators_of(frame))
            if image is None:
                return None
            data = encoded(".jpg", image, cv2.IMWRITE_JPEG_QUALITY, 80)
            self._drawn = (frame, data)
            return data

    def summary(self, now: float) -> dict[str, Any]:
        """Return what is said below the picture; ``now`` is in seconds, as those of `add`."""
        with self._lock:
            frame, has_picture = self._latest, self._seen is not None
            recent = [seen_s for seen_s in self._times if seen_s > now - _WINDOW_S]
            events = list(self._events)
        passed = now - recent[0] if recent else 0.0
        frames = [] if frame is None else [frame, *frame.models.values()]
        request: dict[str, Any] = {} if frame is None else frame.request
        return {
            "frame": frame and frame.frame,
            "timestamp": frame and frame.timestamp,
            "fps": len(recent) / max(passed, 1.0),
            "objects": sum(map(_objects_of, frames)),
            "counts": plain(request.get("counts", {})),
            "events": events[::-1],
            "error": frame and frame.error and {"message": str(frame.error)},
            "has_picture": has_picture,
        }


def _objects_of(frame: Frame) -> int:
    detections = frame.request.get("detections", frame.result)
    return len(detections) if is_detections(detections) else 0


def _happened(index: EventIndex, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the list of events, for JSON."""
    is_whole = index.look()
    since_s, until_s = float(query.get("since", "-inf")), float(query.get("until", "inf"))
    page = index.page(query, since_s=since_s, until_s=until_s, before=query.get("before"))
    return {**page, "choices": index.choices(), "is_whole": is_whole}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    view: View
    page: Page
    request_queue_size = 128  # with the five of the base class, clients of a burst wait for seconds

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread."""
        with self._lock:
            self._open[request] = time.monotonic()
        self._hang_up()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def renew(self, request: Any) -> None:
        """Note that a client reads on."""
        with self._lock:
            if self._open.pop(request, None) is not None:
                self._open[request] = time.monotonic()

    def service_actions(self) -> None:
        """Hang up what takes too long; called twice a second."""
        self._hang_up()

    def server_close(self) -> None:
        """Close all."""
        super().server_close()
        self._hang_up(0)

    def _hang_up(self, most: int = MOST_CONNECTIONS) -> None:
        """Let the threads of the oldest connections beyond a number, and of those that take too long, end."""
        before_s = time.monotonic() - CONNECTION_S
        with self._lock:
            for request, began_s in list(self._open.items()):
                if len(self._open) <= most and began_s >= before_s:
                    break
                del self._open[request]
                with suppress(OSError):  # it is closed
                    request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name in HTTPServer, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at DEBUG, because most errors here are browsers that went away; the base class prints to stderr."""
        _LOG.debug("a request of %s failed", client_address, exc_info=True)


def _is_open(status: dict[str, Any]) -> bool:
    return status["state"] not in ("ended", "stopped")


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = 30
    _guards = SANDBOXED

    def do_GET(self) -> None:
        why = why_refused(self.headers.get("Host", ""), self.headers.get("Origin", ""))
        if why is not None:
            self._answer(403, "text/plain", why.encode())
            return
        parts, view = urlsplit(self.path), self.server.view
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/ui/state.json":
            self._answer(200, "application/json", write_json(view.state()).encode())
        elif parts.path == "/ui/picture.jpg":
            self._answer(200, "image/jpeg", view.picture(query.get("source", "")))
        elif view.index is not None and parts.path in _OF_EVENTS:
            try:
                self._answer_events(view.index, parts.path, query)
            except (ValueError, LookupError, OverflowError):
                self._answer(400, "text/plain", b"the question has no such form")
        else:
            name = "index.html" if parts.path == "/" else parts.path.removeprefix("/ui/")
            file = self.server.page.file(name)
            if file is not None:
                self._guards = _PAGE
            self._answer(200, "" if file is None else file.content_type, file and file.content)

    def _answer_events(self, index: EventIndex, path: str, query: Mapping[str, str]) -> None:
        """Answer about events. A client says the number of one, and never a file."""
        if path == "/ui/events.json":
            try:
                code, answer = 200, _happened(index, query)
            except (OSError, sqlite3.Error) as error:
                code, answer = 500, {"error": f"the events cannot be read: {error}"}
            self._answer(code, "application/json", write_json(answer).encode())
        elif path == "/ui/clip" and (clip := index.clip(int(query["id"]))) is not None:
            self._send_file(clip.path, is_download=not clip.plays)
        elif path == "/ui/snapshot" and (image := index.snapshot(int(query["id"]))) is not None:
            self._send_file(image)
        else:
            self._answer(404, "text/plain", None)

    def _send_file(self, path: Path, *, is_download: bool = False) -> None:
        """Send a file, or the part that is asked for, as a player does that jumps (RFC 9110, section 14)."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            part = re.fullmatch(r"bytes=(\d{1,18})-(\d{0,18})", self.headers.get("Range", ""))
            first, last = (int(part[1]), int(part[2] or size)) if part else (0, size)
            left = min(last, size - 1) - first + 1
            if left <= 0:
                self._answer(416, "text/plain", b"there is no such part")
                return
            self.send_response(206 if part else 200)
            self.send_header("Content-Type", _KINDS.get(path.suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(left))
            self.send_header("Accept-Ranges", "bytes")
            if part:
                self.send_header("Content-Range", f"bytes {first}-{first + left - 1}/{size}")
            if is_download:
                name = quote(path.name)
                self.send_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
            self.end_headers()
            file.seek(first)
            while left and (data := file.read(min(left, _PIECE_BYTES))):
                self.wfile.write(data)
                self.server.renew(self.connection)
                left -= len(data)

    def _answer(self, code: int, kind: str, body: bytes | None) -> None:
        if body is None:
            code, kind, body = 404, "text/plain", b"there is no such page"
        self.request_version = "HTTP/1.0"  # of a line that was not understood: a head is sent
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """Add the headers of every answer, also to those that the base class gives."""
        for name, value in self._guards.items():
            self.send_header(name, value)
        super().end_headers()

    def send_error(self, code: int, message: str | None = None, _: str | None = None) -> None:
        """Answer what is no GET, or no HTTP."""
        self._answer(code, "text/plain", (message or str(code)).encode())

    def log_message(self, *_: Any) -> None:
        """Write nothing: standard error is the program's."""
